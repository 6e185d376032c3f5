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

/* The packet that brought the request, if that was one alone. */
/* A call, so that the object's BTF has the struct. */
static __noinline __u16 copy_request(const struct leaving *h, const struct setup *setup, struct begun_answer *told)
{
	struct unread_key key;
	struct unread *unread;
	__u32 payload;
	__u16 length = 0;

	if (!h || !setup || !told)
		return 0;
	key = unread_key_of(h, 0);
	unread = enter_unread(&key);
	if (!unread)
		return 0;
	payload = payload_of(unread);
	/* Its client may have closed behind it. One byte is no request: the dispatcher gives whole ones. */
	if (payload && setup->answers.taken - unread->seq - payload <= 1 &&
	    !bpf_probe_read_kernel(told->request, sizeof(told->request), unread->packet))
		length = unread->length;
	leave_unread(unread);
	return length;
}

/*
 * An answer begins in this packet, whose payload stands at `payload_at`, and has a body, until close
 * perhaps, `setup->answers.remaining` of which is still to come.
 */
/* Not static: the verifier walks it once. */
__noinline int tell_begun(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key,
			  struct setup *setup, __u32 payload_at)
{
	__u32 zero = 0, length;
	struct protection *protection = bpf_map_lookup_elem(&protecting, &zero);
	struct tcp_sock *full = sending_socket(skb);
	struct begun_answer *told;

	if (!h || !key || !setup || !protection || !protection->from || !full || setup->origin || setup->before)
		return 0;
	length = skb->len - payload_at;
	if (setup->answers.remaining + length < protection->from)
		return 0;
	told = bpf_ringbuf_reserve(&begun, sizeof(*told), 0);
	if (!told)
		return 0;
	told->key = *key;
	told->dispatcher = setup->dispatcher;
	told->epoch = setup->epoch;
	told->length = setup->answers.remaining + length;
	told->at = bpf_ntohl(h->tcp.seq);
	told->clock_offset = full->tsoffset + setup->clock_shift;
	told->answer = setup->answers.finished + 1;
	__builtin_memset(told->pad, 0, sizeof(told->pad));
	if (length > BEGUN_ROOM)
		length = BEGUN_ROOM;
	barrier_var(length);
	told->head_length = length;
	if (!length || length > BEGUN_ROOM || bpf_skb_load_bytes(skb, payload_at, told->head, length))
		told->head_length = 0;
	told->request_length = copy_request(h, setup, told);
	/* The daemon looks by itself now and then: most answers are over by then. */
	bpf_ringbuf_submit(told, bpf_ringbuf_query(&begun, BPF_RB_AVAIL_DATA) > BEGUN_BYTES / 2 ? BPF_RB_FORCE_WAKEUP :
												  BPF_RB_NO_WAKEUP);
	setup->saved |= SAVED_TOLD;
	count_event(EVENT_BEGUN);
	return 0;
}

/* Does the server close in the midst of an answer that may outlive it? */
static __always_inline bool closes_in_midst(const struct setup *setup, const struct leaving *h)
{
	return setup->saved & SAVED_TOLD && h->tcp.flags & TCP_FIN && setup->state == SETUP_CONFIRMED &&
	       setup->answers.phase == ANSWER_BODY;
}

/*
 * The client need not hear of it yet: its dispatcher does, as of a server that has closed and owes
 * an answer (handoff.md 7.2). The socket repeats its FIN, and so the word of it.
 */
static __noinline int tell_cut_off(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup,
				   __u32 payload)
{
	if (!h || !setup)
		return TC_ACT_UNSPEC;
	if (payload)
		return set_flags(skb, h->tcp.offset, h->tcp.flags, h->tcp.flags & ~TCP_FIN) ? TC_ACT_UNSPEC :
											     drop(DROP_REWRITE);
	if (!turn_round(skb, h, TCP_ACK))
		return drop(DROP_REWRITE);
	return tell_vacated(skb, h, setup, setup->answers.taken);
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
