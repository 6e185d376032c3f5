/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * splice_icmp: ICMP errors about what has been rewritten, for whoever had sent it: they
 * quote it as that one knows it (RFC 5508 4.2).
 */
#pragma once

#include "quoted.bpf.h"

/* An error, and as much of what it quotes as every router does (RFC 792). */
struct quoting {
	struct iphdr ip;
	struct icmp_header icmp;
	struct iphdr quoted;
	__be16 source;
	__be16 dest;
	__be32 seq;
};

/* What it quoted came from `from`, by its own numbers: 0, or the packet is as it was. */
/* Not static, as rewrite(). */
__noinline int requote(context_t *ctx, const struct rewriting *from)
{
	struct quoting before, after;
	__s64 difference;

	if (!from || context_load(ctx, sizeof(struct ethhdr), &before, sizeof(before)))
		return -1;
	after = before;
	after.quoted.saddr = from->source;
	after.quoted.daddr = from->dest;
	after.source = from->source_port;
	after.dest = from->dest_port;
	after.seq = bpf_htonl(bpf_ntohl(before.seq) + from->seq);
	set_ipv4_checksum(&after.quoted);
	after.ip.daddr = from->source;
	set_ipv4_checksum(&after.ip);
	difference = bpf_csum_diff((void *)&before.quoted, 28, (void *)&after.quoted, 28, 0);
	if (difference < 0)
		return -1;
	after.icmp.check = ~checksum_fold((__u64)(__u16)~before.icmp.check + difference);
	return context_store(ctx, sizeof(struct ethhdr), &after, sizeof(after));
}

/* About a packet for the client: its server is to hear it. */
__noinline int send_icmp_to_server(context_t *ctx, const struct flow *flow)
{
	struct backend *backend;
	struct splice splice;

	if (!flow)
		return VERDICT_DROP;
	backend = backend_at(flow->backend);
	if (!backend || !knows_way(ctx, backend))
		return VERDICT_DROP;
	splice = read_splice(flow);
	struct rewriting from = {
		.source = mapped_ipv4(backend->addr),
		.dest = splice.address,
		.source_port = splice.server_port,
		.dest_port = splice.port,
		.seq = -splice.ahead,
	};
	if (requote(ctx, &from)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	count_event(EVENT_ICMP_FORWARDED);
	return send_to_host(ctx, backend);
}

/* About a packet for a server, from a splice address: its client is to hear it. */
__noinline int send_icmp_to_client(context_t *ctx, const struct icmp_error *error)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct spliced *to;
	struct flow_key key;

	if (!error)
		return VERDICT_DROP;
	key = flow_key_v4(error->quoted.daddr, error->quoted.saddr, error->quoted_dest, error->quoted_source);
	to = bpf_map_lookup_elem(&splices, &key);
	if (!to || to->state == SPLICED_CONNECTING ||
	    (now - to->resolved_ns > NEXT_HOP_LIFETIME_NS && !resolve_client(ctx, to, now))) {
		count_drop(DROP_ICMP_NO_FLOW);
		return VERDICT_DROP;
	}
	struct rewriting from = {
		.source = mapped_ipv4(to->flow.client_addr),
		.dest = mapped_ipv4(to->flow.vip_addr),
		.source_port = to->flow.client_port,
		.dest_port = to->flow.vip_port,
	};
	if (requote(ctx, &from)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	count_event(EVENT_ICMP_FORWARDED);
	return send_to_hop(ctx, to->ifindex, to->destination_mac);
}
