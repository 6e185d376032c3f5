/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * forward: a packet put into the encapsulation and sent on, to a backend or
 * to this node's own daemon. A backend may be on this very host: then its agent,
 * next at tc ingress, has the packet from here.
 */
#pragma once

#include "outer.bpf.h"

/* Outer source port: entropy for the network's hashes (RFC 8926 3.3). */
static __always_inline __be16 entropy_port(const struct segment *segment)
{
	return segment->key.client_port | bpf_htons(0xc000);
}

/* NULL: counted, drop. */
static __always_inline struct backend *backend_at(__u32 slot)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &slot);

	if (backend && backend->name[0])
		return backend;
	count_drop(DROP_NO_BACKEND);
	return NULL;
}

static __always_inline bool is_on_this_host(const struct backend *backend)
{
	return mapped_ipv4(backend->addr) == backend->source;
}

/* False: counted, drop. */
static __noinline bool resolve_next_hop(context_t *ctx, struct backend *backend, __u64 now)
{
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		.l4_protocol = IPPROTO_UDP,
		.tot_len = 0,
		.ifindex = ctx->ingress_ifindex,
		.ipv4_src = backend->source,
		.ipv4_dst = mapped_ipv4(backend->addr),
	};
	struct node *self = this_node();
	long result;

	/* Interface 0: it stays where it is. */
	if (is_on_this_host(backend) && self) {
		__builtin_memcpy(backend->destination_mac, self->mac, ETH_ALEN);
		backend->resolved_ns = now;
		return true;
	}
	result = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

	if (result == BPF_FIB_LKUP_RET_SUCCESS) {
		backend->ifindex = fib.ifindex;
		__builtin_memcpy(backend->destination_mac, fib.dmac, ETH_ALEN);
		__builtin_memcpy(backend->source_mac, fib.smac, ETH_ALEN);
		backend->resolved_ns = now;
		return true;
	}
	/* A neighbour in doubt: what was known last is better than nothing. */
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH && backend->ifindex)
		return true;
	count_drop(result == BPF_FIB_LKUP_RET_NO_NEIGH ? DROP_NO_NEIGHBOUR : DROP_NO_ROUTE);
	return false;
}

/* Is the way there known? False: counted, drop. */
static __always_inline bool knows_way(context_t *ctx, struct backend *backend)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	return now - backend->resolved_ns <= NEXT_HOP_LIFETIME_NS || resolve_next_hop(ctx, backend, now);
}

/* To backend number `slot`: a packet as it came, or one that is encapsulated, which gets another head. */
static __always_inline int send_headed(context_t *ctx, __u32 slot, const struct meta *meta, __be16 source_port,
				       __u16 inner_length, bool is_encapsulated)
{
	struct backend *backend = backend_at(slot);
	struct new_head head = {};
	__u32 ifindex;

	if (!backend)
		return VERDICT_DROP;
	if (inner_length > 0xffff - ENCAP_LEN) {
		count_drop(DROP_TOO_BIG);
		return VERDICT_DROP;
	}
	if (!knows_way(ctx, backend))
		return VERDICT_DROP;
	ifindex = backend->ifindex;
	__builtin_memcpy(head.ethernet.h_dest, backend->destination_mac, ETH_ALEN);
	__builtin_memcpy(head.ethernet.h_source, backend->source_mac, ETH_ALEN);
	head.ethernet.h_proto = bpf_htons(ETH_P_IP);
	fill_encapsulation(&head.encapsulation, backend->source, mapped_ipv4(backend->addr), source_port,
			   inner_length);
	head.encapsulation.meta = *meta;
	if (is_encapsulated ? !replace_head(ctx, &head) : !encapsulate(ctx, &head))
		return VERDICT_DROP;
	if (ifindex)
		return context_send(ctx, ifindex);
	count_event(EVENT_TO_OWN_HOST);
	return VERDICT_NEXT;
}

/* With its option as it is. */
static __noinline int send_to_backend(context_t *ctx, __u32 slot, const struct meta *meta,
				      __be16 source_port, __u16 inner_length)
{
	return send_headed(ctx, slot, meta, source_port, inner_length, false);
}

/* The same of what has come here encapsulated, and goes on so. */
static __noinline int send_on_to_backend(context_t *ctx, __u32 slot, const struct meta *meta,
					 __be16 source_port, __u16 inner_length)
{
	return send_headed(ctx, slot, meta, source_port, inner_length, true);
}

/*
 * To the daemon, up this host's own stack, as a datagram that has the
 * client's address as its source: so it takes the route that the client's
 * own packet would have taken, and a flow always meets the same worker.
 */
static __noinline int send_to_daemon(context_t *ctx, const struct segment *segment,
				     const struct proof *proof, enum meta_kind kind)
{
	struct new_head head = {};
	struct meta *meta = &head.encapsulation.meta;
	struct siphash_key *key;
	struct node *self = this_node();

	if (segment->ip_length > 0xffff - ENCAP_LEN) {
		count_drop(DROP_TOO_BIG);
		return VERDICT_DROP;
	}
	if (!self || !(key = tag_key(self->signing_key))) {
		count_drop(DROP_BAD_TAG);
		return VERDICT_DROP;
	}
	if (context_load(ctx, 0, &head.ethernet, sizeof(head.ethernet))) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	fill_encapsulation(&head.encapsulation, segment->client, self->address, segment->key.client_port,
			   segment->ip_length);
	*meta = (struct meta){
		.version = META_VERSION,
		.kind = kind,
		.key_id = self->signing_key,
		.epoch = bpf_htonl(proof->older_epoch),
		.start = bpf_htonl(proof->client_isn + 1),
		.mss = bpf_htons(proof->mss),
		.window_scales = proof->window_scales,
		.tcp_options = proof->tcp_options,
		.value = bpf_htonl(proof->server_isn),
	};
	set_tag(meta, meta_tag(key, meta, self->address, segment->client, segment->vip,
			       segment->key.client_port, segment->key.vip_port));
	if (!encapsulate(ctx, &head))
		return VERDICT_DROP;
	count_event(EVENT_TO_DAEMON);
	return VERDICT_PASS;
}
