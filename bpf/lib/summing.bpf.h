/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* summing: RFC 1071 sums over what lies in a frame, piece by piece. */
#pragma once

#include "answers.bpf.h"

/* A sum over a segment, piece by piece. */
struct summing {
	context_t *ctx;
	struct piece *piece;
	__u32 offset; /* in the frame, of what comes next */
	__u32 left; /* how much that is */
	__u32 sum;
};

static long sum_piece(__u64 index, struct summing *summing)
{
	struct piece *piece = summing->piece;
	__u32 length = summing->left;
	__s64 sum;

	if (length > PIECE_MAX)
		length = PIECE_MAX;
	barrier_var(length);
	if (!length || length > PIECE_MAX)
		return 1;
	/* The last word may be of fewer bytes. */
	*(__u32 *)(piece->bytes + (length & ~3u)) = 0;
	if (context_load(summing->ctx, summing->offset, piece->bytes, length))
		return 1;
	sum = bpf_csum_diff(NULL, 0, (void *)piece->bytes, (length + 3) & ~3u, summing->sum);
	if (sum < 0)
		return 1;
	summing->sum = sum;
	summing->offset += length;
	summing->left -= length;
	return 0;
}

/* Over so many bytes of the frame from `at` on, 64 KiB at most. Not static: the verifier walks it once. */
__noinline bool sum_frame(context_t *ctx, __u32 at, __u32 length, __u32 *sum)
{
	struct summing summing = { .ctx = ctx, .offset = at, .left = length };
	__u32 zero = 0;

	if (!sum)
		return false;
	summing.piece = bpf_map_lookup_elem(&pieces, &zero);
	if (!summing.piece)
		return false;
	bpf_loop(0x10000 / PIECE_MAX, sum_piece, &summing, 0);
	*sum = summing.sum;
	return !summing.left;
}
