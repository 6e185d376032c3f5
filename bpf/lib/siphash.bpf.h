/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * siphash: SipHash-2-4 over whole 64-bit words (Aumasson, Bernstein 2012),
 * the same as core/src/siphash.rs over the words' little-endian bytes.
 */
#pragma once

struct siphash_state {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate_left(__u64 value, int bits)
{
	return value << bits | value >> (64 - bits);
}

static __always_inline void siphash_round(struct siphash_state *s)
{
	s->v0 += s->v1;
	s->v1 = rotate_left(s->v1, 13) ^ s->v0;
	s->v0 = rotate_left(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate_left(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate_left(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate_left(s->v1, 17) ^ s->v2;
	s->v2 = rotate_left(s->v2, 32);
}

static __always_inline void siphash_word(struct siphash_state *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

static __always_inline void siphash_begin(struct siphash_state *s, __u64 k0, __u64 k1)
{
	s->v0 = k0 ^ 0x736f6d6570736575ull;
	s->v1 = k1 ^ 0x646f72616e646f6dull;
	s->v2 = k0 ^ 0x6c7967656e657261ull;
	s->v3 = k1 ^ 0x7465646279746573ull;
}

static __always_inline __u64 siphash_end(struct siphash_state *s, __u32 words)
{
	siphash_word(s, (__u64)(words * 8) << 56);
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

static __always_inline __u64 siphash(const struct siphash_key *key, const __u64 *words, int count)
{
	struct siphash_state s;

	siphash_begin(&s, key->k0, key->k1);
#pragma clang loop unroll(full)
	for (int i = 0; i < count; i++)
		siphash_word(&s, words[i]);
	return siphash_end(&s, count);
}
