/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * done: what dispatchers are told by the daemon. One that was answered HELD, once, when to ask
 * again (handoff.md 5.3); and the one that has a flow, where an answer has ended, so that a
 * backend which dies then has owed nothing, and everybody knows (9.1a). The latter costs a
 * datagram: of few answers it is said of each, of many of some.
 */
#pragma once

/* One in this time on average, */
#define ALLOWED_NS 1000000ull
/* and so many at once. */
#define ALLOWED_MAX 64

/* To the daemon: of this setup. `wakeup`: is it to hear of it at once? */
static __always_inline void say_done(const struct flow_key *key, const struct setup *setup, struct done *done,
				     __u64 wakeup)
{
	done->key = *key;
	if (setup->origin)
		done->key.client_port = setup->origin;
	done->dispatcher = setup->dispatcher;
	done->end = setup->answers.next;
	bpf_ringbuf_output(&dones, done, sizeof(*done), wakeup);
}

static __noinline int tell_done(const struct flow_key *key, struct setup *setup)
{
	__u32 zero = 0;
	struct done *done = bpf_map_lookup_elem(&new_done, &zero);

	if (!key || !setup || !done)
		return 0;
	setup->waiting = 0;
	done->meta = setup->meta;
	done->meta.kind = META_DONE;
	done->meta.start = bpf_htonl(setup->wanted);
	/* A client waits. */
	say_done(key, setup, done, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline bool is_allowed(void)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 zero = 0;
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &zero);

	if (!allowance)
		return false;
	if (now - allowance->at_ns > ALLOWED_NS) {
		__u64 earned = (now - allowance->at_ns) / ALLOWED_NS + allowance->left;

		allowance->left = earned < ALLOWED_MAX ? earned : ALLOWED_MAX;
		allowance->at_ns = now;
	}
	if (!allowance->left)
		return false;
	allowance->left--;
	return true;
}

/* At egress: an answer ends in this segment. */
static __noinline int tell_answered(const struct flow_key *key, const struct setup *setup)
{
	__u32 zero = 0;
	struct done *done = bpf_map_lookup_elem(&new_done, &zero);

	if (!key || !setup || !done || !is_allowed())
		return 0;
	done->meta = setup->meta;
	done->meta.kind = META_ANSWERED;
	done->meta.start = bpf_htonl(setup->answers.taken);
	done->meta.requests = bpf_htons(setup->answers.finished);
	done->meta.value = bpf_htonl(setup->answers.next);
	say_done(key, setup, done, BPF_RB_NO_WAKEUP);
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
