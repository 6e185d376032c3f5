/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * start: the packet that starts a request is rebuilt, unless it has been before, or
 * its connection stands here already (the table at the head of agent.bpf.c).
 */
#pragma once

/*
 * Of a request whose server has closed, copies may come at once by several CPUs: the socket's, that was to be asked
 * again, and the client's (handoff.md 7.5a). One of them removes that socket, and one is rebuilt. A second RST would
 * meet the new socket, that expects the very number that the old one did; and a second one that is remembered would
 * take away what the first one's has answered.
 */

/* Is this one to remove it? Not if another has done so, and been rebuilt, since this one saw a socket. */
static __always_inline bool take_removal(struct setup *known)
{
	if (__sync_val_compare_and_swap(&known->replacing, 0, 1))
		return false;
	if (known->state == SETUP_VACANT)
		return true;
	known->replacing = 0;
	return false;
}

/* Is this one to be rebuilt? From then on others find it tried. */
static __always_inline bool take_vacant(struct setup *known)
{
	return __sync_val_compare_and_swap(&known->state, SETUP_VACANT, SETUP_TRIED) == SETUP_VACANT;
}

/* It has not been. */
static __always_inline void leave_vacant(struct setup *known)
{
	__sync_val_compare_and_swap(&known->state, SETUP_TRIED, SETUP_VACANT);
}

/* A connection that ended long ago, or has been closed, stands where a new one must be built. `vacant`: the latter's. */
static __always_inline int remove_occupant(struct __sk_buff *skb, const struct segment *segment, struct setup *vacant,
					   __u32 rcv_nxt)
{
	/* Only once: what survives its RST would go round for ever. It comes again. */
	if (skb->mark == SECOND_PASS_MARK) {
		if (vacant)
			vacant->replacing = 0;
		return drop(DROP_NOT_REBUILT);
	}
	skb->mark = SECOND_PASS_MARK;
	/* Behind what removes it; and before what comes behind this one. */
	if (vacant && !take_removal(vacant))
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		return drop(DROP_REWRITE);
	skb->mark = 0;
	if (!unpack(skb, segment) || !become_reset(skb, segment, rcv_nxt))
		return drop(DROP_REWRITE);
	count_event(EVENT_REPLACED);
	return TC_ACT_OK;
}

/*
 * Without a record: was it made for the request at `start`, whose packet acknowledges `ack`? Then it has begun there, or
 * behind an answer since (handoff.md 7.3). What stands where its flow has left it while its data path was away has not
 * heard what the client has had of others since; a request that it is given would never be answered.
 */
static __always_inline bool is_left_by(const struct occupant *occupant, __u32 start, __u32 ack)
{
	return occupant->state != TCP_STATE_TIME_WAIT && occupant->rcv_nxt - start < 1 << 30 &&
	       (occupant->start == start || (__s32)(occupant->snd_una - ack) > 0);
}

/*
 * Without a record: has its flow left it, and come back with the request at `start`? It began earlier, then. One whose
 * numbers are shifted is lost with its record, too.
 */
static __always_inline bool is_stale(const struct occupant *occupant, __u32 start)
{
	return occupant->state && occupant->state != TCP_STATE_TIME_WAIT && is_before(occupant->start, start);
}

/* A verdict of start_request(): its connection is here; the packet is to be delivered. */
#define IT_STANDS (-3)
/* And those below: it is to be refused, for this reason. By the caller, whose stack is less deep. */
#define TO_REFUSE (-16)

static __noinline int refuse_here(struct __sk_buff *skb, const struct segment *segment, enum refusal refusal)
{
	struct headers h;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	return refuse(skb, h.outer, segment, refusal);
}

/* `meta` is the option of the FORWARD that the packet is, or stands for. */
/* Not static, as send_reply(). */
__noinline int start_request(struct __sk_buff *skb, const struct segment *segment, struct setup *known,
				    const struct meta *meta)
{
	__u32 start;
	bool same, is_vacant;
	struct occupant occupant;
	struct tcp_options options;
	struct bpf_sock *listener;
	enum refusal refusal;
	__be32 dispatcher;
	bool rebuilt;

	if (!segment || !meta ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + offsetof(struct iphdr, saddr), &dispatcher,
			       sizeof(dispatcher)))
		return drop(DROP_MALFORMED);
	start = start_of(known, meta);
	same = known && known->epoch == bpf_ntohl(meta->epoch) && known->start == start &&
	       known->state <= SETUP_REFUSED;
	is_vacant = known && known->state == SETUP_VACANT;
	/* Its socket is needed still, and no seat is left. */
	if (known && is_older(known)) {
		count_drop(DROP_OLDER);
		return TO_REFUSE - REFUSAL_NO_SEAT;
	}
	occupant = find_occupant(skb, segment);
	if (same && known->state == SETUP_CONFIRMED) {
		/* Without its socket it meets an RST, as with the server alone: it must not run twice. */
		if (!occupant.state)
			count_event(EVENT_GHOST);
		return IT_STANDS;
	}
	if (occupant.state) {
		/* Without a record it is ours if it stands where this request could have left it. */
		if (same) {
			known->state = SETUP_CONFIRMED;
			return IT_STANDS;
		}
		if (!known && is_left_by(&occupant, start, segment->ack)) {
			remember(segment, known, meta, SETUP_CONFIRMED, dispatcher);
			return deliver(skb, segment);
		}
		return remove_occupant(skb, segment, is_vacant ? known : NULL, occupant.rcv_nxt);
	}
	if (!read_inner_options(skb, segment, &options))
		return drop(DROP_MALFORMED);
	/* A late copy of what was given back must not run here as well. */
	if (same && known->state == SETUP_REFUSED)
		return TO_REFUSE - REFUSAL_NO_LISTENER;
	if (is_vacant && !take_vacant(known))
		return drop(DROP_VACANT);
	listener = find_listener(skb, segment, meta, &refusal);
	if (!listener) {
		if (refusal == REFUSAL_NO_LISTENER)
			remember(segment, known, meta, SETUP_REFUSED, dispatcher);
		else if (is_vacant)
			leave_vacant(known);
		return TO_REFUSE - refusal;
	}
	rebuilt = unpack(skb, segment) && rebuild(skb, listener, meta, &options);
	bpf_sk_release(listener);
	if (!rebuilt) {
		if (is_vacant)
			leave_vacant(known);
		return drop(DROP_NOT_REBUILT);
	}
	skb->mark = 0;
	/* A copy has been rebuilt just now, and may have a socket, or an answer, by now: what is known stays. */
	if (!same)
		remember(segment, known, meta, SETUP_TRIED, dispatcher);
	count_event(EVENT_REBUILT);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}
