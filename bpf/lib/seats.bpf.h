/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * seats: several connections of one flow on one backend. A flow that comes back to a
 * backend whose socket for it still repeats an earlier answer (older.bpf.h) needs another
 * socket, and there can be but one for a 4-tuple. So the new one's server sees another
 * client port, below 1024, where clients have none: its seat. Packets are renamed on
 * their way up, and on their way out (docs/protocol/handoff.md 6.8).
 *
 * A setup stands under its seat; that of the flow's own port says whether there are
 * others (`seated`), and that of a seat whose it is (`origin`). Both maps forget what was
 * used least: a port that `seats` names may have become another flow's seat, or nobody's.
 *
 * The functions that are not static are walked once by the verifier, not for every caller.
 */
#pragma once

#define SEAT_PORTS 1023
#define SEAT_TRIES 8
/* A connection that was set up so long ago has its socket by now, or none any more. */
#define SEAT_SETTLES_NS 1000000000ull

/* None yet: nobody writes it. It is too long for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct seats);
} new_seats SEC(".maps");

static __always_inline bool is_on_seat(const struct segment *segment)
{
	return segment->key.client_port != segment->client_port;
}

/* Is what stands under the segment's key its flow's? A port may be another flow's seat. */
static __always_inline bool is_flows(const struct setup *setup, const struct segment *segment)
{
	return setup->origin == (is_on_seat(segment) ? segment->client_port : 0);
}

/* Where the connection of that epoch sits, and since which epoch; 0: on its own port, for ever. */
__noinline __u32 find_seat(struct segment *segment, __u32 epoch)
{
	struct seats *all;
	__be16 port;
	__u32 from = 0;

	if (!segment)
		return 0;
	port = segment->client_port;
	segment->key.client_port = port;
	all = bpf_map_lookup_elem(&seats, &segment->key);
	if (!all)
		return 0;
	for (__u32 at = 0; at < SEATS_MAX && at < all->count; at++) {
		const struct seat *seat = &all->seats[at];

		if (is_before(epoch, seat->from) || (from && is_before(seat->from, from)))
			continue;
		from = seat->from;
		port = seat->port;
	}
	segment->key.client_port = port;
	return from;
}

/* The flow's own setup on that port; a port that it had once may be another flow's seat by now. */
static __always_inline struct setup *setup_on(struct segment *segment, __be16 port)
{
	struct setup *setup;

	segment->key.client_port = port;
	setup = bpf_map_lookup_elem(&setups, &segment->key);
	return setup && is_flows(setup, segment) ? setup : NULL;
}

static __always_inline bool gave_up_at(struct segment *segment, __be16 port, __u32 start)
{
	const struct setup *setup = setup_on(segment, port);

	return setup && is_given_up(setup) && setup->start == start;
}

/*
 * Where the older owner sits that gave the flow up before the request at `start`. Its
 * epoch says nothing: that of a GC may be above it (6.3), and a seat have been taken
 * since, for a request that was refused then.
 */
__noinline __u32 find_older(struct segment *segment, __u32 epoch, __u32 start)
{
	struct seats *all;
	__be16 own;

	if (!segment)
		return 0;
	own = segment->client_port;
	segment->key.client_port = own;
	all = bpf_map_lookup_elem(&seats, &segment->key);
	if (!all || gave_up_at(segment, own, start))
		return 0;
	for (__u32 at = 0; at < SEATS_MAX && at < all->count; at++)
		if (gave_up_at(segment, all->seats[at].port, start))
			return 0;
	return find_seat(segment, epoch);
}

/* What is on a port that the flow has had once. */
enum sitting {
	SITS_NOBODY = 0, /* or one that nobody needs any more */
	SITS_OLDER = 1, /* an older owner of the flow */
	SITS_STRANGER = 2, /* another flow */
};

