/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* outer: the encapsulation put in front of a packet, or in the place of another one. */
#pragma once

#include "encapsulation.bpf.h"

/* A next hop is looked up anew after this long. */
#define NEXT_HOP_LIFETIME_NS 1000000000ull

#define AF_INET 2

/* All that goes in front of the inner IP packet. */
struct new_head {
	__u16 alignment;
	struct ethhdr ethernet;
	struct encapsulation encapsulation;
};

/* Puts the new head in the place of the one that is there. */
static __always_inline bool replace_head(context_t *ctx, struct new_head *head)
{
	if (context_store_head(ctx, &head->ethernet, sizeof(struct ethhdr) + sizeof(struct encapsulation))) {
		count_drop(DROP_REWRITE);
		return false;
	}
	return true;
}

/* Grows the packet, and puts the new head in place of its Ethernet header. */
static __always_inline bool encapsulate(context_t *ctx, struct new_head *head)
{
	if (context_grow(ctx)) {
		count_drop(DROP_REWRITE);
		return false;
	}
	return replace_head(ctx, head);
}
