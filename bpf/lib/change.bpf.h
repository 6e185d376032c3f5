/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * change: how the daemon changes a flow's record while the data path goes on with it.
 * The daemon says what it has read and what that is to become; only the words that
 * differ are written, in place, and only if nothing that decides where packets go has
 * changed since. A whole record put in the place of another would take back what packets
 * have said meanwhile.
 */
#pragma once

/* Nothing interrupts who has it. A packet waits for a change for some microseconds, and then its client says it again. */
struct undisturbed {
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct undisturbed);
} undisturbed SEC(".maps");

#define FLOW_WORDS (sizeof(struct flow) / 4)
#define WORD_OF(field) (offsetof(struct flow, field) / 4)

/* What packets change all the time, and what decides nothing. */
static __always_inline bool is_telling(__u32 word)
{
	return (word >= WORD_OF(last_seq) && word < WORD_OF(pool)) ||
	       (word >= WORD_OF(syn_isn) && word < WORD_OF(created_ns)) ||
	       (word >= WORD_OF(last_seen_ns) && word < WORD_OF(object)) ||
	       (word >= WORD_OF(acked_ns) && word < WORD_OF(charge_us)) || word == WORD_OF(busy) ||
	       word == WORD_OF(window) || word == WORD_OF(lot);
}

/* Behind all others: who sees them sees the rest. */
static __always_inline bool is_last(__u32 word)
{
	return word == WORD_OF(marks) || word == WORD_OF(next);
}

static __always_inline bool is_unchanged(const struct flow *flow, const struct flow *before)
{
	const __u32 *now = (const __u32 *)flow, *then = (const __u32 *)before;
	__u32 difference = 0;

#pragma clang loop unroll(full)
	for (__u32 word = 0; word < FLOW_WORDS; word++)
		if (!is_telling(word))
			difference |= now[word] ^ then[word];
	return !difference;
}

static __always_inline void write_changes(struct flow *flow, const struct flow_change *change)
{
	const __u32 *before = (const __u32 *)&change->before, *after = (const __u32 *)&change->after;
	volatile __u32 *now = (volatile __u32 *)flow;

#pragma clang loop unroll(full)
	for (__u32 word = 0; word < FLOW_WORDS; word++)
		if (!is_last(word) && word != WORD_OF(busy) && before[word] != after[word])
			now[word] = after[word];
	/* One by one: packets mark the record without being `busy` with it. */
	__sync_fetch_and_and(&flow->marks, change->after.marks | ~change->before.marks);
	__sync_fetch_and_or(&flow->marks, change->after.marks & ~change->before.marks);
	__sync_val_compare_and_swap(&flow->next, change->before.next, change->after.next);
}

/* For BPF_PROG_RUN. Returns enum flow_changed. */
SEC("syscall")
int change_flow(struct flow_change *change)
{
	struct flow_key key = change->key;
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);
	__u32 zero = 0;
	struct undisturbed *us = bpf_map_lookup_elem(&undisturbed, &zero);
	int changed = FLOW_STALE;

	if (!flow)
		return FLOW_GONE;
	if (!us)
		return FLOW_STALE;
	bpf_spin_lock(&us->lock);
	if (__sync_bool_compare_and_swap(&flow->busy, 0, 1)) {
		if (is_unchanged(flow, &change->before)) {
			write_changes(flow, change);
			changed = FLOW_CHANGED;
		}
		leave_record(flow);
	}
	bpf_spin_unlock(&us->lock);
	return changed;
}
