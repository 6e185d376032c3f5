/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * range: what a client says of a stream that several backends have sent, made into
 * what it says of one backend's range (docs/protocol/handoff.md 6.2, 6.3)
 * [SPLITSTACK02 III-B: credit to send, and permission to collect].
 */
#pragma once

/* The server's sequence numbers from `first` to before `end`, as far as there are these ends. */
struct range {
	__u32 first;
	__u32 end;
	bool has_first;
	bool has_end;
};

#define SACK_BLOCKS_MAX 4

/* A packet's TCP options, as they came and as they go; read from any place within. */
struct sack_bench {
	__u8 before[128];
	__u8 after[128];
} __attribute__((aligned(8)));

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sack_bench);
} sack_benches SEC(".maps");

struct option_search {
	const __u8 *bytes;
	__u32 length;
	__u32 kind;
	__u32 at;
	__u32 size; /* 0: none found */
};

static long find_option(__u64 index, struct option_search *search)
{
	__u32 at = search->at;
	__u8 kind, size;

	if (at + 1 >= search->length || at >= TCP_OPTIONS_MAX)
		return 1;
	kind = search->bytes[at & 63];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		search->at = at + 1;
		return 0;
	}
	size = search->bytes[(at + 1) & 63];
	if (size < 2 || at + size > search->length)
		return 1;
	if (kind == search->kind) {
		search->size = size;
		return 1;
	}
	search->at = at + size;
	return 0;
}

static __always_inline void put_be32(__u8 *to, __u32 value)
{
	to[0] = value >> 24;
	to[1] = value >> 16;
	to[2] = value >> 8;
	to[3] = value;
}

struct block_cut {
	struct sack_bench *bench;
	const struct range *range;
	__u32 at;
	__u32 size;
	__u32 kept;
};

/* NOPs in place of the block, and behind those that were kept what of it lies in the range. */
static long cut_block(__u64 block, struct block_cut *cut)
{
	const struct range *range = cut->range;
	struct sack_bench *bench = cut->bench;
	__u32 from = cut->at + 2 + 8 * block, to = cut->at + 2 + 8 * cut->kept, left, right;

	if (10 + 8 * block > cut->size)
		return 1;
	left = get_be32(bench->before + (from & 63));
	right = get_be32(bench->before + ((from + 4) & 63));
	put_be32(bench->after + (from & 63), 0x01010101);
	put_be32(bench->after + ((from + 4) & 63), 0x01010101);
	if (range->has_first && (__s32)(left - range->first) < 0)
		left = range->first;
	if (range->has_end && (__s32)(right - range->end) > 0)
		right = range->end;
	if ((__s32)(right - left) <= 0)
		return 0;
	put_be32(bench->after + (to & 63), left);
	put_be32(bench->after + ((to + 4) & 63), right);
	cut->kept++;
	return 0;
}

/* RFC 2018: the blocks that lie in the range, cut to it, one behind the other; NOPs in place of the others. */
static __always_inline void cut_blocks(struct sack_bench *bench, __u32 at, __u32 size, const struct range *range)
{
	struct block_cut cut = { .bench = bench, .range = range, .at = at, .size = size };

	bpf_loop(SACK_BLOCKS_MAX, cut_block, &cut, 0);
	bench->after[(at + 1) & 63] = 2 + 8 * cut.kept;
	if (!cut.kept)
		bench->after[at & 63] = bench->after[(at + 1) & 63] = 1;
}

/* The segment's TCP options, to be searched. None if there are no more than `least` bytes. */
static __always_inline struct sack_bench *load_options(struct __sk_buff *skb, __u32 length, __u32 least)
{
	__u32 zero = 0;
	struct sack_bench *bench = bpf_map_lookup_elem(&sack_benches, &zero);

	if (!bench || length <= least || length > TCP_OPTIONS_MAX)
		return NULL;
	__builtin_memset(bench, 0, sizeof(*bench));
	if (bpf_skb_load_bytes(skb, UNPACKED_TCP + sizeof(struct tcp_header), bench->before, length))
		return NULL;
	return bench;
}

