/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * attended: whether there are other dispatchers, and whether this one's daemon sees to its
 * records, so that it keeps flows (docs/protocol/replication.md 1.2).
 */
#pragma once

#include "heartbeat.bpf.h"

static __always_inline bool is_among_others(void)
{
	struct node *self = this_node();

	return self && self->among;
}

static __always_inline struct presence *own_presence(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&presence, &zero);
}

/* Its presence, as long as its daemon sees to its records. */
static __always_inline struct presence *attended(void)
{
	struct presence *us = own_presence();

	return us && bpf_ktime_get_coarse_ns() < us->until_ns ? us : NULL;
}

/* Without its daemon, or before the others know of it, it keeps nothing (1.2). */
static __always_inline bool is_fit(void)
{
	struct presence *us = attended();

	return us && us->says && us->says != PRESENCE_JOINING;
}
