/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* done: a dispatcher that was answered HELD is told, once, when to ask again (handoff.md 5.3). */
#pragma once

static __noinline int tell_done(const struct flow_key *key, struct setup *setup)
{
	__u32 zero = 0;
	struct done *done = bpf_map_lookup_elem(&new_done, &zero);

	if (!key || !setup || !done)
		return 0;
	setup->waiting = 0;
	done->key = *key;
	if (setup->origin)
		done->key.client_port = setup->origin;
	done->dispatcher = setup->dispatcher;
	done->meta = setup->meta;
	done->meta.start = bpf_htonl(setup->wanted);
	done->end = setup->answers.next;
	bpf_ringbuf_output(&dones, done, sizeof(*done), 0);
	return 0;
}

/* At egress: its answer was not over. */
static __always_inline void tell_if_answered(const struct flow_key *key, struct setup *setup)
{
	if (setup->waiting == HELD_ANSWERING &&
	    (is_between_answers(&setup->answers) || setup->answers.phase >= ANSWER_ENDLESS))
		tell_done(key, setup);
}

/* At ingress: the client had not acknowledged it. */
static __always_inline void tell_if_acknowledged(const struct segment *segment, struct setup *setup)
{
	if (setup->waiting == HELD_UNACKED && !is_before(segment->ack, setup->answers.next))
		tell_done(&segment->key, setup);
}
