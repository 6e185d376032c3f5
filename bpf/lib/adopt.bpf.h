/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * adopt: answers that outlive their backend (docs/protocol/takeover.md). The daemon is told of
 * those that begin, with the head as it was sent and the request; and it says which
 * connection goes on with another backend's.
 */
#pragma once

#define BEGUN_BYTES (4 << 20)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, BEGUN_BYTES);
} begun SEC(".maps");

/* What is told: as long as it is, since its daemon reads all of it, of every answer. */
struct begun_room {
	struct begun_answer told;
	__u8 bytes[BEGUN_ROOM + UNREAD_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct begun_room);
} new_begun SEC(".maps");

/* Behind the head the request's first packet: the daemon has the others of the copies, while they are there. */
/* A call, so that the object's BTF has the struct. */
static __noinline __u16 copy_request(const struct leaving *h, struct begun_room *room)
{
	struct unread_key key;
	struct unread *unread;
	__u32 at, length;

	if (!h || !room)
		return 0;
	key = unread_key_of(h, 0);
	unread = enter_unread(&key);
	if (!unread)
		return 0;
	length = unread->length;
	at = room->told.head_length;
	barrier_var(length);
	barrier_var(at);
	if (!length || length > UNREAD_MAX || at > BEGUN_ROOM ||
	    bpf_probe_read_kernel(room->bytes + at, length, unread->packet))
		length = 0;
	leave_unread(unread);
	return length;
}

/* How long the head is that begins at `head_at` in this packet, and ends in it. */
static __always_inline __u32 head_length_of(__u32 head_at)
{
	__u32 zero = 0;
	struct piece *piece = bpf_map_lookup_elem(&pieces, &zero);

	return piece ? piece->head_end - head_at : 0;
}

/*
 * Where in this packet, before which so many were `finished`, an answer begins that has a body which is not over: at
 * `first`, if that is not 0, or behind one that ends there. 0: none does.
 */
/* Not static: the verifier walks it once. */
__noinline int head_of_begun(const struct answers *answers, __u16 finished, __u32 first)
{
	__u32 zero = 0;
	struct piece *piece;

	if (!answers || (answers->phase != ANSWER_BODY && !is_until_close(answers)))
		return 0;
	if (answers->finished == finished)
		return first;
	piece = bpf_map_lookup_elem(&pieces, &zero);
	return piece && piece->head_end > piece->head_at ? piece->head_at : 0;
}

/*
 * An answer begins at `head_at` in this packet, perhaps behind the end of the one before, and has a body, until close
 * perhaps, `setup->answers.remaining` of which is still to come.
 */
/* Not static: the verifier walks it once. */
__noinline int tell_begun(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key,
			  struct setup *setup, __u32 head_at)
{
	__u32 zero = 0, length, size, behind;
	struct protection *protection = bpf_map_lookup_elem(&protecting, &zero);
	struct begun_room *room = bpf_map_lookup_elem(&new_begun, &zero);
	struct tcp_sock *full = sending_socket(skb);
	struct begun_answer *told;

	if (!h || !key || !setup || !protection || !protection->from || !room || !full || setup->origin ||
	    setup->before)
		return 0;
	length = skb->len - head_at;
	behind = head_at - (sizeof(struct ethhdr) + sizeof(struct iphdr) + (h->tcp.offset >> 4 << 2));
	if (setup->answers.remaining + length < protection->from)
		return 0;
	told = &room->told;
	told->key = *key;
	told->dispatcher = setup->dispatcher;
	told->epoch = setup->epoch;
	told->length = setup->answers.remaining + length;
	told->at = bpf_ntohl(h->tcp.seq) + behind;
	told->clock_offset = full->tsoffset + setup->clock_shift;
	told->answer = setup->answers.finished + 1;
	length = head_length_of(head_at);
	barrier_var(length);
	if (!length || length > BEGUN_ROOM || bpf_skb_load_bytes(skb, head_at, room->bytes, length))
		return 0;
	told->head_length = length;
	/* The copies are of the request before. */
	told->request_length = behind ? 0 : copy_request(h, room);
	told->taken = setup->answers.taken;
	size = sizeof(*told) + length + told->request_length;
	barrier_var(size);
	if (size < sizeof(*told) || size > sizeof(*room))
		return 0;
	/* The daemon looks by itself now and then: most answers are over by then. */
	if (bpf_ringbuf_output(&begun, room, size,
			       bpf_ringbuf_query(&begun, BPF_RB_AVAIL_DATA) > BEGUN_BYTES / 2 ? BPF_RB_FORCE_WAKEUP :
												BPF_RB_NO_WAKEUP))
		return 0;
	setup->saved |= SAVED_TOLD;
	count_event(EVENT_BEGUN);
	return 0;
}

