/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * owner: how a backend gives a connection up between two requests
 * (docs/protocol/handoff.md 4, 5), when its own socket has had all that came before
 * the next one, and has said all that there is to say to that.
 */
#pragma once

/* A copy of the packet by which the flow was given up: the RST for its socket here. */
#define RESET_MARK 0x545a0003

/* A copy of the packet that becomes the GC to the owner before. */
#define GC_MARK 0x545a0004

/*
 * Why the flow cannot leave before the request at `start`, its socket's `requests`
 * having been that many; 0: it can (1.2). Drained (1.3) is the caller's to see.
 */
static __noinline enum held why_held(const struct setup *known, const struct own_socket *own, __u32 start,
					  __u16 requests)
{
	const struct answers *answers = &known->answers;
	/* A FIN counts in the socket's numbers, whether it has left or not (closing.bpf.h). */
	bool closed = own->state == TCP_STATE_FIN_WAIT1;
	/* Below 0 while another CPU still hands the last segment down: the client may answer before that returns. */
	__s32 ahead = own->snd_nxt - answers->next;
	bool has_said_all = own->write_seq == answers->next + closed && ahead <= closed;

	if (known->state == SETUP_VACANT)
		return start == known->start && answers->finished == requests ? 0 : HELD_CLOSING;
	if (!is_set_up(known) || !own->state)
		return HELD_STRANGER;
	/* It ends it behind this answer, or nobody will ever know where that ends. */
	if (answers->flags & ANSWER_CLOSING || answers->phase == ANSWER_LOST || (own->state != TCP_STATE_ESTABLISHED && !closed))
		return HELD_CLOSING;
	/* As long as its closing has not left, what it has not answered may come to its next connection (unread.bpf.h). */
	if (closed && has_said_all && answers->finished != requests)
		return answers->flags & ANSWER_GONE ? HELD_CLOSING : HELD_ANSWERING;
	/* The client has heard its server close. */
	if (closed && has_said_all && ahead > 0 && !outlives(known))
		return HELD_CLOSING;
	if (!is_between_answers(answers) || answers->finished != requests || own->rcv_nxt != start || !has_said_all)
		return HELD_ANSWERING;
	return 0;
}

/*
 * 5.2a: an earlier connection of the 4-tuple, or this one's earlier stay here, closes; of what is
 * asked for nothing is known yet, because the packet that sets it up is on its way.
 */
static __always_inline enum held of_this_stay(enum held reason, const struct setup *known, __u32 epoch)
{
	return reason == HELD_CLOSING && is_before(known->epoch, epoch - 1) ? HELD_STRANGER : reason;
}

/* Has it had no more than `requests`, and the client all that was said to them? */
static __always_inline bool owes_nothing(const struct setup *known, const struct own_socket *own, __u16 requests)
{
	return known->meta.tcp_options & CARE_FOLLOW && own->state == TCP_STATE_ESTABLISHED &&
	       has_answered(&known->answers) && !why_held(known, own, known->answers.taken, requests) &&
	       own->snd_una == known->answers.next;
}

/*
 * Has it said all that there is to say to what it has had, however much that was? Of a client that
 * asks ahead nobody knows: two requests may have come before the first one's answer began.
 */
static __always_inline bool has_answered_all(const struct setup *known, const struct own_socket *own)
{
	return known->meta.tcp_options & CARE_FOLLOW && known->asked == known->answers.finished &&
	       has_answered(&known->answers) && !(known->answers.flags & ANSWER_AHEAD) &&
	       !why_held(known, own, known->answers.taken, known->answers.finished);
}

/* Has it said nothing but interim answers, up to snd_nxt? */
static __always_inline bool has_not_begun(const struct setup *known, const struct own_socket *own)
{
	return known->meta.tcp_options & CARE_FOLLOW && own->state == TCP_STATE_ESTABLISHED && !known->answers.finished &&
	       is_between_answers(&known->answers) && own->snd_nxt == known->answers.next;
}

/* Not now, and perhaps a DONE later. */
static __noinline int hold(struct __sk_buff *skb, const struct segment *segment, struct setup *known,
			   enum held reason)
{
	struct encapsulation *outer;
	struct headers h;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	outer = begin_reply(h.outer);
	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta.kind = META_HELD;
	outer->meta.reason = reason;
	outer->meta.value = known && reason == HELD_UNACKED ? bpf_htonl(known->answers.next) : 0;
	if (known && (reason == HELD_ANSWERING || reason == HELD_UNACKED)) {
		known->waiting = reason;
		known->wanted = bpf_ntohl(outer->meta.start);
		known->wanted_after = bpf_ntohs(outer->meta.requests);
		known->was_wanted = 1;
	}
	count_event(EVENT_HELD);
	return send_reply(skb, segment);
}

