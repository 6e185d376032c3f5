/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* counters: every drop under its reason, every event under its name, per CPU. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASON_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENT_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} events SEC(".maps");

static __always_inline void count_drop(enum drop_reason reason)
{
	__u32 index = reason;
	__u64 *counter = bpf_map_lookup_elem(&drops, &index);

	if (counter)
		(*counter)++;
}

static __always_inline void count_event(enum event event)
{
	__u32 index = event;
	__u64 *counter = bpf_map_lookup_elem(&events, &index);

	if (counter)
		(*counter)++;
}
