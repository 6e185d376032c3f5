// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/*
 * softirq: how long processes have been interrupted by softirqs, for benches. A frame that a
 * process sends goes through all of the lab in such an interruption, other hosts' TCP with it, and
 * the kernel counts that as the process's own time (without CONFIG_IRQ_TIME_ACCOUNTING).
 */
#include "kernel.h"

/* When the one that runs began; 0: none does. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} began SEC(".maps");

/* Process -> nanoseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} interrupted SEC(".maps");

SEC("raw_tp/softirq_entry")
int softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	__u64 *at = bpf_map_lookup_elem(&began, &zero);

	if (at)
		*at = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/softirq_exit")
int softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0, process = bpf_get_current_pid_tgid() >> 32;
	__u64 *at = bpf_map_lookup_elem(&began, &zero);
	__u64 *sum, time;

	if (!at || !*at)
		return 0;
	time = bpf_ktime_get_ns() - *at;
	*at = 0;
	sum = bpf_map_lookup_elem(&interrupted, &process);
	if (sum)
		__sync_fetch_and_add(sum, time);
	else
		bpf_map_update_elem(&interrupted, &process, &time, BPF_NOEXIST);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
