/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * setup: what a backend remembers of a flow, so that no request runs twice, and
 * so that it knows where its answers end.
 */
#pragma once

/* A setup is put together here: it is too long for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct setup);
} new_setup SEC(".maps");

/* What a setup keeps when it was only its server that began anew. */
struct kept {
	__u16 finished;
	__u8 unread;
	__be32 before;
	__u32 first;
	__u32 before_epoch;
	__u32 before_start;
};

/* RFC 1982: epochs are compared as serial numbers. */
static __always_inline bool is_before(__u32 epoch, __u32 other)
{
	return (__s32)(epoch - other) < 0;
}

/*
 * Its server has closed since, and another request has been, or will be, the first of a
 * new connection of the same epoch (handoff.md 7.3).
 */
static __always_inline bool is_reborn(const struct setup *setup, const struct meta *meta)
{
	return setup->epoch == bpf_ntohl(meta->epoch) && is_before(bpf_ntohl(meta->start), setup->start);
}

/* Where the request starts that `meta` sets up: a reborn one's is known here alone. */
static __always_inline __u32 start_of(const struct setup *known, const struct meta *meta)
{
	return known && is_reborn(known, meta) ? known->start : bpf_ntohl(meta->start);
}

/*
 * The flow is this epoch's from now on. Its answers can be followed only if this is
 * the packet that it is rebuilt from: that one acknowledges the byte before the first.
 */
static __noinline int remember(const struct segment *segment, struct setup *known, const struct meta *meta,
			       enum setup_state state, __be32 dispatcher)
{
	struct setup *setup;
	bool own = segment && segment->key.client_port == segment->client_port;
	__u8 seated = known ? known->seated : 0;
	__u32 start;
	struct kept kept = {};
	__u32 zero = 0;

	if (!segment || !meta)
		return 0;
	start = start_of(known, meta);
	if (state == SETUP_TRIED)
		kept = (struct kept){
			.before = meta->value,
			.first = segment->ack,
			.before_epoch = bpf_ntohl(meta->epoch),
			.before_start = bpf_ntohl(meta->start),
		};
	/* Its dispatcher goes on counting, and the owner before may have one to go on with. Who rebuilds it has taken it. */
	if (known && (known->state == SETUP_VACANT || known->state == SETUP_TRIED) &&
	    known->epoch == bpf_ntohl(meta->epoch))
		kept = (struct kept){
			.finished = known->answers.finished,
			.unread = known->answers.unread,
			.before = known->before,
			.first = known->before ? known->first : kept.first,
			.before_epoch = known->before_epoch,
			.before_start = known->before_start,
		};
	/* Another socket takes its place. */
	if (known && known->parked)
		bpf_map_delete_elem(&parked, &segment->key);
	/* It was forgotten, and its seats were not. */
	if (!known && own)
		seated = !!bpf_map_lookup_elem(&seats, &segment->key);
	setup = bpf_map_lookup_elem(&new_setup, &zero);
	if (!setup)
		return 0;
	__builtin_memset(setup, 0, sizeof(*setup));
	setup->meta = *meta;
	setup->epoch = bpf_ntohl(meta->epoch);
	setup->start = setup->begun = start;
	setup->state = state;
	setup->dispatcher = dispatcher;
	setup->created_ns = bpf_ktime_get_coarse_ns();
	setup->seated = seated;
	setup->origin = own ? 0 : segment->client_port;
	setup->answers.phase = state == SETUP_TRIED ? ANSWER_STATUS : ANSWER_LOST;
	setup->answers.next = setup->end = segment->ack;
	setup->answers.taken = start;
	setup->answers.finished = kept.finished;
	setup->asked = kept.finished + 1;
	setup->answers.unread = kept.unread;
	/* What a reborn one begins with is not what `meta` tells of. */
	setup->answers.flags = meta->tcp_options & CARE_HEAD && start == bpf_ntohl(meta->start) ? ANSWER_TO_HEAD : 0;
	setup->before = kept.before;
	setup->first = kept.first;
	setup->before_epoch = kept.before_epoch;
	setup->before_start = kept.before_start;
	/*
	 * In place when there is one: an entry of an LRU map costs more to replace than to write. And at once: a copy
	 * may come by another CPU, and would take what is not there yet for another flow's.
	 */
	if (known)
		__builtin_memcpy(known, setup, sizeof(*setup));
	else
		bpf_map_update_elem(&setups, &segment->key, setup, BPF_ANY);
	return 0;
}

/* Has it a socket here, as far as is known? */
static __always_inline bool is_set_up(const struct setup *setup)
{
	return setup->state == SETUP_TRIED || setup->state == SETUP_CONFIRMED;
}

/* An owner before it that has not retired by then is gone. */
#define RELAY_NS 60000000000ull

/*
 * Has the client had all of its range, and has the owner before it not said that it has
 * retired? That one hears the client by this one alone (handoff.md 6.5).
 */
static __always_inline bool is_relaying(const struct setup *setup)
{
	return setup->state == SETUP_MOVED && setup->before &&
	       bpf_ktime_get_coarse_ns() - setup->heard_ns < RELAY_NS;
}

/* Would another connection in its place take away what somebody has yet to hear? */
static __always_inline bool is_older(const struct setup *setup)
{
	return setup->state == SETUP_OLDER || is_relaying(setup);
}

static __always_inline bool is_same_start(const struct setup *setup, const struct meta *meta)
{
	return setup->epoch == bpf_ntohl(meta->epoch) && setup->start == bpf_ntohl(meta->start);
}

/* Has another backend the flow, from its `start` on? */
static __always_inline bool is_given_up(const struct setup *setup)
{
	return setup->state == SETUP_MOVED || setup->state == SETUP_OLDER;
}

/*
 * Does its client's connection outlive a server that closes while nothing is owed? Whose client asks
 * ahead its dispatcher knows, but where it has heard of an interim answer: that looked as if it were one
 * (handoff.md 7.1a).
 */
static __always_inline bool is_to_outlive(const struct setup *setup)
{
	return setup->meta.tcp_options & CARE_OUTLIVE && !setup->ahead;
}

/*
 * Is a closing of its server's, which has answered all that it has taken, not to be heard by the
 * client? So says its dispatcher, or has a request that waits to go elsewhere shown that nothing
 * else was given to the server (handoff.md 7.1, 7.1b).
 */
static __always_inline bool outlives(const struct setup *setup)
{
	const struct answers *answers = &setup->answers;

	return is_to_outlive(setup) ||
	       (setup->was_wanted && setup->wanted == answers->taken && setup->wanted_after == answers->finished);
}

/* Does it bring the first byte of the request at `start`? */
static __always_inline bool starts_request(const struct segment *segment, __u32 start)
{
	return segment->seq == start && segment->payload && !(segment->flags & TCP_RST);
}

/*
 * A request begins there. Of one that comes late it is not known which it is; what has been taken before the
 * latest answer ended comes twice.
 */
static __always_inline void note_begun(struct setup *setup, __u32 start)
{
	if (start == setup->begun || (setup->answers.finished && is_before(start, setup->answers.taken)))
		return;
	if (setup->asked != setup->answers.finished)
		setup->ahead = 1;
	setup->asked++;
	if (is_before(setup->begun, start))
		setup->begun = start;
}

/* The client asks ahead from here on (handoff.md 7.1a). */
static __always_inline void stop_outliving(struct setup *known, const struct meta *meta)
{
	if (known->meta.tcp_options & ~meta->tcp_options & CARE_OUTLIVE && known->meta.epoch == meta->epoch &&
	    known->meta.start == meta->start)
		known->meta = *meta;
}
