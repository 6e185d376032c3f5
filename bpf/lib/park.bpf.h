/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * park: a socket whose flow another backend has now waits for it to come back, instead of
 * being removed (docs/protocol/handoff.md 8). What a server says there is nobody's; one
 * that closes there closes for itself. The flow that comes back finds a connection that its
 * server has accepted already, with its window as wide as it was.
 *
 * `parked` has all that wait, for the daemon, which ends those that wait for long: whoever
 * takes one out of there has it.
 */
#pragma once

/* Of a server that has so many to accept, no worker shall wait for what may never come. */
#define PARKING_QUEUE_MAX 16
/* The same connection has said, and heard, no more than that meanwhile. */
#define PARKED_REACH (1u << 26)

static __always_inline bool is_crowded(void)
{
	__u32 zero = 0;
	struct accept_queue *last = bpf_map_lookup_elem(&accept_queue, &zero);

	return last && last->length > PARKING_QUEUE_MAX &&
	       bpf_ktime_get_coarse_ns() - last->seen_ns < QUEUE_LIFETIME_NS;
}

/* Of a drained setup that has just been given up; `care` is of the word by which. False: its socket is to go. */
static __noinline bool park(const struct segment *segment, struct setup *known, __u8 care, __u32 socket_state)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!segment || !known)
		return false;
	if (socket_state != TCP_STATE_ESTABLISHED || is_on_seat(segment) || known->seated || known->before ||
	    !(known->meta.tcp_options & care & CARE_PARK) || is_crowded() ||
	    bpf_map_update_elem(&parked, &segment->key, &now, BPF_ANY))
		return false;
	known->parked = 1;
	return true;
}

/* Is it the same connection's, as far as it can be told, and the same server's? */
static __always_inline bool may_resume(const struct segment *segment, const struct setup *known,
				       const struct meta *meta)
{
	const __u8 agreed = TCP_OPTIONS_AGREED;

	return known->state == SETUP_MOVED && known->parked && known->meta.server_port == meta->server_port &&
	       !meta->value && known->meta.mss == meta->mss && known->meta.window_scales == meta->window_scales &&
	       !((known->meta.tcp_options ^ meta->tcp_options) & agreed) &&
	       segment->seq - known->start < PARKED_REACH && segment->ack - known->end < PARKED_REACH;
}

/* The client's echo, of an encapsulated segment; 0: none. */
static __noinline __u32 read_echo(struct __sk_buff *skb, const struct segment *segment)
{
	struct tcp_options options;

	return segment && read_inner_options(skb, segment, &options) ? options.tsecr : 0;
}

/*
 * Has its socket had something of the client's that lies further on, a FIN that has overtaken its request? It would be
 * the next connection's. Not static: it has no more stack than is left.
 */
__noinline bool has_gap(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *found;
	struct tcp_sock *full;
	bool has = false;

	if (!segment)
		return false;
	found = find_connection(skb, segment);
	if (!found)
		return false;
	full = bpf_skc_to_tcp_sock(found);
	if (full)
		has = full->out_of_order_queue.rb_node;
	bpf_sk_release(found);
	return has;
}

/* The flow comes back to its socket. False: that has gone, or has said something. */
static __noinline bool resume(struct __sk_buff *skb, const struct segment *segment, struct setup *known,
			      const struct meta *meta, __be32 dispatcher)
{
	struct own_socket own;
	__u32 client, server, clock, offset;

	if (!segment || !known || !meta)
		return false;
	own = find_own_socket(skb, segment, known);
	if (own.state != TCP_STATE_ESTABLISHED || own.rcv_nxt != known->start ||
	    own.snd_nxt != known->end || own.write_seq != known->end || has_gap(skb, segment))
		return false;
	/* Without it nobody knows which clock the client has heard last. */
	clock = read_echo(skb, segment);
	if (!clock && meta->tcp_options & TCP_OPTION_TIMESTAMPS)
		return false;
	/* Who takes it out has it: the daemon, or we. */
	if (bpf_map_delete_elem(&parked, &segment->key))
		return false;
	client = known->client_shift + segment->seq - known->start;
	server = known->server_shift + segment->ack - known->end;
	/* The socket's clock is the wire's by now. */
	offset = own.clock_offset - known->clock_shift;
	clock = known->clock_shift + clock - own_clock(known, own.clock_offset);
	remember(segment, known, meta, SETUP_TRIED, dispatcher);
	known->state = SETUP_CONFIRMED;
	known->shifted = 1;
	known->client_shift = client;
	known->server_shift = server;
	known->clock_shift = clock;
	known->clock_offset = offset + clock;
	/* Its server may close as after any answer. */
	known->answers.flags |= ANSWER_ENDED;
	known->answers.taken = segment->seq;
	count_event(EVENT_RESUMED);
	return true;
}
