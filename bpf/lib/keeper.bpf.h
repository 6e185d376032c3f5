/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * keeper: of several dispatchers, which one decides about a flow, and what the others do
 * with its packets (docs/protocol/replication.md). A packet that the flow's record here
 * explains is forwarded; all others are passed to the keeper, as they came.
 *
 * The keeper's name is in the lots, dealt as a spray deals them by flow; NO_DISPATCHER
 * there is this node itself. Of flows that are another sub-cluster's [SPLICE06 8] there is no
 * record here, and in the lots not the keeper, but some member of that one (clause 9).
 */
#pragma once

#include "lots.bpf.h"
#include "sent.bpf.h"
#include "to_dispatcher.bpf.h"

/*
 * Of so many lots somebody else has one: unless this dispatcher is all alone. They are of one
 * sub-cluster (BUNDLE in core/src/membership/subclusters.rs).
 */
#define LOTS_TO_TRY 16

/* Views of who keeps what differ for a moment: then a packet may go to and fro (2.3). */
#define PASSES_MAX 4

/* How a client's packet came here. */
struct passage {
	__be32 from; /* the dispatcher that has passed it; 0: none */
	__u8 times;
	__u8 by_joining; /* that one keeps nothing yet */
	__u8 in_trust; /* it has placed it; what it says of it is on the bench */
	__u8 again; /* it had been sent to one that has died, and may be late */
};

/* Are there flows that only others have records of? */
static __always_inline bool is_in_sub_cluster(void)
{
	struct node *self = this_node();

	return self && self->among == AMONG_SUB_CLUSTERS;
}

/* A slot of the dispatchers map, or NO_DISPATCHER: this one. */
static __always_inline __u32 keeper_by_lot(__u32 lot)
{
	__u32 zero = 0, slot;
	struct lots *table = bpf_map_lookup_elem(&lots, &zero);

	if (!table)
		return NO_DISPATCHER;
	slot = table->slots[lot & (LOTS - 1)];
	if (slot != NO_DISPATCHER || is_fit())
		return slot;
	for (int step = 1; step < LOTS_TO_TRY && slot == NO_DISPATCHER; step++)
		slot = table->slots[(lot ^ step) & (LOTS - 1)];
	return slot;
}

static __always_inline __u32 lot_of(const struct four_tuple *tuple)
{
	__u32 zero = 0;
	struct spraying *how = bpf_map_lookup_elem(&spraying, &zero);

	return how ? hash_tuple(how, tuple) & (LOTS - 1) : 0;
}

static __always_inline struct four_tuple tuple_of(const struct segment *segment)
{
	return (struct four_tuple){
		.client = segment->client,
		.vip = segment->vip,
		.client_port = segment->key.client_port,
		.vip_port = segment->key.vip_port,
	};
}

/* A hash, and so drawn once: the record keeps it for the packets that follow. */
static __noinline __u32 lot_of_segment(const struct segment *segment, struct flow *flow)
{
	struct four_tuple tuple;
	__u32 lot;

	if (!segment)
		return 0;
	if (flow && flow->lot)
		return flow->lot - 1;
	tuple = tuple_of(segment);
	lot = lot_of(&tuple);
	if (flow)
		flow->lot = lot + 1;
	return lot;
}

/* Are the records of who is in that slot kept elsewhere? */
static __always_inline bool is_elsewhere(__u32 slot)
{
	struct dispatcher *to;

	if (!is_in_sub_cluster())
		return false;
	to = bpf_map_lookup_elem(&dispatchers, &slot);
	return to && to->elsewhere;
}

/*
 * Without a daemon here, is there nobody else who could decide about the flow? Not static: the
 * verifier walks it once.
 */
__noinline int is_alone(const struct segment *segment)
{
	if (!segment)
		return 0;
	return !is_among_others() || (keeper_by_lot(lot_of_segment(segment, NULL)) == NO_DISPATCHER && !is_fit());
}

/* It has given away what it kept: to somebody who may not know of that yet. */
static __always_inline bool is_leaving(void)
{
	struct presence *us = own_presence();

	return us && us->says == PRESENCE_LEAVING;
}

