/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* words: eight bytes of text at a time. */
#pragma once

#define EVERY_BYTE(byte) ((byte) * 0x0101010101010101ull)
/* Or'ed in, it makes letters lower case, and other bytes into others. */
#define LOWER_CASE EVERY_BYTE(0x20)

/* The high bit of every byte that is an LF, and no other (Hacker's Delight 6-1). */
static __always_inline __u64 line_feeds(__u64 word)
{
	__u64 x = word ^ EVERY_BYTE('\n');

	return ~(((x & EVERY_BYTE(0x7f)) + EVERY_BYTE(0x7f)) | x | EVERY_BYTE(0x7f));
}

/* GET, HEAD: requests without a body that make no tunnel. */
static __always_inline bool is_head_request(__u64 word)
{
	return (word & 0xffffffffff) == 0x2044414548ull;
}

static __always_inline bool is_get_request(__u64 word)
{
	return (word & 0xffffffff) == 0x20544547ull;
}

/* These, DELETE, OPTIONS, TRACE: idempotent (RFC 9110 9.2.2), and no upload, as PUT is. */
static __always_inline bool may_run_twice(__u64 word)
{
	return is_get_request(word) || is_head_request(word) || (word & 0xffffffffffffff) == 0x204554454c4544ull || word == 0x20534e4f4954504full ||
	       (word & 0xffffffffffff) == 0x204543415254ull;
}
