/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * rewrite: a segment of one connection becomes one of another, of other ends, numbers, clocks
 * and scales [SPLICE06 6.2]. At dispatchers both directions of spliced flows; at backends what
 * servers say to flows that are split (core/src/splice.rs is the model).
 */
#pragma once

#define IP_LEN sizeof(struct iphdr)
#define TCP_LEN sizeof(struct tcp_header)
#define TCP_LEN_MAX 60
/* With NOP NOP timestamps: nearly all. */
#define TCP_LEN_USUAL 32

/* A packet's IP and TCP headers, as they came and as they go; any word may be read from any place. */
struct header_bench {
	__u8 before[IP_LEN + TCP_LEN_MAX + 16];
	__u8 after[IP_LEN + TCP_LEN_MAX + 16];
} __attribute__((aligned(8)));

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct header_bench);
} header_benches SEC(".maps");

/* What becomes of a segment. */
struct rewriting {
	__be32 source;
	__be32 dest;
	__be16 source_port;
	__be16 dest_port;
	__u32 seq; /* is added to it; so are the others */
	__u32 ack;
	__u32 value; /* of the timestamps */
	__u32 echo;
	__s32 window_shift; /* left; right if negative */
	__u32 changes; /* SPLICE_* */
};

struct option_rewriting {
	struct header_bench *bench;
	const struct rewriting *how;
	__u32 at; /* in the TCP header */
	__u32 end;
};

static __always_inline __u8 *byte_at(__u8 *header, __u32 at)
{
	return header + IP_LEN + (at & 63);
}

static __always_inline void add_at(struct header_bench *bench, __u32 at, __u32 by)
{
	put_be32(byte_at(bench->after, at), get_be32(byte_at(bench->before, at)) + by);
}

static __always_inline void rewrite_clock(struct header_bench *bench, __u32 at, const struct rewriting *how)
{
	if (how->changes & SPLICE_NO_TIMESTAMPS) {
		__builtin_memset(byte_at(bench->after, at), 1, 10);
		return;
	}
	add_at(bench, at + 2, how->value);
	/* 0: it has not heard a clock yet. */
	if (get_be32(byte_at(bench->before, at + 6)))
		add_at(bench, at + 6, how->echo);
}

static long rewrite_option(__u64 index, struct option_rewriting *rewriting)
{
	struct header_bench *bench = rewriting->bench;
	__u32 at = rewriting->at, edge;
	__u8 kind, size;

	if (at + 1 >= rewriting->end || at >= TCP_LEN_MAX)
		return 1;
	kind = *byte_at(bench->before, at);
	if (kind == 0)
		return 1;
	if (kind == 1) {
		rewriting->at = at + 1;
		return 0;
	}
	size = *byte_at(bench->before, at + 1);
	if (size < 2 || at + size > rewriting->end)
		return 1;
	if (kind == 8 && size == 10)
		rewrite_clock(bench, at, rewriting->how);
	/* RFC 2018: the edges of blocks are of the numbers that the acknowledgement is of. */
	for (edge = 0; kind == 5 && edge < 8; edge++)
		if (6 + 4 * edge <= size)
			add_at(bench, at + 2 + 4 * edge, rewriting->how->ack);
	rewriting->at = at + size;
	return 0;
}

static __always_inline void rewrite_options(struct header_bench *bench, __u32 header_length,
					    const struct rewriting *how)
{
	struct option_rewriting rewriting = {
		.bench = bench,
		.how = how,
		.at = TCP_LEN,
		.end = header_length,
	};

	if (header_length == TCP_LEN_USUAL && get_be32(byte_at(bench->before, TCP_LEN)) == 0x0101080a)
		rewrite_clock(bench, TCP_LEN + 2, how);
	else if (header_length > TCP_LEN)
		bpf_loop(TCP_OPTIONS_MAX, rewrite_option, &rewriting, 0);
}

/* The window field, where the two sides have agreed to other scales (RFC 7323 2.2). */
static __always_inline __be16 shift_window(__be16 field, __s32 by)
{
	__u32 window = bpf_ntohs(field);

	if (by < 0)
		return bpf_htons(window >> (-by & 15));
	window <<= by & 15;
	return bpf_htons(window > 0xffff ? 0xffff : window);
}

static __always_inline void rewrite_tcp(struct tcp_header *tcp, const struct rewriting *how)
{
	tcp->source = how->source_port;
	tcp->dest = how->dest_port;
	tcp->seq = bpf_htonl(bpf_ntohl(tcp->seq) + how->seq);
	if (tcp->flags & TCP_ACK)
		tcp->ack = bpf_htonl(bpf_ntohl(tcp->ack) + how->ack);
	if (how->window_shift)
		tcp->window = shift_window(tcp->window, how->window_shift);
	if (how->changes & SPLICE_NO_ECN)
		tcp->flags &= ~(TCP_ECE | TCP_CWR);
}

static __always_inline void rewrite_ip(struct iphdr *ip, const struct rewriting *how, __u32 addresses)
{
	__u64 sum = (__u64)(__u16)~ip->check + addresses;

	ip->saddr = how->source;
	ip->daddr = how->dest;
	if (how->changes & SPLICE_NO_ECN) {
		/* RFC 3168 5: nobody would hear of a mark; RFC 1624. */
		sum += bpf_htons(ip->tos & ~3) + (__u16)~bpf_htons(ip->tos);
		ip->tos &= ~3;
	}
	ip->check = ~checksum_fold(sum);
}

/* 0, or the packet is as it was, or lost. Not static, nor are the two below: each is verified once. */
__noinline int rewrite(context_t *ctx, __u32 header_length, const struct rewriting *how)
{
	const __u32 at = sizeof(struct ethhdr);
	__u32 zero = 0, old[2], new[2];
	struct header_bench *bench = bpf_map_lookup_elem(&header_benches, &zero);
	bool usual = header_length == TCP_LEN_USUAL;
	__s64 addresses, header;

	if (!bench || !how || header_length < TCP_LEN || header_length > TCP_LEN_MAX)
		return -1;
	if (usual) {
		if (context_load(ctx, at, bench->before, IP_LEN + TCP_LEN_USUAL))
			return -1;
	} else {
		__builtin_memset(bench->before, 0, sizeof(bench->before));
		if (context_load(ctx, at, bench->before, IP_LEN + header_length))
			return -1;
	}
	__builtin_memcpy(bench->after, bench->before, sizeof(bench->after));
	__builtin_memcpy(old, bench->before + offsetof(struct iphdr, saddr), sizeof(old));
	new[0] = how->source;
	new[1] = how->dest;
	addresses = bpf_csum_diff(old, sizeof(old), new, sizeof(new), 0);
	if (addresses < 0)
		return -1;
	rewrite_ip((void *)bench->after, how, addresses);
	rewrite_tcp((void *)(bench->after + IP_LEN), how);
	rewrite_options(bench, header_length, how);
	if (usual) {
		header = bpf_csum_diff((void *)(bench->before + IP_LEN), TCP_LEN_USUAL,
				       (void *)(bench->after + IP_LEN), TCP_LEN_USUAL, 0);
		if (header < 0 || context_store(ctx, at, bench->after, IP_LEN + TCP_LEN_USUAL))
			return -1;
	} else {
		header = bpf_csum_diff((void *)(bench->before + IP_LEN), TCP_LEN_MAX,
				       (void *)(bench->after + IP_LEN), TCP_LEN_MAX, 0);
		if (header < 0 || context_store(ctx, at, bench->after, IP_LEN + header_length))
			return -1;
	}
	return context_mend_tcp_checksum(ctx, addresses, header);
}
