/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* socket: where a flow's own socket here stands. */
#pragma once

/* What the owner's socket has had and said, in the wire's numbers. */
struct own_socket {
	__u32 state; /* TCP state; 0: none */
	__u32 rcv_nxt;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 clock_offset;
};

static __always_inline struct own_socket find_own_socket(struct __sk_buff *skb, const struct segment *segment,
							 const struct setup *known)
{
	struct bpf_sock *found = find_connection(skb, segment);
	struct own_socket own = {};
	struct tcp_sock *full;

	if (!found)
		return own;
	if (is_full(found) && (full = bpf_skc_to_tcp_sock(found))) {
		own.state = found->state;
		own.rcv_nxt = full->rcv_nxt;
		own.snd_una = full->snd_una;
		own.snd_nxt = full->snd_nxt;
		own.write_seq = full->write_seq;
		own.clock_offset = full->tsoffset;
		if (known && known->shifted) {
			own.rcv_nxt += known->client_shift;
			own.snd_una += known->server_shift;
			own.snd_nxt += known->server_shift;
			own.write_seq += known->server_shift;
			own.clock_offset += known->clock_shift;
		}
	}
	bpf_sk_release(found);
	return own;
}

/* Numbers of the client's that the flow's socket knows (RFC 9293 3.3.1), in the wire's numbers. */
enum client_number {
	WINDOW_EDGE, /* from there on it hears nothing (3.10.7.4); it never goes back */
	WINDOW_SAID_AT, /* SND.WL1: what is said of the client's window before there is old */
};

/* Without a socket `otherwise`. */
static __noinline __u32 client_number(struct __sk_buff *skb, const struct segment *segment,
				      const struct setup *known, enum client_number which, __u32 otherwise)
{
	struct bpf_sock *found;
	struct tcp_sock *full;

	if (!segment || !known)
		return otherwise;
	found = find_connection(skb, segment);
	if (!found)
		return otherwise;
	if (is_full(found) && (full = bpf_skc_to_tcp_sock(found))) {
		otherwise = which == WINDOW_EDGE ? full->rcv_wup + full->rcv_wnd : full->snd_wl1;
		otherwise += known->shifted ? known->client_shift : 0;
	}
	bpf_sk_release(found);
	return otherwise;
}

/* TS.Recent (RFC 7323 4.3), of the client's clock: the socket takes nothing that says an older one. */
static __noinline __u32 clock_heard(struct __sk_buff *skb, const struct segment *segment, __u32 otherwise)
{
	struct bpf_sock *found;
	struct tcp_sock *full;

	if (!segment)
		return otherwise;
	found = find_connection(skb, segment);
	if (!found)
		return otherwise;
	if (is_full(found) && (full = bpf_skc_to_tcp_sock(found)))
		otherwise = full->rx_opt.ts_recent;
	bpf_sk_release(found);
	return otherwise;
}

/*
 * A client that had bytes behind a gap acknowledges, once the gap is filled, what this socket
 * has not said yet, and which it would not listen to (RFC 9293 3.10.7.4). Where it has come, for
 * such an acknowledgement; else the acknowledgement itself.
 */
static __noinline __u32 heard_end(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	struct own_socket own;

	if (!segment || !known)
		return 0;
	own = find_own_socket(skb, segment, known);
	return own.state && is_before(own.snd_nxt, segment->ack) ? own.snd_nxt : segment->ack;
}

/* The connection that says this, at egress; NULL: it is no connection's. */
static __always_inline struct tcp_sock *sending_socket(const struct __sk_buff *skb)
{
	struct bpf_sock *sender = skb->sk;

	if (sender)
		sender = bpf_sk_fullsock(sender);
	return sender ? bpf_skc_to_tcp_sock(sender) : NULL;
}

/* How its clock runs, for when it has gone. */
static __always_inline void note_clock(struct setup *setup, const struct tcp_sock *full)
{
	if (full)
		setup->clock_offset = full->tsoffset + setup->clock_shift;
}

/* Has the client said that it sends no more? */
static __always_inline bool has_clients_fin(const struct tcp_sock *full)
{
	return full && full->inet_conn.icsk_inet.sk.__sk_common.skc_flags & SOCK_HAS_FIN;
}

/* The owner's timestamp clock (RFC 7323 4, in milliseconds here), for who comes after it; 0 without. */
static __always_inline __u32 own_clock(const struct setup *known, __u32 offset)
{
	if (!(known->meta.tcp_options & TCP_OPTION_TIMESTAMPS))
		return 0;
	return (__u32)(bpf_ktime_get_ns() / 1000000) + offset;
}
