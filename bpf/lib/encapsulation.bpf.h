/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* encapsulation: Geneve (RFC 8926) with our one option, and its tag. */
#pragma once

#include "node.bpf.h"
#include "siphash.bpf.h"

struct geneve_header {
	__u8 option_words; /* version 0 in the high bits */
	__u8 flags;
	__be16 protocol;
	__be32 vni; /* << 8 */
	__be16 option_class;
	__u8 option_type;
	__u8 option_length; /* words */
};

#define GENEVE_CRITICAL 0x40

/* In front of the inner IP packet. */
struct encapsulation {
	struct iphdr ip;
	struct udphdr udp;
	struct geneve_header geneve;
	struct meta meta;
};

_Static_assert(sizeof(struct encapsulation) == ENCAP_LEN, "ENCAP_LEN");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct siphash_key);
} tag_keys SEC(".maps");

static __always_inline struct siphash_key *tag_key(__u32 id)
{
	struct siphash_key *key = bpf_map_lookup_elem(&tag_keys, &id);

	return key && key->generation ? key : NULL;
}

/*
 * The tag covers what the receiver acts on: the option, to whom it is sent,
 * and the inner addresses and ports (0 when the inner packet is not TCP).
 * It is the same for all packets of a flow, whatever segmentation does to them.
 */
static __always_inline __u64 meta_tag(const struct siphash_key *key, const struct meta *meta,
				      __be32 to, __be32 inner_source, __be32 inner_dest,
				      __be16 inner_source_port, __be16 inner_dest_port)
{
	__u64 words[5];

	__builtin_memcpy(words, meta, 24);
	words[3] = (__u64)inner_dest_port << 48 | (__u64)inner_source_port << 32 | to;
	words[4] = (__u64)inner_dest << 32 | inner_source;
	return siphash(key, words, 5);
}

static __always_inline void set_tag(struct meta *meta, __u64 tag)
{
	__builtin_memcpy(meta->tag, &tag, 8);
}

static __always_inline bool tag_equals(const struct meta *meta, __u64 tag)
{
	__u64 theirs;

	__builtin_memcpy(&theirs, meta->tag, 8);
	return theirs == tag;
}

/* The headers of an encapsulated packet, from its outer IP header on, as far as the tag covers them. */
struct encapsulated {
	struct encapsulation outer;
	struct iphdr ip;
};

static __always_inline bool is_ours_at(const struct encapsulation *outer, __u16 port)
{
	return outer->ip.ihl == 5 && outer->udp.dest == bpf_htons(port) &&
	       outer->geneve.vni == bpf_htonl(GENEVE_VNI << 8) &&
	       outer->geneve.option_class == bpf_htons(GENEVE_OPTION_CLASS) &&
	       outer->geneve.option_type == GENEVE_OPTION_TYPE;
}

static __always_inline bool is_ours(const struct encapsulation *outer)
{
	return is_ours_at(outer, GENEVE_PORT);
}

/* `length` is that of the whole frame. */
static __always_inline bool is_well_formed(const struct encapsulated *h, __u32 length)
{
	__u32 inner = bpf_ntohs(h->ip.tot_len);

	return h->outer.geneve.option_words == (4 + sizeof(struct meta)) / 4 &&
	       h->outer.geneve.option_length == sizeof(struct meta) / 4 &&
	       h->outer.geneve.flags == GENEVE_CRITICAL &&
	       h->outer.geneve.protocol == bpf_htons(ETH_P_IP) && h->outer.meta.version == META_VERSION &&
	       h->ip.version == 4 && h->ip.ihl == 5 &&
	       !(h->ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK)) &&
	       inner >= sizeof(struct iphdr) &&
	       inner + sizeof(struct ethhdr) + sizeof(struct encapsulation) <= length;
}

/*
 * Does a request begin with its payload? That is a packet's own, and its tag the flow's: the option
 * is as it was sealed from here on. Who could change the bit could change the packet.
 */
static __always_inline bool take_begins(struct meta *meta)
{
	bool begins = meta->kind == META_FORWARD && meta->reason & FORWARD_BEGINS;

	if (begins)
		meta->reason &= ~FORWARD_BEGINS;
	return begins;
}

/* A call: its stack is not its caller's. */
static __noinline bool is_proved(const struct encapsulated *h, __be16 source_port, __be16 dest_port)
{
	struct siphash_key *key;
	struct meta meta;

	if (!h)
		return false;
	meta = h->outer.meta;
	take_begins(&meta);
	key = tag_key(meta.key_id);
	return key && tag_equals(&meta, meta_tag(key, &meta, h->outer.ip.daddr, h->ip.saddr, h->ip.daddr,
						 source_port, dest_port));
}

static __always_inline bool same_meta(const struct meta *a, const struct meta *b)
{
	__u64 difference = 0, x, y;

#pragma clang loop unroll(full)
	for (unsigned int at = 0; at < sizeof(struct meta); at += 8) {
		__builtin_memcpy(&x, (const void *)a + at, 8);
		__builtin_memcpy(&y, (const void *)b + at, 8);
		difference |= x ^ y;
	}
	return difference == 0;
}

/* All but the option; inner_length is the inner IP packet's. */
static __always_inline void fill_encapsulation(struct encapsulation *e, __be32 from, __be32 to,
					       __be16 source_port, __u16 inner_length)
{
	e->ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.ttl = 64,
		.protocol = IPPROTO_UDP,
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.tot_len = bpf_htons(inner_length + ENCAP_LEN),
		.saddr = from,
		.daddr = to,
	};
	set_ipv4_checksum(&e->ip);
	e->udp = (struct udphdr){
		.source = source_port,
		.dest = bpf_htons(GENEVE_PORT),
		.len = bpf_htons(inner_length + ENCAP_LEN - sizeof(struct iphdr)),
	};
	e->geneve = (struct geneve_header){
		.option_words = (4 + sizeof(struct meta)) / 4,
		.flags = GENEVE_CRITICAL,
		.protocol = bpf_htons(ETH_P_IP),
		.vni = bpf_htonl(GENEVE_VNI << 8),
		.option_class = bpf_htons(GENEVE_OPTION_CLASS),
		.option_type = GENEVE_OPTION_TYPE,
		.option_length = sizeof(struct meta) / 4,
	};
}