/*
 * The clock that the client echoes is no measure while several owners send: it is
 * another's, or stands still, for a client takes no clock from a segment whose
 * acknowledgement is old, as all of an older owner's are (Linux, tcp_ack()). Taken for
 * its own, a round trip seems to have lasted for seconds, and what was repeated to have
 * been late only. 0: there is none.
 */
static __noinline int forget_echo(struct __sk_buff *skb, const struct segment *segment)
{
	struct option_search search = { .kind = 8 };
	struct sack_bench *bench;
	__u32 at;

	if (!segment || segment->header_length < sizeof(struct tcp_header))
		return -1;
	search.length = segment->header_length - sizeof(struct tcp_header);
	bench = load_options(skb, search.length, 8);
	if (!bench)
		return 0;
	search.bytes = bench->before;
	bpf_loop(TCP_OPTIONS_MAX, find_option, &search, 0);
	at = search.at + 6;
	if (search.size != 10 || at & 1 || at > TCP_OPTIONS_MAX)
		return 0;
	return replace_word(skb, sizeof(struct tcp_header) + at, get_be32(bench->before + (at & 63)), 0) ? 0 : -1;
}

static __noinline int cut_sack(struct __sk_buff *skb, const struct segment *segment, const struct range *range)
{
	struct option_search search = { .kind = 5 };
	struct sack_bench *bench;
	__u32 length;
	__s64 difference;

	if (!segment || !range || segment->header_length < sizeof(struct tcp_header))
		return -1;
	length = segment->header_length - sizeof(struct tcp_header);
	/* NOP NOP timestamps, or less: there is none. */
	bench = load_options(skb, length, 12);
	if (!bench)
		return 0;
	search.bytes = bench->before;
	search.length = length;
	bpf_loop(TCP_OPTIONS_MAX, find_option, &search, 0);
	if (!search.size)
		return 0;
	__builtin_memcpy(bench->after, bench->before, TCP_OPTIONS_MAX);
	cut_blocks(bench, search.at, search.size, range);
	difference = bpf_csum_diff((__be32 *)bench->before, TCP_OPTIONS_MAX, (__be32 *)bench->after, TCP_OPTIONS_MAX, 0);
	if (difference < 0 || bpf_l4_csum_replace(skb, UNPACKED_CHECK, 0, difference, 0) ||
	    bpf_skb_store_bytes(skb, UNPACKED_TCP + sizeof(struct tcp_header), bench->after, length, 0))
		return -1;
	return 0;
}

/* What an acknowledgement that is raised adds to the right edge is taken from the window. */
static __always_inline bool shrink_window(struct __sk_buff *skb, __u32 by, __u8 shift)
{
	__be16 before;
	__u32 window;

	if (bpf_skb_load_bytes(skb, UNPACKED_TCP + offsetof(struct tcp_header, window), &before, 2))
		return false;
	shift &= 15;
	by = (by + (1u << shift) - 1) >> shift;
	window = bpf_ntohs(before);
	window = window > by ? window - by : 0;
	return replace_half(skb, offsetof(struct tcp_header, window), before, bpf_htons(window));
}

/* Of an unpacked segment: its acknowledgement, window, SACK blocks and clock, as they concern the range. */
/* Not static, as send_reply(). */
__noinline int keep_to_range(struct __sk_buff *skb, const struct segment *segment, const struct range *range, __u8 shift)
{
	__u32 ack;

	if (!segment || !range || !(segment->flags & TCP_ACK))
		return 0;
	ack = segment->ack;
	if (range->has_end && (__s32)(ack - range->end) > 0)
		ack = range->end;
	if (range->has_first && (__s32)(ack - range->first) < 0) {
		ack = range->first;
		if (!shrink_window(skb, ack - segment->ack, shift))
			return -1;
	}
	if (ack != segment->ack && !replace_word(skb, offsetof(struct tcp_header, ack), segment->ack, ack))
		return -1;
	return forget_echo(skb, segment) || cut_sack(skb, segment, range) ? -1 : 0;
}
