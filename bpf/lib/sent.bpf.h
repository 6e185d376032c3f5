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
	struct sent *entry;
	__u32 turn, place;

	if (!ring || !ring->entries)
		return;
	turn = __sync_fetch_and_add(&ring->turn, 1);
	place = ring->first + (turn & (ring->entries - 1));
	entry = bpf_map_lookup_elem(&sent, &place);
	if (!entry)
		return;
	if (length > SENT_BYTES)
		length = SENT_BYTES;
	/* Bounds that the verifier believes: not those of 16 bits, which it would have to be told of again. */
	barrier_var(length);
	if (length < sizeof(struct iphdr) || length > SENT_BYTES)
		return;
	entry->at_ns = 0;
	barrier();
	if (context_load(ctx, sizeof(struct ethhdr), entry->packet, length))
		return;
	entry->turn = turn;
	entry->slot = slot;
	entry->length = length;
	barrier();
	entry->at_ns = bpf_ktime_get_coarse_ns();
}