static __always_inline enum sitting who_sits_on(struct segment *segment, __be16 port)
{
	const struct setup *setup;

	segment->key.client_port = port;
	setup = bpf_map_lookup_elem(&setups, &segment->key);
	if (setup && !is_flows(setup, segment))
		return SITS_STRANGER;
	return setup && is_older(setup) ? SITS_OLDER : SITS_NOBODY;
}

/* Whoever has sat there is gone: given up, or its socket has come and gone; and it passes nothing on. */
static __always_inline bool is_left(const struct setup *setup)
{
	return setup->origin && !is_relaying(setup) &&
	       (setup->state == SETUP_MOVED || bpf_ktime_get_coarse_ns() - setup->created_ns > SEAT_SETTLES_NS);
}

/* A port on which there is nobody; 0: not found. */
__noinline __u32 find_port(struct __sk_buff *skb, struct segment *segment, __u32 epoch)
{
	const struct setup *setup;
	__u32 at;

	if (!segment)
		return 0;
	at = (bpf_ntohs(segment->client_port) ^ epoch) * 0x9e3779b1u >> 16;
	for (__u32 try = 0; try < SEAT_TRIES; try++, at += 101) {
		segment->key.client_port = bpf_htons(1 + at % SEAT_PORTS);
		setup = bpf_map_lookup_elem(&setups, &segment->key);
		if ((setup && !is_left(setup)) || find_occupant(skb, segment).state)
			continue;
		if (setup)
			bpf_map_delete_elem(&setups, &segment->key);
		return segment->key.client_port;
	}
	return 0;
}

/*
 * The flow begins anew here, in a later epoch than any before: where shall it sit?
 * `alone`: there is no older owner, so nothing of earlier seats is needed; it goes back to
 * its own port, if that is free. Where all is taken, it sits as before.
 */
__noinline int take_seat(struct __sk_buff *skb, struct segment *segment, __u32 epoch, bool alone)
{
	struct seats *fresh, *all;
	struct flow_key flow;
	struct setup *first;
	__be16 was, port = 0;
	bool own_is_free;
	__u32 place, zero = 0;

	if (!segment)
		return 0;
	was = segment->key.client_port;
	flow = segment->key;
	flow.client_port = segment->client_port;
	first = bpf_map_lookup_elem(&setups, &flow);
	all = bpf_map_lookup_elem(&seats, &flow);
	own_is_free = who_sits_on(segment, segment->client_port) == SITS_NOBODY;
	if (own_is_free && (alone || !all)) {
		if (first)
			first->seated = 0;
		bpf_map_delete_elem(&seats, &flow);
		return 0;
	}
	if (!all) {
		fresh = bpf_map_lookup_elem(&new_seats, &zero);
		if (fresh)
			bpf_map_update_elem(&seats, &flow, fresh, BPF_ANY);
		all = bpf_map_lookup_elem(&seats, &flow);
		if (!all)
			goto none;
	}
	for (__u32 at = 0; at < SEATS_MAX && at < all->count; at++)
		if (all->seats[at].from == epoch) {
			segment->key.client_port = all->seats[at].port;
			return 0;
		}
	place = all->count;
	for (__u32 at = 0; at < SEATS_MAX && at < all->count; at++) {
		enum sitting sitting = who_sits_on(segment, all->seats[at].port);

		if (sitting == SITS_OLDER)
			continue;
		place = at;
		port = sitting == SITS_NOBODY ? all->seats[at].port : 0;
		if (port)
			break;
	}
	if (!port && own_is_free)
		port = segment->client_port;
	if (!port && place < SEATS_MAX)
		port = find_port(skb, segment, epoch);
	if (!port || place >= SEATS_MAX)
		goto none;
	all->seats[place].from = epoch;
	all->seats[place].port = port;
	if (place == all->count)
		all->count++;
	if (first)
		first->seated = 1;
	segment->key.client_port = port;
	count_event(EVENT_SEATED);
	return 0;
none:
	segment->key.client_port = was;
	return 0;
}
