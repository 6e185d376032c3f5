/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * cookie: the stateless handshake (RFC 4987 3.6), under a key that all
 * dispatchers share. The ISN of the SYN-ACK is the cookie:
 *
 *   with timestamps      31            8 7     4 3      0
 *                        |   hash 24    | mss  | period |
 *                        and in TSval's low 6 bits: ecn | sack | wscale 4
 *   without timestamps   31       10 9   8 7      4  3     2    1      0
 *                        | hash 22  | mss | wscale |sack | ecn | period |
 *
 * The hash covers the 4-tuple, the client's ISN, the period, the low bits, and
 * which of the two forms it is: a cookie of one tells nothing of the other.
 * A window scale of 15 means that the client did not offer the option.
 */
#pragma once

#include "node.bpf.h"
#include "packet.bpf.h"
#include "siphash.bpf.h"

#define TSVAL_OPTION_BITS 6
#define TSVAL_OPTION_MASK ((1u << TSVAL_OPTION_BITS) - 1)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COOKIE_KEY_SETS *COOKIE_ROTATIONS);
	__type(key, __u32);
	__type(value, struct siphash_key);
} cookie_keys SEC(".maps");

/* What a cookie says of the handshake. */
struct cookie_terms {
	__u16 mss;
	__u8 client_shift; /* or WSCALE_NONE */
	__u8 sack;
	__u8 ecn;
	__u8 timestamps;
};

/* The client's MSS is rounded down to one of these; 536 is the least that backends take. */
/* The section by name: clang 14 puts what is 32 bytes long where libbpf does not look. */
static const __u16 mss_classes[16] SEC(".rodata") = { 536,  640,  800,	 960,  1100, 1220, 1280, 1320,
				       1360, 1388, 1400, 1420, 1440, 1452, 1460, 8960 };
static const __u16 mss_classes_coarse[4] SEC(".rodata") = { 536, 1220, 1400, 1460 };

static __always_inline __u32 mss_class(const __u16 *classes, __u32 count, __u16 mss)
{
	__u32 class = 0;

#pragma clang loop unroll(full)
	for (__u32 i = 1; i < count; i++)
		if (mss >= classes[i])
			class = i;
	return class;
}

static __always_inline __u64 cookie_period(void)
{
	return cluster_time_ns() / (COOKIE_PERIOD_S * 1000000000ull);
}

/* Of that set: the first one makes cookies, both are believed. */
static __always_inline struct siphash_key *cookie_key(__u64 period, __u32 set)
{
	__u64 rotation = period >> COOKIE_ROTATION_SHIFT;
	__u32 slot = set * COOKIE_ROTATIONS + rotation % COOKIE_ROTATIONS;
	struct siphash_key *key = bpf_map_lookup_elem(&cookie_keys, &slot);

	return key && key->generation == rotation ? key : NULL;
}

static __always_inline __u32 cookie_hash(const struct siphash_key *key, const struct flow_key *flow,
					 __u32 client_isn, __u64 period, bool timestamps,
					 __u32 low_bits)
{
	__u64 words[6];

	__builtin_memcpy(words, flow, 32);
	words[4] = (__u64)client_isn << 32 | (__u32)flow->vip_port << 16 | flow->client_port;
	words[5] = period << 17 | (__u64)timestamps << 16 | low_bits;
	return siphash(key, words, 6);
}

static __always_inline __u32 tsval_bits(const struct cookie_terms *terms)
{
	return terms->client_shift | terms->sack << 4 | terms->ecn << 5;
}

static __noinline __u32 make_cookie(const struct siphash_key *key, const struct flow_key *flow,
				    __u32 client_isn, __u64 period, const struct cookie_terms *terms)
{
	__u32 low;

	if (terms->timestamps) {
		low = mss_class(mss_classes, 16, terms->mss) << 4 | (period & 15);
		return cookie_hash(key, flow, client_isn, period, true, low | tsval_bits(terms) << 10) << 8 |
		       low;
	}
	low = mss_class(mss_classes_coarse, 4, terms->mss) << 8 | terms->client_shift << 4 |
	      terms->sack << 3 | terms->ecn << 2 | (period & 3);
	return cookie_hash(key, flow, client_isn, period, false, low) << 10 | low;
}

/*
 * Was the cookie that this segment acknowledges made for its flow, not long ago? tsecr counts
 * only if the packet has timestamps. On success the terms are filled in. Not static: the
 * verifier walks it once.
 */
__noinline int check_cookie(const struct segment *segment, __u32 client_isn, __u32 timestamps, __u32 tsecr,
			    struct cookie_terms *terms)
{
	__u32 cookie = segment ? segment->ack - 1 : 0;
	__u32 period_mask = timestamps ? 15 : 3;
	__u64 now = cookie_period();
	/* The period with these low bits that is nearest: one ahead (clocks differ) or behind. */
	__u32 age = (now + 1 - cookie) & period_mask;
	__u64 period = now + 1 - age;
	struct siphash_key *key;
	__u32 class;

	if (!segment || !terms || age > COOKIE_MAX_AGE)
		return false;
	terms->timestamps = timestamps != 0;
	if (timestamps) {
		class = cookie >> 4 & 15;
		terms->mss = mss_classes[class];
		terms->client_shift = tsecr & 15;
		terms->sack = tsecr >> 4 & 1;
		terms->ecn = tsecr >> 5 & 1;
	} else {
		class = cookie >> 8 & 3;
		terms->mss = mss_classes_coarse[class];
		terms->client_shift = cookie >> 4 & 15;
		terms->sack = cookie >> 3 & 1;
		terms->ecn = cookie >> 2 & 1;
	}
	for (__u32 set = 0; set < COOKIE_KEY_SETS; set++) {
		key = cookie_key(period, set);
		if (key && make_cookie(key, &segment->key, client_isn, period, terms) == cookie)
			return true;
	}
	return false;
}
