/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * lots: which dispatcher has a packet. One table of lots stands for the live ones; a
 * packet draws its lot by turn, by chance or by its 4-tuple, and the daemon fills the
 * table as that asks for (core/src/membership/lots.rs). No state but a turn's count.
 */
#pragma once

#include "siphash.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct spraying);
} spraying SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lots);
} lots SEC(".maps");

/* Packets that have taken a turn on this CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} turn SEC(".maps");

/* A client's connection, as its own packets name it. */
struct four_tuple {
	__be32 client;
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
};

/* The same on every node that shares k0 and k1: core/src/membership/lots.rs has it too. */
static __always_inline __u32 hash_tuple(const struct spraying *how, const struct four_tuple *tuple)
{
	struct siphash_key key = { .k0 = how->k0, .k1 = how->k1 };
	__u64 words[2] = {
		(__u64)tuple->vip << 32 | tuple->client,
		(__u64)tuple->vip_port << 16 | tuple->client_port,
	};

	return siphash(&key, words, 2);
}

static __always_inline __u32 take_turn(__u32 batch)
{
	__u32 zero = 0;
	__u32 *taken = bpf_map_lookup_elem(&turn, &zero);

	if (!taken)
		return 0;
	return (*taken)++ / (batch ? batch : 1) + bpf_get_smp_processor_id();
}

/* A slot of the dispatchers map, or NO_DISPATCHER. */
static __always_inline __u32 draw_lot(const struct four_tuple *tuple)
{
	__u32 zero = 0, lot;
	struct spraying *how = bpf_map_lookup_elem(&spraying, &zero);
	struct lots *table = bpf_map_lookup_elem(&lots, &zero);

	if (!how || !table)
		return NO_DISPATCHER;
	switch (how->mode) {
	case SPRAY_BATCH:
		lot = take_turn(how->batch);
		break;
	case SPRAY_WORKLOAD:
		lot = bpf_get_prandom_u32();
		break;
	default:
		lot = hash_tuple(how, tuple);
	}
	return table->slots[lot & (LOTS - 1)];
}
