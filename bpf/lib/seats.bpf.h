/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * seats: several connections of one flow on one backend. A flow that comes back to a
 * backend whose socket for it still repeats an earlier answer (older.bpf.h) needs another
 * socket, and there can be but one for a 4-tuple. So the new one's server sees another
 * client port, below 1024, where clients have none: its seat. Packets are renamed on
 * their way up, and on their way out (docs/protocol/handoff.md 6.8).
 *
 * A setup stands under its seat; that of the flow's own port says whether there are
 * others (`seated`), and that of a seat whose it is (`origin`).
 */
#pragma once

#define SEATS_MAX 7
#define SEAT_PORTS 1023
#define SEAT_TRIES 8
/* A connection that was set up so long ago has its socket by now, or none any more. */
#define SEAT_SETTLES_NS 1000000000ull

struct seat {
	__u32 from; /* the epoch from which on the flow's packets are this one's */
	__be16 port;
	__u16 pad;
};

struct seats {
	__u32 count;
	struct seat seats[SEATS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct seats);
} seats SEC(".maps");

static __always_inline bool is_on_seat(const struct segment *segment)
{
	return segment->key.client_port != segment->client_port;
}

/* Where the connection of that epoch sits, and since which epoch; 0: on its own port, for ever. */
static __noinline __u32 find_seat(struct segment *segment, __u32 epoch)
{
	__be16 port = segment->client_port;
	struct seats *all;
	__u32 from = 0;

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

/* Is there nothing on it that somebody needs still? */
static __always_inline bool is_free(struct segment *segment, __be16 port)
{
	const struct setup *setup;

	segment->key.client_port = port;
	setup = bpf_map_lookup_elem(&setups, &segment->key);
	return !setup || setup->state != SETUP_OLDER;
}

/* Whoever has sat there is gone: given up, or its socket has come and gone. */
static __always_inline bool is_left(const struct setup *setup)
{
	return setup->origin && (setup->state == SETUP_MOVED ||
				 bpf_ktime_get_coarse_ns() - setup->created_ns > SEAT_SETTLES_NS);
}

/* A port on which there is nobody; 0: not found. */
static __noinline __u32 find_port(struct __sk_buff *skb, struct segment *segment, __u32 epoch)
{
	__u32 at = (bpf_ntohs(segment->client_port) ^ epoch) * 0x9e3779b1u >> 16;
	const struct setup *setup;

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
 * The flow begins anew here, in a later epoch than any before: where shall it sit? Its own
 * port first. `alone`: there is no older owner. -1: all seats are
 * taken.
 */
static __noinline int take_seat(struct __sk_buff *skb, struct segment *segment, __u32 epoch, bool alone)
{
	struct flow_key flow = segment->key;
	struct seats fresh = {}, *all;
	struct setup *first;
	__u32 place = SEATS_MAX;
	__be16 was = segment->key.client_port, port = 0;

	flow.client_port = segment->client_port;
	first = bpf_map_lookup_elem(&setups, &flow);
	if (!first)
		return 0;
	all = bpf_map_lookup_elem(&seats, &flow);
	/* Whoever comes alone has nobody before it: nothing of earlier seats is needed. */
	if (is_free(segment, segment->client_port) && (alone || !all)) {
		first->seated = 0;
		bpf_map_delete_elem(&seats, &flow);
		return 0;
	}
	if (!first->seated || !all) {
		bpf_map_update_elem(&seats, &flow, &fresh, BPF_ANY);
		all = bpf_map_lookup_elem(&seats, &flow);
		if (!all)
			goto none;
	}
	for (__u32 at = 0; at < SEATS_MAX && at < all->count; at++)
		if (all->seats[at].from == epoch) {
			segment->key.client_port = all->seats[at].port;
			return 0;
		}
	for (__u32 at = 0; at < SEATS_MAX && at < all->count; at++)
		if (is_free(segment, all->seats[at].port)) {
			place = at;
			port = all->seats[at].port;
			break;
		}
	if (is_free(segment, segment->client_port))
		port = segment->client_port;
	if (place == SEATS_MAX)
		place = all->count;
	if (!port)
		port = find_port(skb, segment, epoch);
	if (!port || place >= SEATS_MAX)
		goto none;
	all->seats[place].from = epoch;
	all->seats[place].port = port;
	if (place == all->count)
		all->count++;
	first->seated = 1;
	segment->key.client_port = port;
	count_event(EVENT_SEATED);
	return 0;
none:
	segment->key.client_port = was;
	return -1;
}
