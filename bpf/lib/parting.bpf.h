/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * parting: a spliced flow leaves its server before the request that starts at `start`, if the
 * server owes nothing and the client has all (docs/protocol/splice.md 5.5): what an owner's
 * agent decides elsewhere (split.bpf.h). The daemon asks, by a program of its own, so that no
 * packet of the server's comes between the answer and what follows from it.
 */
#pragma once

#include "told.bpf.h"

/* Further away no end of a body is believed to be here already: numbers wrap. */
#define BODY_REACH (1u << 30)

/* Why it cannot leave; 0: it can, and `end` is where its last answer ends, in the server's numbers. */
static __always_inline enum held why_kept(const struct overheard *its, const struct spliced *to,
					  const struct parting *parting, __u32 *end)
{
	const struct answers *answers = &its->answers;
	__u32 heard = parting->heard - to->splice.ahead;
	__u64 counted = counted_ahead(answers);
	__u16 finished = answers->finished;

	*end = answers->next;
	if (its->closes || answers->flags & ANSWER_CLOSING || answers->phase >= ANSWER_ENDLESS)
		return HELD_CLOSING;
	/* The client has had more than has come by here: or was not asked for. */
	if ((__s32)(heard - *end) > 0 && heard - *end > counted)
		return HELD_CLOSING;
	if ((__s16)(finished - (__u16)parting->requests) > 0)
		return HELD_CLOSING;
	/* What has not come by here has come to the client, if that says so. */
	if (answers->phase == ANSWER_BODY && counted < BODY_REACH) {
		*end += counted;
		finished++;
	} else if (!is_between_answers(answers)) {
		return HELD_ANSWERING;
	}
	if (finished != (__u16)parting->requests || (__s32)(to->server_ack - parting->start) < 0)
		return HELD_ANSWERING;
	return heard == *end ? 0 : HELD_UNACKED;
}

/* As why_kept(), and it has left. Only who has it `busy` decides. */
static __always_inline enum held part(struct overheard *its, const struct spliced *to, const struct parting *parting)
{
	enum held reason;
	__u32 end;

	/* The daemon that asked before has not lived to make use of it. */
	if (its->parted)
		return its->start == parting->start ? 0 : HELD_CLOSING;
	reason = why_kept(its, to, parting, &end);
	if (reason)
		return reason;
	its->start = parting->start;
	its->end = end + to->splice.ahead;
	its->parted = 1;
	count_event(EVENT_GIVEN_UP);
	return 0;
}

/* For BPF_PROG_RUN. Returns enum held; 0: it has left. */
SEC("syscall")
int part_flow(struct parting *parting)
{
	struct flow_key key = parting->key;
	struct spliced *to = bpf_map_lookup_elem(&splices, &key);
	struct overheard *its = bpf_map_lookup_elem(&overheard, &key);
	enum held reason;
	__u32 end;

	/* Nobody here has heard its answers. */
	if (!to || !its)
		return HELD_CLOSING;
	if (parting->told != parting->start)
		note_told(&its->told, parting->told);
	/* Asked again and again, it seldom keeps a packet waiting. */
	reason = why_kept(its, to, parting, &end);
	if (!its->parted && reason && reason != HELD_CLOSING)
		return reason;
	if (!take_overheard(its))
		return HELD_ANSWERING;
	reason = part(its, to, parting);
	leave_overheard(its);
	parting->end = its->end;
	parting->clock = its->clock;
	return reason;
}
