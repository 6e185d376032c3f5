/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * sent: the latest of clients' packets that have gone to each dispatcher, in a ring for each.
 * When one is found dead, what it has had since it was heard goes to others, once more
 * (core/src/membership/replay.rs).
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SENT_ENTRIES);
	__type(key, __u32);
	__type(value, struct sent);
} sent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DISPATCHERS_MAX);
	__type(key, __u32);
	__type(value, struct sent_ring);
} sent_rings SEC(".maps");

/* A packet of `length` bytes behind its Ethernet header, as it came. */
static __noinline void keep_sent(context_t *ctx, __u32 length, __u32 slot)
{
	struct sent_ring *ring = bpf_map_lookup_elem(&sent_rings, &slot);
	__u32 start = length, end = 0, turn, place;
	struct sent *entry;

	if (!ring || !ring->entries)
		return;
	turn = __sync_fetch_and_add(&ring->turn, 1);
	place = ring->first + (turn & (ring->entries - 1));
	entry = bpf_map_lookup_elem(&sent, &place);
	if (!entry)
		return;
	if (length > SENT_START) {
		start = SENT_START;
		end = length - SENT_START;
	}
	if (end > SENT_END)
		end = SENT_END;
	/* Bounds that the verifier believes: not those of 16 bits, which it would have to be told of again. */
	barrier_var(start);
	barrier_var(end);
	if (start < sizeof(struct iphdr) || start > SENT_START || end > SENT_END)
		return;
	entry->at_ns = 0;
	barrier();
	if (context_load(ctx, sizeof(struct ethhdr), entry->start, start))
		return;
	if (end && context_load(ctx, sizeof(struct ethhdr) + length - end, entry->end, end))
		return;
	entry->turn = turn;
	entry->slot = slot;
	entry->start_length = start;
	entry->end_length = end;
	barrier();
	entry->at_ns = bpf_ktime_get_coarse_ns();
}