/* From now on whatever is older is late, and what the socket here still says is nobody's. */
static __always_inline void give_up(struct setup *known, const struct meta *meta, __be32 next)
{
	known->epoch = bpf_ntohl(meta->epoch);
	known->start = bpf_ntohl(meta->start);
	known->next = next;
	known->end = known->answers.next;
	known->reason = RELEASED_DRAINED;
	known->waiting = 0;
	known->state = SETUP_MOVED;
	count_event(EVENT_GIVEN_UP);
}

/* A copy of the packet goes round once more, and becomes the last that the socket hears that was given up. */
static __always_inline void send_own_last(struct __sk_buff *skb)
{
	skb->mark = RESET_MARK;
	/* Without memory the socket stays, and says nothing until its server closes it. */
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		count_drop(DROP_REWRITE);
	skb->mark = 0;
}

/* What the client says is told to the owner before us by a copy of it (older.bpf.h). */
static __always_inline void send_gc(struct __sk_buff *skb)
{
	skb->mark = GC_MARK;
	/* Without memory: the client acknowledges again. */
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		count_drop(DROP_REWRITE);
	skb->mark = 0;
}

static __always_inline bool brings_bytes(const struct segment *segment)
{
	return segment->payload || segment->flags & TCP_FIN;
}

/* The sum of a TCP header of `length` bytes, its checksum field as it stands. */
static __always_inline __s64 header_sum(struct __sk_buff *skb, __u32 at, __u32 length, struct sack_bench *bench)
{
	__builtin_memset(bench->before, 0, 64);
	if (length < sizeof(struct tcp_header) || length > 60 || bpf_skb_load_bytes(skb, at, bench->before, length))
		return -1;
	return bpf_csum_diff(NULL, 0, (__be32 *)bench->before, 60, 0);
}

/*
 * The inner packet ends where its TCP header does, and is no FIN: IP takes what follows for padding.
 * Its checksum is made anew, or, where a card was to complete it, its pseudo-header's sum is.
 */