/* The packet that an answer begins in ends in its head: nobody can say how it began. */
static __always_inline void count_unseen(const struct answers *answers)
{
	__u32 zero = 0;
	struct protection *protection;

	if (answers->phase >= ANSWER_BODY || is_between_answers(answers))
		return;
	protection = bpf_map_lookup_elem(&protecting, &zero);
	if (protection && protection->from)
		count_event(EVENT_BEGUN_UNSEEN);
}

/* Is an answer not over that may outlive its server? */
static __always_inline bool is_in_midst(const struct setup *setup)
{
	return setup->saved & SAVED_TOLD && setup->state == SETUP_CONFIRMED && setup->answers.phase == ANSWER_BODY;
}

/*
 * Does the server close then? Where it is killed, and has not read all that its client has asked ahead, its kernel
 * says RST for it.
 */
static __always_inline bool closes_in_midst(const struct setup *setup, const struct leaving *h)
{
	return is_in_midst(setup) && (h->tcp.flags & TCP_FIN ||
				      (h->tcp.flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK));
}

/* To what the client says until somebody else goes on: there is no socket any more. Nor is it the client's to know. */
static __always_inline bool is_gone_in_midst(const struct setup *setup, const struct leaving *h)
{
	return is_in_midst(setup) && (h->tcp.flags & (TCP_RST | TCP_ACK)) == TCP_RST;
}

/*
 * Does the server close on a request that its dispatcher keeps, having said nothing but interim answers? Of a client
 * that has closed its side, too, nobody can ask what it has heard.
 */
static __always_inline bool closes_on_kept(struct __sk_buff *skb, const struct setup *setup, const struct leaving *h,
					   __u32 payload)
{
	const struct answers *answers = &setup->answers;

	/* Most packets close nothing: the socket is looked at last. */
	return setup->meta.reason == FORWARD_KEPT && h->tcp.flags & (TCP_FIN | TCP_RST) && !payload &&
	       setup->state == SETUP_CONFIRMED && !answers->finished && is_between_answers(answers) &&
	       !(answers->flags & ANSWER_GONE) && is_at_end(h, answers) && !has_clients_fin(sending_socket(skb));
}

/*
 * The client need not hear of it yet: its dispatcher does, as of a server that has closed and owes
 * an answer (handoff.md 7.2). The socket repeats its FIN, and so the word of it.
 */
static __noinline int tell_cut_off(struct __sk_buff *skb, const struct leaving *h, struct setup *setup, __u32 payload)
{
	if (!h || !setup)
		return TC_ACT_UNSPEC;
	if (payload)
		return set_flags(skb, h->tcp.offset, h->tcp.flags, h->tcp.flags & ~TCP_FIN) ? TC_ACT_UNSPEC :
											     drop(DROP_REWRITE);
	if (h->tcp.flags & TCP_FIN)
		setup->answers.flags |= ANSWER_HUNG_UP;
	if (!turn_round(skb, h, TCP_ACK))
		return drop(DROP_REWRITE);
	return tell_vacated(skb, h, setup, setup->answers.taken,
			    is_between_answers(&setup->answers) ? VACATED_KEPT : 0);
}

/* For BPF_PROG_RUN. Returns enum adopted. */
SEC("syscall")
int adopt_answer(struct adoption *adoption)
{
	struct flow_key key = adoption->key;
	struct setup *setup = bpf_map_lookup_elem(&setups, &key);
	struct answers *answers;

	if (!setup || setup->epoch != adoption->epoch || !is_set_up(setup))
		return ADOPTED_LATE;
	answers = &setup->answers;
	/* Nothing has been said on it: the daemon alone does that. */
	answers->remaining = adoption->remaining;
	answers->taken = setup->start + adoption->command;
	answers->flags = adoption->end == ADOPTED_STAYS ? 0 : ANSWER_CLOSING;
	answers->line_length = 0;
	answers->phase = adoption->end == ADOPTED_UNTIL_CLOSE ? ANSWER_ENDLESS : ANSWER_BODY;
	setup->saved = SAVED_TOLD | SAVED_ADOPTED;
	return ADOPTED;
}

/*
 * For BPF_PROG_RUN: an answer until close that its server never ends is one whose end is far away. Where
 * the server closes all the same, that is in its midst. Returns enum adopted.
 */
SEC("syscall")
int never_ends(struct adoption *adoption)
{
	struct flow_key key = adoption->key;
	struct setup *setup = bpf_map_lookup_elem(&setups, &key);

	if (!setup || setup->epoch != adoption->epoch || !is_until_close(&setup->answers))
		return ADOPTED_LATE;
	/* Packets that leave meanwhile are counted by either. */
	setup->answers.phase = ANSWER_BODY;
	return ADOPTED;
}
