/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* node: what the programs know of the host they run on. */
#pragma once

/* This node itself; changed live by its daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} node SEC(".maps");

static __always_inline struct node *this_node(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&node, &zero);
}

/* The clock that the cluster's nodes share. */
static __always_inline __u64 cluster_time_ns(void)
{
	struct node *self = this_node();

	return bpf_ktime_get_ns() + (self ? self->clock_offset_ns : 0);
}
