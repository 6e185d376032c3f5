/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * rebuild: the packet that starts a request becomes an established socket of
 * the server's listener [LVSCAD07 TCP Rebuilding], by
 * bpf_sk_assign_tcp_reqsk() (Linux 6.9): its ISNs are taken from the packet,
 * its options from our header.
 */
#pragma once

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk,
				   struct bpf_tcp_req_attrs *attrs, int attrs__sz) __ksym;

/* A packet that came round again after a socket in its way was removed. */
#define SECOND_PASS_MARK 0x545a0002

#define KERNEL_MSS_MIN 536

static __always_inline void fill_attributes(struct bpf_tcp_req_attrs *attributes, const struct meta *meta,
					    const struct tcp_options *options)
{
	__u16 mss = bpf_ntohs(meta->mss);

	__builtin_memset(attributes, 0, sizeof(*attributes));
	attributes->mss = mss < KERNEL_MSS_MIN ? KERNEL_MSS_MIN : mss;
	attributes->snd_wscale = meta->window_scales >> 4;
	attributes->rcv_wscale = meta->window_scales & 15;
	attributes->wscale_ok = !!(meta->tcp_options & TCP_OPTION_WINDOW_SCALE);
	attributes->sack_ok = !!(meta->tcp_options & TCP_OPTION_SACK);
	attributes->ecn_ok = !!(meta->tcp_options & TCP_OPTION_ECN);
	attributes->tstamp_ok = !!(meta->tcp_options & TCP_OPTION_TIMESTAMPS);
	attributes->rcv_tsval = options->tsval;
	attributes->rcv_tsecr = options->tsecr;
}

/* Where the server listens: the VIP's own address and port, unless the header says another. */
static __always_inline void listener_tuple(const struct segment *segment, const struct meta *meta,
					   struct bpf_sock_tuple *tuple)
{
	struct server_key key = { .port = meta->server_port };
	struct server *server;

	/* No client in the tuple: only a listener can match. */
	__builtin_memset(tuple, 0, sizeof(*tuple));
	tuple->ipv4.daddr = segment->vip;
	tuple->ipv4.dport = meta->server_port ? meta->server_port : segment->key.vip_port;
	server = meta->server_port ? bpf_map_lookup_elem(&servers, &key) : NULL;
	if (server && mapped_ipv4(server->addr))
		tuple->ipv4.daddr = mapped_ipv4(server->addr);
}

static __always_inline void note_queue(__u32 length)
{
	__u32 zero = 0;
	struct accept_queue *known = bpf_map_lookup_elem(&accept_queue, &zero);

	if (!known)
		return;
	known->length = length;
	known->seen_ns = bpf_ktime_get_coarse_ns();
}

/*
 * Without SYN cookies the kernel takes the rebuilt connection from us, and then resets
 * it (net/ipv4/syncookies.c, cookie_v4_check()).
 */
static __always_inline bool takes_cookies(struct tcp_sock *listener)
{
	return BPF_CORE_READ(listener, inet_conn.icsk_inet.sk.__sk_common.skc_net.net,
			     ipv4.sysctl_tcp_syncookies) != 0;
}

/* Nor does it rebuild connections of servers that listen with MPTCP (bpf_sk_assign_tcp_reqsk()). */
static __always_inline bool speaks_mptcp(struct tcp_sock *listener)
{
	return bpf_core_field_exists(listener->is_mptcp) && BPF_CORE_READ(listener, is_mptcp);
}

/*
 * The listener that shall take the connection, to be released by the caller;
 * or none, and why, counted.
 */
static __always_inline struct bpf_sock *find_listener(struct __sk_buff *skb, const struct segment *segment,
						      const struct meta *meta, enum refusal *refusal)
{
	enum drop_reason reason = DROP_NO_LISTENER;
	struct bpf_sock_tuple tuple;
	struct tcp_sock *listener;
	struct bpf_sock *found;

	*refusal = REFUSAL_NO_LISTENER;
	listener_tuple(segment, meta, &tuple);
	found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!found)
		goto count;
	if (found->state != TCP_STATE_LISTEN)
		goto release;
	listener = bpf_skc_to_tcp_sock(found);
	if (!listener)
		goto release;
	if (!takes_cookies(listener) || speaks_mptcp(listener)) {
		reason = DROP_NOT_REBUILT;
		goto release;
	}
	note_queue(listener->inet_conn.icsk_inet.sk.sk_ack_backlog);
	/* include/net/sock.h, sk_acceptq_is_full() */
	if (listener->inet_conn.icsk_inet.sk.sk_ack_backlog >
	    listener->inet_conn.icsk_inet.sk.sk_max_ack_backlog) {
		*refusal = REFUSAL_ACCEPT_QUEUE_FULL;
		reason = DROP_ACCEPT_QUEUE_FULL;
		goto release;
	}
	*refusal = REFUSAL_NONE;
	return found;