static __noinline bool leave_out_payload(struct __sk_buff *skb, const struct segment *segment)
{
	struct sack_bench *bench;
	struct iphdr ip;
	struct tcp_header tcp;
	__u32 zero = 0, header_length;
	__u64 pseudo, new_pseudo;
	__s64 sum;
	bool partial;

	if (!segment || bpf_skb_load_bytes(skb, INNER_IP, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(skb, INNER_TCP, &tcp, sizeof(tcp)))
		return false;
	header_length = segment->header_length;
	bench = bpf_map_lookup_elem(&sack_benches, &zero);
	if (!bench)
		return false;
	pseudo = pseudo_header_sum(ip.saddr, ip.daddr, segment->ip_length - sizeof(ip));
	new_pseudo = pseudo_header_sum(ip.saddr, ip.daddr, header_length);
	partial = tcp.check == checksum_fold(pseudo);
	ip.tot_len = bpf_htons(sizeof(ip) + header_length);
	set_ipv4_checksum(&ip);
	tcp.flags &= ~(TCP_FIN | TCP_PSH);
	tcp.check = 0;
	if (bpf_skb_store_bytes(skb, INNER_IP, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, INNER_TCP, &tcp, sizeof(tcp), BPF_F_RECOMPUTE_CSUM))
		return false;
	sum = header_sum(skb, INNER_TCP, header_length, bench);
	if (sum < 0)
		return false;
	tcp.check = partial ? checksum_fold(new_pseudo) : ~checksum_fold(new_pseudo + sum);
	return !bpf_skb_store_bytes(skb, INNER_TCP + offsetof(struct tcp_header, check), &tcp.check, 2,
				    BPF_F_RECOMPUTE_CSUM);
}

/* Only the acknowledgement counts: its bytes are another's, and a socket that hears them answers. */
static __always_inline int acknowledge_own(struct __sk_buff *skb, const struct segment *segment,
					   const struct setup *known)
{
	if ((brings_bytes(segment) && !leave_out_payload(skb, segment)) || !unpack(skb, segment) ||
	    !shift_in(skb, segment, known))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

/* What a parked one has said is acknowledged; any other is reset. */
static __noinline int tell_own_socket(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	struct occupant occupant;

	if (!segment || !known)
		return drop(DROP_MALFORMED);
	skb->mark = 0;
	if (known->parked)
		return acknowledge_own(skb, segment, known);
	occupant = find_occupant(skb, segment);
	if (!occupant.state)
		return drop(DROP_MOVED);
	if (!unpack(skb, segment) || !become_reset(skb, segment, occupant.rcv_nxt))
		return drop(DROP_REWRITE);
	return TC_ACT_OK;
}

/* The copy of the word by which the flow was given up. */
static __noinline int receive_last(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	struct meta meta;

	if (!segment || bpf_skb_load_bytes(skb, META_AT, &meta, sizeof(meta)))
		return drop(DROP_MALFORMED);
	if (!known || !is_given_up(known) || !is_same_start(known, &meta) ||
	    known->next != (meta.kind == META_HANDOFF ? meta.value : 0))
		return drop(DROP_STALE_EPOCH);
	return tell_own_socket(skb, segment, known);
}

/* Does the socket that was given up have to hear something still? */
static __always_inline bool end_or_park(const struct segment *segment, struct setup *known, const struct meta *meta,
					const struct own_socket *own)
{
	return own->state && (!park(segment, known, meta->tcp_options, own->state) || own->snd_una != known->end);
}

/* The option of the FORWARD that a HANDOFF stands for, as its dispatcher would seal it (4.2). */
static __noinline bool seal_forward(struct meta *meta, __be32 next, const struct segment *segment)
{
	struct node *self = this_node();
	struct siphash_key *key;

	if (!meta || !segment || !self || !(key = tag_key(self->signing_key)))
		return false;
	meta->kind = META_FORWARD;
	meta->key_id = self->signing_key;
	meta->reason = 0;
	meta->requests = 0;
	meta->value = 0;
	set_tag(meta, meta_tag(key, meta, next, segment->client, segment->vip, segment->client_port,
			       segment->key.vip_port));
	return true;
}

/* To the next owner, as if its dispatcher had sent it there; the kernel knows the way, or asks for it. */
static __noinline int hand_on(struct __sk_buff *skb, const struct segment *segment)
{
	struct encapsulation outer;
	struct headers h;
	__be32 next;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_REWRITE);
	outer = *h.outer;
	next = outer.meta.value;
	if (!seal_forward(&outer.meta, next, segment))
		return drop(DROP_BAD_TAG);
	fill_encapsulation(&outer, outer.ip.saddr, next, outer.udp.source, segment->ip_length);
	if (bpf_skb_store_bytes(skb, sizeof(struct ethhdr), &outer, sizeof(outer), 0))
		return drop(DROP_REWRITE);
	count_event(EVENT_HANDED_ON);
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/*
 * Since the client sent this request it may have heard a later clock of ours than it echoes here, in a segment that
 * was repeated: who is rebuilt from the echo goes on from there, and the client takes nothing that is older (RFC 7323
 * 5.3). Nearly all have their timestamps first.
 */
static __noinline bool echo_own_clock(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	const __u32 check = INNER_TCP + offsetof(struct tcp_header, check);
	const __u32 at = INNER_TCP + TSVAL_WORD - 4;
	__be32 option[3], clock;
	__u32 ahead;

	if (!segment || !known)
		return false;
	clock = bpf_htonl(own_clock(known, known->clock_offset));
	if (!clock || segment->header_length < TSECR_WORD + 4 || bpf_skb_load_bytes(skb, at, option, sizeof(option)) ||
	    option[0] != bpf_htonl(0x0101080a))
		return true;
	ahead = bpf_ntohl(clock) - bpf_ntohl(option[2]);
	if (!ahead || ahead >= 1u << 30)
		return true;
	return !bpf_l4_csum_replace(skb, check, option[2], clock, 4) &&
	       !bpf_skb_store_bytes(skb, INNER_TCP + TSECR_WORD, &clock, sizeof(clock), 0);
}

/*
 * What a HANDOFF brings that is not the request: is it for the owner who has not given the flow up? What its socket has
 * had; and what its client has heard of the answer, from wherever that says so.
 */
static __always_inline bool concerns_owner(const struct segment *segment, __u32 start)
{
	__u32 end = segment->seq + segment->payload + !!(segment->flags & TCP_FIN);

	return (__s32)(end - start) <= 0 || !(brings_bytes(segment) || segment->flags & TCP_RST);
}

/* Verdicts of receive_handoff(): the next owner is this host, once more, and the packet a FORWARD to it; */
#define HANDED_TO_US (-2)
/* it is another, to which the packet goes on. By the caller, whose stack is less deep. */
#define TO_HAND_ON (-3)

/* 4: this request goes to another backend, by way of us. */
static __noinline int receive_handoff(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	struct node *self = this_node();
	struct own_socket own;
	enum held reason;
	struct headers h;
	struct meta meta;
	__be32 next;
	__u32 start, epoch;
	bool moved;

	if (!segment || !self || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	meta = h.outer->meta;
	next = meta.value;
	start = bpf_ntohl(meta.start);
	epoch = bpf_ntohl(meta.epoch);
	moved = known && known->state == SETUP_MOVED && is_same_start(known, &meta) && known->next == next;
	if (!moved) {
		if (known && is_same_start(known, &meta) && next == self->address && known->state != SETUP_MOVED)
			return HANDED_TO_US;
		if (known && !is_before(known->epoch, epoch))
			return drop(DROP_STALE_EPOCH);
		if (!starts_request(segment, start)) {
			if (!known || !is_set_up(known) || !concerns_owner(segment, start))
				return drop(DROP_EARLY);
			return deliver_shifted(skb, segment, known);
		}
		own = find_own_socket(skb, segment, known);
		reason = HELD_STRANGER;
		if (known)
			reason = of_this_stay(why_held(known, &own, start, bpf_ntohs(meta.requests)), known, epoch);
		if (!reason && (segment->ack != known->answers.next || known->before ||
				(known->refused && !is_before(known->refused_epoch, epoch))))
			reason = HELD_UNACKED;
		if (reason) {
			if (known) {
				known->refused = 1;
				known->refused_epoch = epoch;
			}
			return hold(skb, segment, known, reason);
		}
		if (own.state)
			known->clock_offset = own.clock_offset;
		give_up(known, &meta, next);
		if (end_or_park(segment, known, &meta, &own) && next != self->address)
			send_own_last(skb);
	}
	if (!starts_request(segment, start))
		return next != self->address ? TO_HAND_ON : drop(DROP_EARLY);
	if (!echo_own_clock(skb, segment, known))
		return drop(DROP_REWRITE);
	return next != self->address ? TO_HAND_ON : HANDED_TO_US;
}

/* 5.2: its end, and its clock in place of the handshake. */
static __noinline int answer_released(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	struct encapsulation *outer;
	struct headers h;
	__be32 clock;

	if (!segment || !known || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	outer = begin_reply(h.outer);
	if (!outer)
		return drop(DROP_REWRITE);
	clock = bpf_htonl(own_clock(known, known->clock_offset));
	outer->meta.kind = META_RELEASED;
	outer->meta.reason = known->reason;
	outer->meta.requests = 0;
	outer->meta.value = bpf_htonl(known->end);
	__builtin_memcpy(&outer->meta.mss, &clock, sizeof(clock));
	return send_reply(skb, segment);
}

/*
 * 1.4: an answer that is not over ends at `end` for certain, and nothing comes behind it.
 * Another CPU may be looking at a packet of it: then it is asked again.
 */
static __always_inline bool is_end_known(const struct setup *known, const struct own_socket *own, __u32 start,
					 __u16 requests, __u32 *end)
{
	const volatile struct answers *answers = &known->answers;
	bool was_busy = answers->busy, is_known, closed = own->state == TCP_STATE_FIN_WAIT1;
	__u32 next = answers->next, unsaid = own->write_seq - closed - next;

	barrier();
	is_known = is_set_up(known) && (own->state == TCP_STATE_ESTABLISHED || closed) &&
		   answers->phase == ANSWER_BODY && !(answers->flags & ANSWER_CLOSING) &&
		   (__u16)(answers->finished + 1) == requests && own->rcv_nxt == start &&
		   answers->remaining < 1u << 30 &&
		   (closed ? unsaid == answers->remaining : unsaid <= answers->remaining);
	*end = next + answers->remaining;
	barrier();
	return is_known && !was_busy && !answers->busy && answers->next == next;
}

/*
 * May it become an older owner? What is protected has one owner until the client has all of it, or
 * nobody could go on with what the others were given (takeover.md 2.2b1).
 */
static __always_inline bool allows_half_pipe(const struct meta *meta, const struct setup *known)
{
	return meta->reason == RELEASE_HALF_PIPE ||
	       (meta->reason == RELEASE_UNPROTECTED && !(known->saved & SAVED_TOLD));
}

/* As give_up(), but that the socket stays until the client has had all up to `end`. False: there are too many. */
static __noinline bool become_older(const struct segment *segment, struct setup *known, const struct meta *meta,
				    __u32 end)
{
	__u32 epoch;

	if (!segment || !known || !meta)
		return false;
	epoch = bpf_ntohl(meta->epoch);
	if (bpf_map_update_elem(&older, &segment->key, &epoch, BPF_ANY))
		return false;
	known->epoch = bpf_ntohl(meta->epoch);
	known->start = bpf_ntohl(meta->start);
	known->next = 0;
	known->end = end;
	known->reach = known->start + told_ahead(&known->told, known->start);
	known->last_clock = own_clock(known, known->clock_offset);
	known->reason = RELEASED_HALF_PIPE;
	known->waiting = 0;
	known->heard_ns = bpf_ktime_get_coarse_ns();
	known->state = SETUP_OLDER;
	count_event(EVENT_GIVEN_UP);
	count_event(EVENT_HALF_PIPE);
	return true;
}

/* A verdict of end_unknown(): nobody stands there. */
#define NOBODY_THERE (-6)

/* What stands here of a flow that is another's by now, and of which the record is gone (takeover.md 5.1). */
static __noinline int end_unknown(struct __sk_buff *skb, const struct segment *segment)
{
	struct occupant occupant;

	if (!segment)
		return drop(DROP_MALFORMED);
	occupant = find_occupant(skb, segment);
	if (!occupant.state || occupant.state == TCP_STATE_TIME_WAIT)
		return NOBODY_THERE;
	if (!unpack(skb, segment) || !become_reset(skb, segment, occupant.rcv_nxt))
		return drop(DROP_REWRITE);
	count_event(EVENT_FORSAKEN);
	return TC_ACT_OK;
}

/* 5: the dispatcher's daemon has the next request, and wants the flow for another backend. */
static __noinline int receive_release(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	struct own_socket own;
	enum held reason;
	struct meta meta;
	__u32 end;
	bool moved;

	if (!segment || bpf_skb_load_bytes(skb, META_AT, &meta, sizeof(meta)))
		return drop(DROP_MALFORMED);
	moved = known && is_given_up(known) && is_same_start(known, &meta) && !known->next;
	if (moved)
		return answer_released(skb, segment, known);
	if (!known)
		return hold(skb, segment, known, HELD_STRANGER);
	if (!is_before(known->epoch, bpf_ntohl(meta.epoch)))
		return drop(DROP_STALE_EPOCH);
	/*
	 * That the client has had all of the owner before us concerns that one, too. What else it has acknowledged that one
	 * has heard by its own packets, and would put off its question whether a small window has opened (5.1b).
	 */
	if (known->before && !is_given_up(known) && !is_before(segment->ack, known->first))
		send_gc(skb);
	if (meta.value != meta.start && meta.reason != RELEASE_FORSAKEN && is_set_up(known))
		note_told(&known->told, bpf_ntohl(meta.value));
	own = find_own_socket(skb, segment, known);
	if (own.state)
		known->clock_offset = own.clock_offset;
	if (meta.reason == RELEASE_FORSAKEN && is_set_up(known)) {
		count_event(EVENT_FORSAKEN);
		give_up(known, &meta, 0);
		send_own_last(skb);
		return answer_released(skb, segment, known);
	}
	reason = why_held(known, &own, bpf_ntohl(meta.start), bpf_ntohs(meta.requests));
	reason = of_this_stay(reason, known, bpf_ntohl(meta.epoch));
	/* Either may have heard more than the other. The owner before us hears the client by us alone (6.5). */
	if (!reason && (known->before || (known->state != SETUP_VACANT && segment->ack != known->answers.next &&
					  own.snd_una != known->answers.next)))
		reason = HELD_UNACKED;
	end = known->answers.next;
	if (allows_half_pipe(&meta, known) &&
	    (reason == HELD_UNACKED ||
	     (reason == HELD_ANSWERING &&
	      is_end_known(known, &own, bpf_ntohl(meta.start), bpf_ntohs(meta.requests), &end))) &&
	    become_older(segment, known, &meta, end))
		return answer_released(skb, segment, known);
	if (reason)
		return hold(skb, segment, known, reason);
	give_up(known, &meta, 0);
	if (end_or_park(segment, known, &meta, &own))
		send_own_last(skb);
	return answer_released(skb, segment, known);
}
