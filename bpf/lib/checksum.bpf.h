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

/* Of an IPv4 header without options, its check field as it stands. */
static __always_inline __u64 ipv4_header_sum(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;

	return (__u64)words[0] + words[1] + words[2] + words[3] + words[4];
}

static __always_inline void set_ipv4_checksum(struct iphdr *ip)
{
	ip->check = 0;
	ip->check = ~checksum_fold(ipv4_header_sum(ip));
}
