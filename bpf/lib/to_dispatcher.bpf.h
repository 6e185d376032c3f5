/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* to_dispatcher: where dispatchers are, and a client's packet enclosed for one of them. */
#pragma once

#include "outer.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DISPATCHERS_MAX);
	__type(key, __u32);
	__type(value, struct dispatcher);
} dispatchers SEC(".maps");

/* False: counted, drop. */
static __noinline bool resolve_dispatcher(context_t *ctx, struct dispatcher *to, __u64 now)
{
	__be32 address = mapped_ipv4(to->addr);
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		.l4_protocol = IPPROTO_UDP,
		.ifindex = ctx->ingress_ifindex,
		.ipv4_src = to->source,
		.ipv4_dst = address,
	};
	long result = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

	if (result == BPF_FIB_LKUP_RET_SUCCESS) {
		to->ifindex = fib.ifindex;
		/* The kernel puts the next hop's address here, which is a router's unless it is theirs. */
		to->far = fib.ipv4_dst != address;
		__builtin_memcpy(to->destination_mac, fib.dmac, ETH_ALEN);
		__builtin_memcpy(to->source_mac, fib.smac, ETH_ALEN);
		to->resolved_ns = now;
		return true;
	}
	/* A neighbour in doubt: what was known last is better than nothing. */
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH && to->ifindex)
		return true;
	count_drop(result == BPF_FIB_LKUP_RET_NO_NEIGH ? DROP_NO_NEIGHBOUR : DROP_NO_ROUTE);
	return false;
}

/* Is the way there known? False: counted, drop. */
static __always_inline bool knows_way_to(context_t *ctx, struct dispatcher *to)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	return now - to->resolved_ns <= NEXT_HOP_LIFETIME_NS || resolve_dispatcher(ctx, to, now);
}

/* All but the option of a packet of that length in the encapsulation. */
static __always_inline void address_head(struct new_head *head, const struct dispatcher *to, __be16 source_port,
					 __u16 length)
{
	__builtin_memcpy(head->ethernet.h_dest, to->destination_mac, ETH_ALEN);
	__builtin_memcpy(head->ethernet.h_source, to->source_mac, ETH_ALEN);
	head->ethernet.h_proto = bpf_htons(ETH_P_IP);
	fill_encapsulation(&head->encapsulation, to->source, mapped_ipv4(to->addr), source_port, length);
}

/* What the encapsulation of a client's packet says. */
struct wrapping {
	__u32 signed_ports; /* those that the tag covers, source in the low half; 0 unless the packet is TCP */
	__be32 value;
	__be16 source_port; /* of UDP */
	__u8 kind;
	__u8 reason;
};

/* A client's packet as it came, in the encapsulation. */
static __noinline bool enclose(context_t *ctx, const struct dispatcher *to, const struct iphdr *ip,
			       const struct wrapping *says)
{
	struct node *self = this_node();
	struct new_head head = {};
	struct meta *meta = &head.encapsulation.meta;
	struct siphash_key *key;
	__u16 length = bpf_ntohs(ip->tot_len);
	__be32 address = mapped_ipv4(to->addr);

	if (length > 0xffff - ENCAP_LEN) {
		count_drop(DROP_TOO_BIG);
		return false;
	}
	if (!self || !(key = tag_key(self->signing_key))) {
		count_drop(DROP_BAD_TAG);
		return false;
	}
	address_head(&head, to, says->source_port | bpf_htons(0xc000), length);
	*meta = (struct meta){
		.version = META_VERSION,
		.kind = says->kind,
		.key_id = self->signing_key,
		.reason = says->reason,
		.value = says->value,
	};
	set_tag(meta, meta_tag(key, meta, address, ip->saddr, ip->daddr, says->signed_ports & 0xffff,
			       says->signed_ports >> 16));
	return encapsulate(ctx, &head);
}
