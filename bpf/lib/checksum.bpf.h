/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * checksum: RFC 1071 sums. A TCP packet from a local or virtual sender may
 * carry only its pseudo-header's sum (checksum offload); a program at tc
 * cannot see which it is, but can tell by the value.
 */
#pragma once

enum checksum_state { CHECKSUM_WRONG, CHECKSUM_WHOLE, CHECKSUM_PSEUDO_ONLY };

static __always_inline __u16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u64 pseudo_header_sum(__be32 source, __be32 dest, __u16 length)
{
	return (__u64)source + dest + bpf_htons(IPPROTO_TCP) + bpf_htons(length);
}

static __always_inline __u64 sum_words(const __be32 *words, __u32 count)
{
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (__u32 at = 0; at < count; at++)
		sum += words[at];
	return sum;
}

/* By how much a sum changes of so many words, which were that much together and now are `is` (RFC 1624). */
static __always_inline __u32 sum_change(__u64 was, __u64 is, __u32 words)
{
	__u64 sum = is + words * 0xffffffffull - was;

	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

/* Of an IPv4 header without options, its check field as it stands. */
static __always_inline __u64 ipv4_header_sum(const struct iphdr *ip)
{
	return sum_words((const void *)ip, sizeof(*ip) / 4);
}

static __always_inline void set_ipv4_checksum(struct iphdr *ip)
{
	ip->check = 0;
	ip->check = ~checksum_fold(ipv4_header_sum(ip));
}
