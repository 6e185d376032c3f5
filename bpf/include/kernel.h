/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * kernel.h: the little that the programs need of the kernel's own types.
 * Field offsets are relocated against the running kernel's BTF (CO-RE), so
 * only names matter here, and no generated vmlinux.h is needed to build.
 */
#ifndef TRAPEZE_KERNEL_H
#define TRAPEZE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#include "abi.h"

/* RFC 9293 3.1, flags as one byte: the UAPI's bit-fields suit no builder. */
struct tcp_header {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	__u8 offset; /* header length in words << 4 | reserved */
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};

/* RFC 792; <linux/icmp.h> drags in libc. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 check;
	__be32 rest;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80

#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET_MASK 0x1fff
#define IP_DONT_FRAGMENT 0x4000

/* include/net/tcp_states.h */
#define TCP_STATE_ESTABLISHED 1
#define TCP_STATE_FIN_WAIT1 4
#define TCP_STATE_TIME_WAIT 6
#define TCP_STATE_LAST_ACK 9
#define TCP_STATE_LISTEN 10
#define TCP_STATE_NEW_SYN_RECV 12

/* include/net/sock.h, enum sock_flags: a FIN has come, and all before it */
#define SOCK_HAS_FIN (1 << 1)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct netns_ipv4 {
	__u8 sysctl_tcp_syncookies;
};

struct net {
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
	unsigned long skc_flags;
	__u32 skc_tw_rcv_nxt; /* of TIME_WAIT sockets, since 6.18 or so */
};

struct sock {
	struct sock_common __sk_common;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	__u8 sk_shutdown;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct rb_node {
	unsigned long __rb_parent_color;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct tcp_options_received {
	__u32 ts_recent;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 write_seq;
	__u32 tsoffset;
	__u32 rcv_wup;
	__u32 rcv_wnd;
	__u32 snd_wl1;
	struct rb_root out_of_order_queue;
	struct tcp_options_received rx_opt;
	__u64 bytes_received; /* a FIN counts, as in rcv_nxt */
	bool is_mptcp; /* CONFIG_MPTCP */
};

struct inet_timewait_sock {
	struct sock_common __tw_common;
};

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
};

/* Before 6.18 the field was tcp_timewait_sock's own. */
struct tcp_timewait_sock___old {
	__u32 tw_rcv_nxt;
};

/* net/core/filter.c, 6.9 and later */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

#pragma clang attribute pop

#endif
