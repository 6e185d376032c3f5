/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * shift: a connection that was parked, while other backends had its flow, goes on by the
 * numbers with which it was left. The wire's are ahead of them: the client's by what it has
 * sent to others, the server's by what those have answered, and the clock's by what theirs
 * were ahead (docs/protocol/handoff.md 8).
 */
#pragma once

/* The words of a TCP header of at most 64 bytes that carry numbers. */
#define SEQ_WORD 4
#define ACK_WORD 8
#define TSVAL_WORD 24
#define TSECR_WORD 28

/* By how much what stands in a header changes. */
struct shift {
	__u32 seq;
	__u32 ack;
	__u32 clock; /* of the echo on the way in, of the value on the way out */
	__u32 heard; /* of the client's clock, with `may_be_late` */
	bool may_be_late;
	bool out;
};

static __always_inline void add_to_word(struct sack_bench *bench, __u32 at, __u32 by)
{
	put_be32(bench->after + (at & 63), get_be32(bench->after + (at & 63)) + by);
}

struct block_shift {
	struct sack_bench *bench;
	__u32 at;
	__u32 end;
	__u32 by;
};

static long shift_edge(__u64 edge, struct block_shift *shift)
{
	if (shift->at + 4 > shift->end || shift->at > 60)
		return 1;
	add_to_word(shift->bench, shift->at, shift->by);
	shift->at += 4;
	return 0;
}

/* Where that option stands among those of the header on the bench; 0: nowhere. */
static __always_inline __u32 option_at(struct sack_bench *bench, __u32 header_length, __u32 kind, __u32 *size)
{
	struct option_search search = {
		.bytes = bench->before + sizeof(struct tcp_header),
		.length = header_length - sizeof(struct tcp_header),
		.kind = kind,
	};

	bpf_loop(TCP_OPTIONS_MAX, find_option, &search, 0);
	*size = search.size;
	return search.size ? sizeof(struct tcp_header) + search.at : 0;
}

/*
 * On the way in: what waited at its dispatcher may say an older clock than its client has said here
 * meanwhile, and would be refused for ever. TCP does not know that option (handoff.md 5.4d, 8.3).
 */
static __always_inline void age_if_late(struct sack_bench *bench, __u32 at, const struct shift *shift)
{
	if (shift->may_be_late && is_before(get_be32(bench->before + ((at + 2) & 63)), shift->heard))
		bench->after[at & 63] = AGED_TIMESTAMPS;
}

/* Its blocks are of the numbers that the acknowledgement is of. */
static __always_inline void shift_options(struct sack_bench *bench, __u32 header_length, const struct shift *shift)
{
	__u32 at, size, clock;

	/* By far the most: NOP NOP timestamps, at a place where a word can be summed up. */
	if (get_be32(bench->before + 20) == 0x0101080a) {
		clock = shift->out ? TSVAL_WORD : TSECR_WORD;
		if (get_be32(bench->before + clock))
			add_to_word(bench, clock, shift->clock);
		age_if_late(bench, TSVAL_WORD - 2, shift);
		if (header_length == 32)
			return;
	} else {
		at = option_at(bench, header_length, 8, &size);
		if (size == 10) {
			clock = at + (shift->out ? 2 : 6);
			if (get_be32(bench->before + (clock & 63)))
				add_to_word(bench, clock, shift->clock);
			age_if_late(bench, at, shift);
		}
	}
	at = option_at(bench, header_length, 5, &size);
	if (size) {
		struct block_shift blocks = { .bench = bench, .at = at + 2, .end = at + size, .by = shift->ack };

		bpf_loop(2 * SACK_BLOCKS_MAX, shift_edge, &blocks, 0);
	}
}

/* Changes the header of an unpacked segment. Not static, as send_reply(). */
__noinline int shift_header(struct __sk_buff *skb, __u32 header_length, const struct shift *shift)
{
	__u32 zero = 0;
	struct sack_bench *bench = bpf_map_lookup_elem(&sack_benches, &zero);
	__s64 difference;

	if (!bench || !shift || header_length < sizeof(struct tcp_header) || header_length > 60)
		return -1;
	__builtin_memset(bench->before, 0, 64);
	if (bpf_skb_load_bytes(skb, UNPACKED_TCP, bench->before, header_length))
		return -1;
	__builtin_memcpy(bench->after, bench->before, 64);
	add_to_word(bench, SEQ_WORD, shift->seq);
	add_to_word(bench, ACK_WORD, shift->ack);
	if (header_length > sizeof(struct tcp_header))
		shift_options(bench, header_length, shift);
	difference = bpf_csum_diff((__be32 *)bench->before, 64, (__be32 *)bench->after, 64, 0);
	if (difference < 0 || bpf_skb_store_bytes(skb, UNPACKED_TCP, bench->after, header_length, 0) ||
	    bpf_l4_csum_replace(skb, UNPACKED_CHECK, 0, difference, 0))
		return -1;
	return 0;
}