/* Whether the one in that slot, which keeps the flow as far as is known here, leaves it to us (2.3). */
static __always_inline bool is_left_to_us(const struct passage *how, __u32 slot)
{
	struct dispatcher *keeper;

	if (!how->from || how->by_joining || is_leaving())
		return false;
	keeper = bpf_map_lookup_elem(&dispatchers, &slot);
	return keeper && !keeper->elsewhere && mapped_ipv4(keeper->addr) == how->from;
}

/* A packet as it came, to the dispatcher in that slot: how often it has been passed before is in `says`. */
static __always_inline int pass(context_t *ctx, const struct iphdr *ip, __u32 slot, struct wrapping *says)
{
	struct dispatcher *to = bpf_map_lookup_elem(&dispatchers, &slot);

	if (!ip || !says || !to || !to->name[0] || bpf_ntohl(says->value) >= PASSES_MAX) {
		count_drop(DROP_NO_DISPATCHER);
		return VERDICT_DROP;
	}
	if (!knows_way_to(ctx, to))
		return VERDICT_DROP;
	says->kind = META_PASSED;
	says->reason |= is_fit() ? 0 : PASSED_BY_JOINING;
	if (!enclose(ctx, to, ip, says))
		return VERDICT_DROP;
	count_event(EVENT_PASSED);
	return context_send(ctx, to->ifindex);
}

/* To the keeper in that slot, as it came. */
static __noinline int pass_to_keeper(context_t *ctx, const struct segment *segment, __u32 slot, const struct passage *how)
{
	struct wrapping says = {};
	struct iphdr ip = {};

	if (!segment || !how)
		return VERDICT_DROP;
	keep_sent(ctx, segment->ip_length, slot);
	ip.saddr = segment->client;
	ip.daddr = segment->vip;
	ip.tot_len = bpf_htons(segment->ip_length);
	says.source_port = segment->key.client_port;
	says.signed_ports = (__u32)segment->key.vip_port << 16 | segment->key.client_port;
	says.reason = how->again ? CAME_AGAIN : 0;
	says.value = bpf_htonl(how->times);
	return pass(ctx, &ip, slot, &says);
}

/*
 * What lies behind the boundary is the keeper's to read, and a client that has said more than this
 * record knows of may use its port again, for a connection of which only others know: its ISN is not
 * far on (RFC 6528 3; Linux takes the last number and 2^16 where the old one is in TIME-WAIT).
 */
static __always_inline bool is_beyond_client(const struct flow *flow, const struct segment *segment)
{
	return !(flow->marks & MARK_TUNNEL) && (__s32)(segment->seq - flow->next) > 0;
}

/*
 * Has the client said more than the record that another one has kept knows of? Then its owner may be
 * another one: nothing goes to this one before it is asked (4.6a), be it only what acknowledges.
 */
static __always_inline bool is_beyond_record(const struct flow *flow, const struct segment *segment)
{
	return flow->marks & MARK_UNSURE && is_beyond_client(flow, segment);
}

/*
 * This dispatcher's data path has placed its connection, and has yet to tell of it: who has come to keep it meanwhile
 * would take what starts a request for another connection's. Its client says it again (4.7c). Of one that was over
 * before it had to be told the record is still there when its port is used again: under another cookie.
 */
static __noinline bool is_unheard_of(const struct flow *flow, const struct segment *segment)
{
	struct node *self = this_node();

	return flow && segment && self && flow->version == 1 && !flow->turn && flow->marks & MARK_STAYED &&
	       flow->maker == self->address &&
	       segment->ack - flow->cookie <= flow->last_ack - flow->cookie + PLAUSIBLE_ACK;
}

/* Does the record here say where this packet goes, whoever keeps the flow (2.1)? */
static __noinline bool explains(const struct flow *flow, const struct segment *segment)
{
	struct backend *backend;
	__u32 slot;

	if (!flow || !segment || flow->state != FLOW_ESTABLISHED || flow->marks & MARK_TAKING || !(segment->flags & TCP_ACK) ||
	    segment->flags & (TCP_SYN | TCP_FIN | TCP_RST) || reaches_beyond(flow, segment) ||
	    is_beyond_client(flow, segment) || is_untold(flow) ||
	    !is_near(segment->seq + segment->payload, flow->last_seq, PLAUSIBLE_SEQ) ||
	    !is_near(segment->ack, flow->last_ack, PLAUSIBLE_ACK))
		return false;
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	return backend && !backend->silent;
}
