/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * answer: a packet turned round in place into a bare TCP segment from the VIP:
 * the SYN-ACK that carries the cookie, and the ACK of a keep-alive probe.
 */
#pragma once

#include "checksum.bpf.h"
#include "node.bpf.h"

#define ANSWER_OPTIONS_MAX 20
#define TCP_HEADER_MAX 60

/* The client's whole TCP header, for its options and its checksum. */
struct whole_header {
	struct tcp_header tcp;
	__u8 options[TCP_OPTIONS_ROOM];
} __attribute__((aligned(8)));

struct answer {
	struct tcp_header tcp; /* ports and checksum are filled in by send_answer */
	__u8 options[ANSWER_OPTIONS_MAX];
	__u32 options_length;
} __attribute__((aligned(8)));

static __always_inline bool load_whole_header(context_t *ctx, const struct segment *segment,
					      struct whole_header *header)
{
	__u32 offset = sizeof(struct ethhdr) + sizeof(struct iphdr);
	__u32 options = segment->header_length - sizeof(struct tcp_header);

	__builtin_memset(header, 0, sizeof(*header));
	if (context_load(ctx, offset, &header->tcp, sizeof(header->tcp)))
		return false;
	if (options == 0)
		return true;
	if (options > TCP_OPTIONS_MAX)
		return false;
	return context_load(ctx, offset + sizeof(header->tcp), header->options, options) == 0;
}

static __always_inline enum checksum_state header_checksum(const struct segment *segment,
							   struct whole_header *header)
{
	__u16 length = segment->header_length + segment->payload;
	__u64 pseudo = pseudo_header_sum(segment->client, segment->vip, length);

	/*
	 * The payload of a SYN is not looked at (RFC 9293 3.10.7.4 lets us drop it).
	 * Whole first: one whole checksum in 65536 equals its pseudo-header's sum, and
	 * a client without timestamps would send that very SYN until it gives up.
	 */
	if (!segment->payload &&
	    checksum_fold(pseudo + (__u32)bpf_csum_diff(NULL, 0, (void *)header, TCP_HEADER_MAX, 0)) == 0xffff)
		return CHECKSUM_WHOLE;
	if (header->tcp.check == checksum_fold(pseudo))
		return CHECKSUM_PSEUDO_ONLY;
	return segment->payload ? CHECKSUM_WHOLE : CHECKSUM_WRONG;
}

/* The packet's options; CHECKSUM_WRONG if it is not to be believed. */
static __noinline enum checksum_state read_options(context_t *ctx, const struct segment *segment,
						   struct tcp_options *options)
{
	struct whole_header header;

	if (!load_whole_header(ctx, segment, &header))
		return CHECKSUM_WRONG;
	parse_tcp_options(header.options, segment->header_length - sizeof(struct tcp_header), options);
	return header_checksum(segment, &header);
}

/* Sends `answer` to the client: the way back that the packet in hand came, unless that is a spray's. */
static __noinline int send_answer(context_t *ctx, const struct segment *segment, struct answer *answer,
				  enum checksum_state request)
{
	__u32 length = sizeof(struct tcp_header) + answer->options_length;
	struct node *self = this_node();
	struct {
		struct ethhdr ethernet;
		struct iphdr ip;
	} __attribute__((packed)) outer;
	__u8 mac[ETH_ALEN];
	__u64 pseudo;

	if (context_load(ctx, 0, &outer, sizeof(outer)))
		goto refused;
	__builtin_memcpy(mac, outer.ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(outer.ethernet.h_dest, outer.ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(outer.ethernet.h_source, mac, ETH_ALEN);
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.ttl = 64,
		.protocol = IPPROTO_TCP,
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.tot_len = bpf_htons(sizeof(struct iphdr) + length),
		.saddr = segment->vip,
		.daddr = segment->client,
	};
	set_ipv4_checksum(&ip);
	outer.ip = ip;

	answer->tcp.source = segment->key.vip_port;
	answer->tcp.dest = segment->key.client_port;
	answer->tcp.offset = length / 4 << 4;
	answer->tcp.check = 0;
	pseudo = pseudo_header_sum(segment->vip, segment->client, length);
	if (request == CHECKSUM_PSEUDO_ONLY)
		answer->tcp.check = checksum_fold(pseudo); /* whoever sends it out completes it */
	else
		answer->tcp.check = ~checksum_fold(
			pseudo + (__u32)bpf_csum_diff(NULL, 0, (void *)answer,
						      sizeof(struct tcp_header) + ANSWER_OPTIONS_MAX, 0));

	if (context_resize(ctx, sizeof(outer) + length))
		goto refused;
	if (context_store(ctx, 0, &outer, sizeof(outer)) ||
	    context_store(ctx, sizeof(outer), &answer->tcp, sizeof(struct tcp_header)))
		goto refused;
	if (answer->options_length == ANSWER_OPTIONS_MAX) {
		if (context_store(ctx, sizeof(outer) + sizeof(struct tcp_header), answer->options,
				  ANSWER_OPTIONS_MAX))
			goto refused;
	} else if (answer->options_length > 0 && answer->options_length < ANSWER_OPTIONS_MAX) {
		if (context_store(ctx, sizeof(outer) + sizeof(struct tcp_header), answer->options,
				  answer->options_length))
			goto refused;
	}
	if (self && self->behind)
		return context_send_routed(ctx, segment->vip, segment->client);
	return context_send_back(ctx);
refused:
	count_drop(DROP_REWRITE);
	return VERDICT_DROP;
}

static __always_inline void put_be32(__u8 *to, __u32 value)
{
	to[0] = value >> 24;
	to[1] = value >> 16;
	to[2] = value >> 8;
	to[3] = value;
}

/* NOP NOP timestamps, 12 bytes. */
static __always_inline void put_timestamps(__u8 *to, __u32 tsval, __u32 tsecr)
{
	to[0] = to[1] = 1;
	to[2] = 8;
	to[3] = 10;
	put_be32(to + 4, tsval);
	put_be32(to + 8, tsecr);
}
