/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * icmp: errors about packets that a backend sent from the VIP come here,
 * because here is the VIP; the backend must hear them (RFC 1191, RFC 5508).
 */
#pragma once

#include "quoted.bpf.h"
#include "splice_icmp.bpf.h"

/* In the place of a verdict: the error is for this dispatcher to forward. */
#define STAYS_HERE 0x101

/* Who of another sub-cluster has what was quoted; NO_DISPATCHER: it is not known, or of this one. */
static __always_inline __u32 elsewhere_of(const struct icmp_error *error)
{
	struct service *address;
	struct four_tuple tuple = {
		.client = error->quoted.daddr,
		.vip = error->quoted.saddr,
		.client_port = error->quoted_dest,
		.vip_port = error->quoted_source,
	};
	struct flow_key key = flow_key_v4(tuple.client, tuple.vip, tuple.client_port, tuple.vip_port);
	__u32 slot;

	if (find_service(tuple.vip, tuple.vip_port)) {
		if (bpf_map_lookup_elem(&flows, &key))
			return NO_DISPATCHER;
		slot = keeper_by_lot(lot_of(&tuple));
	} else {
		address = find_service(tuple.vip, 0);
		if (!address || !is_splice_address(address) || bpf_map_lookup_elem(&splices, &key))
			return NO_DISPATCHER;
		slot = address->id;
	}
	return is_elsewhere(slot) ? slot : NO_DISPATCHER;
}

/* An error about what only another sub-cluster has records of: as it came, to a member of that one. */
static __noinline int pass_error(context_t *ctx)
{
	struct wrapping says = {};
	struct icmp_error error;
	struct iphdr ip;
	__u32 slot;

	if (!is_in_sub_cluster() || !read_icmp_error(ctx, &error))
		return STAYS_HERE;
	slot = elsewhere_of(&error);
	if (slot == NO_DISPATCHER)
		return STAYS_HERE;
	ip = error.ip;
	says.source_port = error.quoted_dest;
	return pass(ctx, &ip, slot, &says);
}

static __noinline int dispatch_icmp(context_t *ctx)
{
	struct icmp_error error;
	struct flow_key key;
	struct siphash_key *signing;
	struct service *address;
	struct flow *flow;
	struct backend *backend;
	struct meta meta;
	__u32 slot;
	int verdict;

	if (!read_icmp_error(ctx, &error))
		return VERDICT_NEXT;
	if (!find_service(error.quoted.saddr, error.quoted_source)) {
		address = find_service(error.quoted.saddr, 0);
		return address && is_splice_address(address) ? send_icmp_to_client(ctx, &error) : VERDICT_NEXT;
	}
	key = flow_key_v4(error.quoted.daddr, error.quoted.saddr, error.quoted_dest, error.quoted_source);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || flow->state == FLOW_READING)
		goto no_flow;
	if (flow->splice.port)
		return send_icmp_to_server(ctx, flow);
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	signing = tag_key(flow->meta.key_id);
	if (!backend || !signing)
		goto no_flow;
	meta = flow->meta;
	meta.kind = META_ICMP;
	set_tag(&meta, meta_tag(signing, &meta, mapped_ipv4(backend->addr), error.ip.saddr, error.ip.daddr, 0, 0));
	verdict = send_to_backend(ctx, slot, &meta, key.client_port | bpf_htons(0xc000),
				  bpf_ntohs(error.ip.tot_len));
	if (verdict != VERDICT_DROP)
		count_event(EVENT_ICMP_FORWARDED);
	return verdict;
no_flow:
	count_drop(DROP_ICMP_NO_FLOW);
	return VERDICT_DROP;
}
