/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * sieve: of the flows that the data path has said something is to be told of (MARK_STAYED), most of
 * which are over by the time that the daemon looks, those that are not. All in one call: to read a
 * record costs the daemon more than to have placed it.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sieve);
} sieving SEC(".maps");

/* Will anybody else want to know of it? As is_of_use() in dispatcher/src/records/stays.rs. */
static __always_inline bool is_of_use(const struct flow *flow)
{
	return !(flow->marks & MARK_ENTRUSTED) || flow->state == FLOW_ESTABLISHED ||
	       flow->last_seen_ns > flow->created_ns + CLOSES_WITHIN_NS;
}

static long sieve_flow(__u32 at, struct sieve **sieve)
{
	struct flow *flow;

	if (at >= SIEVE_KEYS)
		return 1;
	flow = bpf_map_lookup_elem(&flows, &(*sieve)->keys[at]);
	(*sieve)->keep[at] = flow && flow->marks & MARK_STAYED && is_of_use(flow);
	return 0;
}

/* For BPF_PROG_RUN: of the keys in the map. */
SEC("syscall")
int sieve_flows(void *unused)
{
	__u32 zero = 0;
	struct sieve *sieve = bpf_map_lookup_elem(&sieving, &zero);

	if (sieve)
		bpf_loop(sieve->count, sieve_flow, &sieve, 0);
	return 0;
}