release:
	bpf_sk_release(found);
count:
	count_drop(reason);
	return NULL;
}

/* Gives the packet, which must be decapsulated, to the listener. */
static __always_inline bool rebuild(struct __sk_buff *skb, struct bpf_sock *found, const struct meta *meta,
				    const struct tcp_options *options)
{
	struct tcp_sock *listener = bpf_skc_to_tcp_sock(found);
	struct bpf_tcp_req_attrs attributes;

	if (!listener)
		return false;
	fill_attributes(&attributes, meta, options);
	return bpf_sk_assign_tcp_reqsk(skb, (struct sock *)listener, &attributes, sizeof(attributes)) == 0;
}

/* What the kernel has on the flow's 4-tuple, if only a listener; to be released by the caller. */
static __always_inline struct bpf_sock *find_connection(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock_tuple tuple = {
		.ipv4 = {
			.saddr = segment->client,
			.daddr = segment->vip,
			.sport = segment->key.client_port,
			.dport = segment->key.vip_port,
		},
	};

	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Is it one that sends and receives? */
static __always_inline bool is_full(const struct bpf_sock *found)
{
	return found->state != TCP_STATE_LISTEN && found->state != TCP_STATE_NEW_SYN_RECV &&
	       found->state != TCP_STATE_TIME_WAIT;
}

/* What stands on the flow's 4-tuple now. */
struct occupant {
	__u32 state; /* TCP state; 0: nobody, or only a listener */
	__u32 rcv_nxt;
	__u32 start; /* the first byte that it has had or is to have; not known in TIME_WAIT */
	__u32 snd_una;
};

static __always_inline struct occupant find_occupant(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *found = find_connection(skb, segment);
	struct occupant occupant = {};

	if (!found)
		return occupant;
	if (found->state == TCP_STATE_TIME_WAIT) {
		struct tcp_timewait_sock *timewait = bpf_skc_to_tcp_timewait_sock(found);

		if (timewait) {
			struct tcp_timewait_sock___old *old = (void *)timewait;

			occupant.state = TCP_STATE_TIME_WAIT;
			if (bpf_core_field_exists(old->tw_rcv_nxt))
				occupant.rcv_nxt = BPF_CORE_READ(old, tw_rcv_nxt);
			else
				occupant.rcv_nxt = timewait->tw_sk.__tw_common.skc_tw_rcv_nxt;
		}
	} else if (is_full(found)) {
		struct tcp_sock *full = bpf_skc_to_tcp_sock(found);

		if (full) {
			occupant.state = found->state;
			occupant.rcv_nxt = full->rcv_nxt;
			occupant.start = full->rcv_nxt - (__u32)full->bytes_received;
			occupant.snd_una = full->snd_una;
		}
	}
	bpf_sk_release(found);
	return occupant;
}

/*
 * The packet in hand, already decapsulated, becomes the RST that removes the
 * occupant: no payload's meaning, no options (a timestamp could fail PAWS),
 * its sequence number exactly what the occupant expects (RFC 5961 3.2).
 */
static __always_inline bool become_reset(struct __sk_buff *skb, const struct segment *segment, __u32 rcv_nxt)
{
	__be16 flags;

	return !bpf_skb_load_bytes(skb, UNPACKED_TCP + offsetof(struct tcp_header, offset), &flags, sizeof(flags)) &&
	       replace_word(skb, offsetof(struct tcp_header, seq), segment->seq, rcv_nxt) &&
	       replace_half(skb, offsetof(struct tcp_header, offset), flags, bpf_htons(5 << 12 | TCP_RST));
}
