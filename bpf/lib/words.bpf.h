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
