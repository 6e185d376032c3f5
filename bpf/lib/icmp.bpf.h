/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * icmp: errors about packets that a backend sent from the VIP come here,
 * because here is the VIP; the backend must hear them (RFC 1191, RFC 5508).
 */
#pragma once

#include "quoted.bpf.h"
#include "splice_icmp.bpf.h"

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
