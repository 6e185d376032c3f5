/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * heir: the dispatcher that keeps a flow when its keeper dies. A connection that the
 * keeper's data path places goes to its backend by way of the heir, whose data path makes
 * the record of what the packet says (docs/protocol/replication.md 4.7). So there are two that know
 * the connection before its backend does, and no daemon has said a word. What the heir is not told of
 * soon has ended.
 *
 * Who is whose heir is dealt as keepers are, among those that are left.
 */
#pragma once

#include "keeper.bpf.h"

/* By lot; NO_DISPATCHER: there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lots);
} heirs SEC(".maps");

/* A slot of the dispatchers map, or NO_DISPATCHER. Not static, as the next: the verifier walks them once. */
__noinline int heir_of(const struct segment *segment)
{
	__u32 zero = 0;
	struct lots *table = bpf_map_lookup_elem(&heirs, &zero);
	struct dispatcher *heir;
	struct four_tuple tuple;
	__u32 slot;

	if (!segment || !table || !is_fit() || is_leaving())
		return NO_DISPATCHER;
	tuple = tuple_of(segment);
	slot = table->slots[lot_of(&tuple)];
	heir = bpf_map_lookup_elem(&dispatchers, &slot);
	return heir && heir->name[0] ? slot : NO_DISPATCHER;
}

/* The first packet of a flow that has been placed here, to its backend by way of the heir in that slot. */
__noinline int entrust(context_t *ctx, const struct segment *segment, const struct flow *flow, __u32 heir)
{
	struct dispatcher *to = bpf_map_lookup_elem(&dispatchers, &heir);
	struct new_head head = {};
	struct meta *meta = &head.encapsulation.meta;
	struct siphash_key *key;
	struct backend *backend;
	__u32 slot;

	if (!segment || !flow)
		return VERDICT_DROP;
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	if (!backend || !to || !to->name[0] || segment->ip_length > 0xffff - ENCAP_LEN ||
	    !(key = tag_key(flow->meta.key_id))) {
		count_drop(DROP_NO_DISPATCHER);
		return VERDICT_DROP;
	}
	if (!knows_way_to(ctx, to))
		return VERDICT_DROP;
	keep_sent(ctx, segment->ip_length, heir);
	address_head(&head, to, entropy_port(segment), segment->ip_length);
	*meta = flow->meta;
	meta->kind = META_ENTRUSTED;
	meta->requests = bpf_htons(flow->pool);
	meta->value = mapped_ipv4(backend->addr);
	set_tag(meta, meta_tag(key, meta, mapped_ipv4(to->addr), segment->client, segment->vip,
			       segment->key.client_port, segment->key.vip_port));
	if (!encapsulate(ctx, &head))
		return VERDICT_DROP;
	count_event(EVENT_ENTRUSTED);
	return context_send(ctx, to->ifindex);
}

/*
 * The keeper at `how->from` has entrusted this connection to us: its record, unless a later one is here. Or why
 * there is none. Who keeps it next does not know what has been asked since, and asks the owner (4.6).
 */
static __noinline enum drop_reason take_in_trust(const struct segment *segment, const struct passage *how, struct workbench *bench)
{
	const struct meta *said;
	struct backend_load *load;
	struct proof proof = {};
	struct turn turn = {};
	struct flow *old;
	__be32 backend;
	__u32 *slot;

	if (!segment || !how || !bench)
		return DROP_MALFORMED;
	said = &bench->entrusted;
	proof.client_isn = bpf_ntohl(said->start) - 1;
	proof.server_isn = segment->ack - 1;
	old = bpf_map_lookup_elem(&flows, &segment->key);
	if (old && (__s32)(bpf_ntohl(said->epoch) - bpf_ntohl(old->meta.epoch)) <= 0)
		return old->cookie == proof.server_isn ? DROP_NONE : DROP_STALE_EPOCH;
	backend = said->value;
	slot = bpf_map_lookup_elem(&slots, &backend);
	if (!slot)
		return DROP_NO_BACKEND;
	if (segment->seq != bpf_ntohl(said->start))
		return DROP_MALFORMED;
	proof.mss = bpf_ntohs(said->mss);
	proof.window_scales = said->window_scales;
	proof.tcp_options = said->tcp_options & TCP_OPTIONS_AGREED;
	turn.slot = *slot;
	turn.server_port = said->server_port;
	if (turn.slot >= BACKENDS_MAX ||
	    !fill_flow(&bench->flow, segment, &proof, &turn, bpf_ntohs(said->requests),
		       said->tcp_options & ~TCP_OPTIONS_AGREED, bpf_ntohl(said->epoch)))
		return DROP_NO_BACKEND;
	begin_in_trust(&bench->flow, how->from);
	if (!(bench->flow.marks & MARK_TUNNEL))
		bench->flow.marks |= MARK_UNSURE;
	if (old) {
		end_flow(old, FLOW_RESET);
		forget_splice(old);
	}
	spend_proof(&segment->key, &bench->flow);
	if (bpf_map_update_elem(&flows, &segment->key, &bench->flow, BPF_ANY))
		return DROP_REWRITE;
	load = bpf_map_lookup_elem(&loads, slot);
	if (load) {
		__sync_fetch_and_add(&load->active, 1);
		__sync_fetch_and_add(&load->total, 1);
	}
	return DROP_NONE;
}
