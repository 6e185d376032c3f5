/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * icmp: errors about packets that a backend sent from the VIP come here,
 * because here is the VIP; the backend must hear them (RFC 1191, RFC 5508).
 */
#pragma once

#define ICMP_UNREACHABLE 3
#define ICMP_TIME_OVER 11
#define ICMP_PARAMETER 12

/* An ICMP error and the start of the packet that it is about. */
struct icmp_error {
	struct iphdr ip;
	struct icmp_header icmp;
	struct iphdr quoted;
	__be16 quoted_source;
	__be16 quoted_dest;
} __attribute__((packed));

static __noinline int dispatch_icmp(context_t *ctx)
{
	__u16 length;
	struct icmp_error error;
	struct flow_key key;
	struct siphash_key *signing;
	struct flow *flow;
	struct backend *backend;
	struct meta meta;
	__u32 slot;

	if (context_load(ctx, sizeof(struct ethhdr), &error, sizeof(error)))
		return VERDICT_NEXT;
	length = bpf_ntohs(error.ip.tot_len);
	if (length < sizeof(error) || length + sizeof(struct ethhdr) > context_length(ctx))
		return VERDICT_NEXT;
	if (error.icmp.type != ICMP_UNREACHABLE && error.icmp.type != ICMP_TIME_OVER &&
	    error.icmp.type != ICMP_PARAMETER)
		return VERDICT_NEXT;
	if (error.quoted.protocol != IPPROTO_TCP || error.quoted.ihl != 5)
		return VERDICT_NEXT;
	if (error.ip.daddr != error.quoted.saddr || !find_service(error.quoted.saddr, error.quoted_source))
		return VERDICT_NEXT;

	key = flow_key_v4(error.quoted.daddr, error.quoted.saddr, error.quoted_dest, error.quoted_source);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || flow->state == FLOW_READING)
		goto no_flow;
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	signing = tag_key(flow->meta.key_id);
	if (!backend || !signing)
		goto no_flow;
	meta = flow->meta;
	meta.kind = META_ICMP;
	set_tag(&meta, meta_tag(signing, &meta, mapped_ipv4(backend->addr), error.ip.saddr, error.ip.daddr, 0, 0));
	count_event(EVENT_ICMP_FORWARDED);
	return send_to_backend(ctx, slot, &meta, key.client_port | bpf_htons(0xc000), length);
no_flow:
	count_drop(DROP_ICMP_NO_FLOW);
	return VERDICT_DROP;
}
