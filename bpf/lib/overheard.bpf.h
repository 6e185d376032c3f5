/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * overheard: where the answers of a server without an agent end, as far as what it says comes
 * by this dispatcher (docs/protocol/splice.md 5.4). Packets may be lost before they come here,
 * come again, in another order, or by way of another dispatcher:
 *
 *   again                                  ignored
 *   a gap within counted bytes             no matter: they are counted, whatever they are
 *   any other gap, or what is not HTTP     its answers are followed no more: nobody guesses
 *   bytes that have changed on the way     ignored: TCP drops them, and they come again
 *
 * When the flow leaves (parting.bpf.h), nothing that the server says goes on to the client.
 */
#pragma once

#include "answers.bpf.h"
#include "summing.bpf.h"

/* By the key of `splices`; of flows without boundaries there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct flow_key);
	__type(value, struct overheard);
} overheard SEC(".maps");

/* Nobody repeats what lies further back: it is more than any window (RFC 7323 2.3). */
#define REPEATED_REACH (1 << 30)
/* Whoever has it looks at one packet, or decides. */
#define HEAR_TRIES 256

static __noinline bool take_overheard(struct overheard *its)
{
	if (!its)
		return false;
	for (int tries = 0; tries < HEAR_TRIES; tries++)
		if (__sync_bool_compare_and_swap(&its->busy, 0, 1))
			return true;
	return false;
}

static __always_inline void leave_overheard(struct overheard *its)
{
	__sync_bool_compare_and_swap(&its->busy, 1, 0);
}

/* So many bytes from here on are counted, not read. */
static __always_inline __u64 counted_ahead(const struct answers *answers)
{
	return answers->phase == ANSWER_BODY || answers->phase == ANSWER_CHUNK_DATA || is_until_close(answers) ?
		       answers->remaining :
		       0;
}

/* Is a segment as it was sent? Its IP packet is 64 KiB at most. Not static: the verifier walks it once. */
__noinline bool is_whole(context_t *ctx, const struct segment *segment)
{
	const __u32 at = sizeof(struct ethhdr) + sizeof(struct iphdr);
	__u32 length, sum;
	__u64 pseudo;
	__u16 check;

	if (!segment)
		return false;
	length = segment->header_length + segment->payload;
	pseudo = pseudo_header_sum(segment->client, segment->vip, length);
	if (context_load(ctx, at + offsetof(struct tcp_header, check), &check, sizeof(check)))
		return false;
	/* No link has been where it could have changed. */
	if (check == checksum_fold(pseudo))
		return true;
	return sum_frame(ctx, at, length, &sum) && checksum_fold(pseudo + sum) == 0xffff;
}

static __always_inline bool skip_gap(struct answers *answers, __u32 gap)
{
	if (gap > counted_ahead(answers))
		return false;
	answers->next += gap;
	answers->remaining -= gap;
	if (!answers->remaining)
		end_counted(answers);
	return true;
}

/* A server's segment with payload. */
static __noinline int overhear(context_t *ctx, struct overheard *its, const struct segment *segment)
{
	struct answers *answers;
	struct said said;
	__s32 ahead;
	__s64 end;

	if (!its || !segment)
		return 0;
	answers = &its->answers;
	if (answers->phase > ANSWER_CHUNK_DATA && !is_until_close(answers))
		return 0;
	said.seq = segment->seq;
	said.ack = segment->ack;
	said.offset = sizeof(struct ethhdr) + sizeof(struct iphdr) + segment->header_length;
	said.payload = segment->payload;
	ahead = said.seq - answers->next;
	end = (__s64)ahead + said.payload;
	if (end <= 0 && ahead > -REPEATED_REACH)
		return 0;
	/* A number that has changed on its way misleads nobody within counted bytes: their end stays where it is. */
	if ((end <= 0 || end > counted_ahead(answers)) && !is_whole(ctx, segment))
		return 0;
	if (ahead <= -REPEATED_REACH || (ahead > 0 && !skip_gap(answers, ahead)))
		return lose(answers);
	return follow(ctx, answers, &said);
}

/* How far the server's window has reached: what it has said of that once it does not take back (RFC 9293 3.8.6). */
static __always_inline void note_edge(struct overheard *its, const struct segment *segment)
{
	__u32 edge = segment->ack + (segment->window << (its->window_scale & 15));

	if (segment->flags & TCP_ACK && (!its->edge || (__s32)(edge - its->edge) > 0))
		its->edge = edge;
}

/*
 * The client is told of what waits here that it has come (splice.md 5.8): it may acknowledge from beyond the
 * server's window, which would not read that (RFC 9293 3.10.7.4). How far back it is said instead, from the edge; unless
 * the client has had what was not heard here: then the window may have moved, too. Its numbers are `shift` ahead of the
 * server's.
 */
static __always_inline __u32 ahead_of_window(const struct overheard *its, const struct segment *segment, __u32 shift)
{
	__s32 ahead = its && its->edge ? segment->seq - its->edge : 0;

	if (ahead <= 0 || (__s32)(segment->ack - shift - its->answers.next) > 0)
		return 0;
	return ahead;
}

/* False: counted, drop. Its flow has left, or leaves just now. Not static, as is_whole(). */
__noinline bool is_heard(context_t *ctx, struct overheard *its, const struct segment *segment)
{
	bool parted;

	if (!its || !segment)
		return false;
	if (segment->payload || segment->flags & (TCP_FIN | TCP_RST)) {
		if (!take_overheard(its)) {
			count_drop(DROP_REPEATED);
			return false;
		}
		parted = its->parted;
		if (segment->flags & (TCP_FIN | TCP_RST))
			its->closes = 1;
		if (!parted && segment->payload)
			overhear(ctx, its, segment);
		leave_overheard(its);
	} else {
		parted = *(volatile __u8 *)&its->parted;
	}
	if (parted)
		count_drop(DROP_MOVED);
	return !parted;
}
