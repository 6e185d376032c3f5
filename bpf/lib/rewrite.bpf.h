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
#define NOP_NOP_TIMESTAMPS 0x0101080a

/* The only options that most packets have; the first two bytes are no part of the clock's. */
struct clock_options {
	__be32 kinds;
	__be32 value;
	__be32 echo;
};

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

static __always_inline void rewrite_clock_options(struct clock_options *clock, const struct rewriting *how)
{
	if (how->changes & SPLICE_NO_TIMESTAMPS) {
		__builtin_memset((__u8 *)clock + 2, 1, sizeof(*clock) - 2);
		return;
	}
	clock->value = bpf_htonl(bpf_ntohl(clock->value) + how->value);
	/* 0: it has not heard a clock yet. */
	if (clock->echo)
		clock->echo = bpf_htonl(bpf_ntohl(clock->echo) + how->echo);
}

/* The same, wherever the option stands: two bytes are before it, as they are by now. */
static __always_inline void rewrite_clock(struct header_bench *bench, __u32 at, const struct rewriting *how)
{
	__u8 *bytes = byte_at(bench->after, at - 2);
	struct clock_options clock;

	__builtin_memcpy(&clock, bytes, sizeof(clock));
	rewrite_clock_options(&clock, how);
	__builtin_memcpy(bytes, &clock, sizeof(clock));
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

static __always_inline __u32 address_change(const struct iphdr *ip, const struct rewriting *how)
{
	return sum_change((__u64)ip->saddr + ip->daddr, (__u64)how->source + how->dest, 2);
}

/* By how much the two parts of what a TCP checksum covers have changed. */
struct sum_changes {
	__u32 addresses;
	__u32 header;
};

static __always_inline __u64 sum_header(const struct tcp_header *tcp, const struct clock_options *clock)
{
	return sum_words((const void *)tcp, sizeof(*tcp) / 4) +
	       (clock ? sum_words((const void *)clock, sizeof(*clock) / 4) : 0);
}

/* Headers with no options but timestamps, where they are, which costs no helper. False: they are none of those. */
static __always_inline bool rewrite_in_place(context_t *ctx, __u32 header_length, const struct rewriting *how,
					     struct sum_changes *changes)
{
	struct clock_options *clock = NULL;
	struct tcp_header *tcp;
	struct iphdr *ip;
	__u64 was, is;

	if ((header_length != TCP_LEN && header_length != TCP_LEN_USUAL) ||
	    !context_pull(ctx, sizeof(struct ethhdr) + IP_LEN + header_length))
		return false;
	ip = context_data(ctx) + sizeof(struct ethhdr);
	tcp = (void *)(ip + 1);
	if ((void *)(tcp + 1) > context_end(ctx))
		return false;
	if (header_length == TCP_LEN_USUAL) {
		clock = (void *)(tcp + 1);
		if ((void *)(clock + 1) > context_end(ctx) || clock->kinds != bpf_htonl(NOP_NOP_TIMESTAMPS))
			return false;
	}
	changes->addresses = address_change(ip, how);
	was = sum_header(tcp, clock);
	rewrite_ip(ip, how, changes->addresses);
	rewrite_tcp(tcp, how);
	if (clock)
		rewrite_clock_options(clock, how);
	is = sum_header(tcp, clock);
	changes->header = sum_change(was, is, TCP_LEN_USUAL / 4);
	return true;
}

/* All others, on the bench. 0, or the packet is as it was, or lost. */
static __always_inline long rewrite_on_bench(context_t *ctx, __u32 header_length, const struct rewriting *how,
					     struct sum_changes *changes)
{
	const __u32 at = sizeof(struct ethhdr);
	__u32 zero = 0;
	struct header_bench *bench = bpf_map_lookup_elem(&header_benches, &zero);
	__s64 header;

	if (!bench || header_length < TCP_LEN || header_length > TCP_LEN_MAX)
		return -1;
	__builtin_memset(bench->before, 0, sizeof(bench->before));
	if (context_load(ctx, at, bench->before, IP_LEN + header_length))
		return -1;
	__builtin_memcpy(bench->after, bench->before, sizeof(bench->after));
	changes->addresses = address_change((void *)bench->before, how);
	rewrite_ip((void *)bench->after, how, changes->addresses);
	rewrite_tcp((void *)(bench->after + IP_LEN), how);
	rewrite_options(bench, header_length, how);
	header = bpf_csum_diff((void *)(bench->before + IP_LEN), TCP_LEN_MAX, (void *)(bench->after + IP_LEN),
			       TCP_LEN_MAX, 0);
	if (header < 0)
		return -1;
	changes->header = header;
	return context_store(ctx, at, bench->after, IP_LEN + header_length);
}

/* 0, or the packet is as it was, or lost. Not static: it is verified once. */
__noinline int rewrite(context_t *ctx, __u32 header_length, const struct rewriting *how)
{
	struct sum_changes changes;

	if (!how)
		return -1;
	if (!rewrite_in_place(ctx, header_length, how, &changes) &&
	    rewrite_on_bench(ctx, header_length, how, &changes))
		return -1;
	return context_mend_tcp_checksum(ctx, changes.addresses, changes.header);
}
