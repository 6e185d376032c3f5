/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * keeper: of several dispatchers, which one decides about a flow, and what the others do
 * with its packets (docs/protocol/replication.md). A packet that the flow's record here
 * explains is forwarded; all others are passed to the keeper, as they came.
 *
 * The keeper's name is in the lots, dealt as a spray deals them by flow; NO_DISPATCHER
 * there is this node itself.
 */
#pragma once

#include "lots.bpf.h"
#include "to_dispatcher.bpf.h"

/* So many lots on, somebody else has one: unless this dispatcher is all alone. */
#define LOTS_TO_TRY 16

/* Without its daemon, or before that has caught up, it keeps nothing (1.2). */
static __always_inline bool is_fit(void)
{
	__u32 zero = 0;
	struct presence *us = bpf_map_lookup_elem(&presence, &zero);

	return us && us->says && bpf_ktime_get_coarse_ns() < us->until_ns;
}

/* A slot of the dispatchers map, or NO_DISPATCHER: this one. */
static __noinline __u32 keeper_of(const struct segment *segment)
{
	__u32 zero = 0, lot, slot;
	struct spraying *how = bpf_map_lookup_elem(&spraying, &zero);
	struct lots *table = bpf_map_lookup_elem(&lots, &zero);
	struct four_tuple tuple;

	if (!segment || !how || !table)
		return NO_DISPATCHER;
	tuple = (struct four_tuple){
		.client = segment->client,
		.vip = segment->vip,
		.client_port = segment->key.client_port,
		.vip_port = segment->key.vip_port,
	};
	lot = hash_tuple(how, &tuple);
	slot = table->slots[lot & (LOTS - 1)];
	if (slot != NO_DISPATCHER || is_fit())
		return slot;
	for (int step = 1; step < LOTS_TO_TRY && slot == NO_DISPATCHER; step++)
		slot = table->slots[(lot + step) & (LOTS - 1)];
	return slot;
}

/* To the keeper in that slot, as it came. */
static __noinline int pass_to_keeper(context_t *ctx, const struct segment *segment, __u32 slot)
{
	struct dispatcher *to = bpf_map_lookup_elem(&dispatchers, &slot);
	__u64 now = bpf_ktime_get_coarse_ns();
	struct iphdr ip = {};

	if (!segment || !to || !to->name[0]) {
		count_drop(DROP_NO_DISPATCHER);
		return VERDICT_DROP;
	}
	if (now - to->resolved_ns > NEXT_HOP_LIFETIME_NS && !resolve_dispatcher(ctx, to, now))
		return VERDICT_DROP;
	ip.saddr = segment->client;
	ip.daddr = segment->vip;
	ip.tot_len = bpf_htons(segment->ip_length);
	if (!enclose(ctx, to, &ip, segment->key.client_port,
		     (__u32)segment->key.vip_port << 16 | segment->key.client_port, META_PASSED))
		return VERDICT_DROP;
	count_event(EVENT_PASSED);
	return context_send(ctx, to->ifindex);
}

/* Does the record here say where this packet goes, whoever keeps the flow (2.1)? */
static __always_inline bool explains(const struct flow *flow, const struct segment *segment)
{
	struct backend *backend;
	__u32 slot;

	if (!flow || flow->state != FLOW_ESTABLISHED || !(segment->flags & TCP_ACK) ||
	    segment->flags & (TCP_SYN | TCP_FIN | TCP_RST) || reaches_beyond(flow, segment) ||
	    !is_near(segment->seq + segment->payload, flow->last_seq, PLAUSIBLE_SEQ) ||
	    !is_near(segment->ack, flow->last_ack, PLAUSIBLE_ACK))
		return false;
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	return backend && !backend->silent;
}