/* An unpacked segment of the client's, for the socket. */
static __always_inline bool shift_in(struct __sk_buff *skb, const struct segment *segment, const struct setup *setup)
{
	struct shift shift = {
		.seq = -setup->client_shift,
		.ack = -setup->server_shift,
		.clock = -setup->clock_shift,
	};

	if (!setup->shifted)
		return true;
	/* By which it was taken up again. What waited behind it comes without clocks (5.4d). */
	if (segment->payload && segment->seq == setup->start) {
		shift.heard = clock_heard(skb, segment, 0);
		shift.may_be_late = shift.heard;
	}
	return !shift_header(skb, segment->header_length, &shift);
}

/* A segment of the socket's, for the client. */
static __always_inline bool shift_out(struct __sk_buff *skb, __u32 header_length, const struct setup *setup)
{
	struct shift shift = {
		.seq = setup->server_shift,
		.ack = setup->client_shift,
		.clock = setup->clock_shift,
		.out = true,
	};

	return !setup->shifted || !shift_header(skb, header_length, &shift);
}

/*
 * What its dispatcher has acknowledged to a client that asks ahead may lie beyond the window of
 * the socket here, which would not read an acknowledgement from there (handoff.md 5.1a). That may be
 * small, while its server answers and reads nothing. Who does not ask ahead costs no look at it.
 */
static __always_inline bool keep_in_window(struct __sk_buff *skb, const struct segment *segment,
					   const struct setup *setup)
{
	__u32 edge;

	if (segment->payload || segment->flags & (TCP_FIN | TCP_RST) || !(setup->meta.tcp_options & CARE_FOLLOW) ||
	    (__s32)(segment->seq - setup->answers.taken) <= 0)
		return true;
	edge = client_number(skb, segment, setup, WINDOW_EDGE, segment->seq);
	return (__s32)(segment->seq - edge) <= 0 ||
	       replace_word(skb, offsetof(struct tcp_header, seq), segment->seq, edge);
}

/* As deliver(), to a connection that is set up here. */
static __always_inline int deliver_shifted(struct __sk_buff *skb, const struct segment *segment,
					   const struct setup *setup)
{
	if (!unpack(skb, segment) || !keep_in_window(skb, segment, setup) || !shift_in(skb, segment, setup))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

/* So far on no TCP takes what acknowledges the first byte, either; and numbers come round. */
#define FIRST_IS_LONG_AGO (1 << 24)

/* Is it from before this socket's first byte? Nobody says so any more once the client has had so much. */
static __always_inline bool is_from_before(const struct segment *segment, struct setup *setup)
{
	__s32 since = segment->ack - setup->first;

	if (setup->before || !setup->first)
		return false;
	if (since >= FIRST_IS_LONG_AGO)
		setup->first = 0;
	return since < 0;
}

/*
 * The same, where it may have another owner before it. What has waited at a dispatcher may acknowledge less than this
 * socket's first byte, even if that owner is none any more: TCP takes nothing so old (RFC 5961 5.2).
 */
static __always_inline int deliver_in_range(struct __sk_buff *skb, const struct segment *segment, struct setup *setup)
{
	struct range range = { .first = setup->first, .has_first = true };

	if (setup->saved & SAVED_ADOPTED) {
		range.end = heard_end(skb, segment, setup);
		range.has_first = false;
		range.has_end = range.end != segment->ack;
	}
	if (!setup->before && !range.has_end && !(range.has_first && is_from_before(segment, setup)))
		return deliver_shifted(skb, segment, setup);
	if (!unpack(skb, segment) || !keep_in_window(skb, segment, setup) ||
	    keep_to_range(skb, segment, &range, setup->meta.window_scales >> 4) || !shift_in(skb, segment, setup))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}
