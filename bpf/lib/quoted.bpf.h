/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* quoted: an ICMP error about a TCP packet from a service address, and which one that was. */
#pragma once

#define ICMP_UNREACHABLE 3
#define ICMP_TIME_OVER 11
#define ICMP_PARAMETER 12

/* An ICMP error and the start of the packet that it is about. */
struct icmp_error {
	struct iphdr ip;
	struct icmp_header icmp;
	struct iphdr quoted;
	__be16 quoted_source;
	__be16 quoted_dest;
} __attribute__((packed));

/* False: not such an error. */
static __always_inline bool read_icmp_error(context_t *ctx, struct icmp_error *error)
{
	__u16 length;

	if (context_load(ctx, sizeof(struct ethhdr), error, sizeof(*error)))
		return false;
	length = bpf_ntohs(error->ip.tot_len);
	if (length < sizeof(*error) || length + sizeof(struct ethhdr) > context_length(ctx))
		return false;
	if (error->icmp.type != ICMP_UNREACHABLE && error->icmp.type != ICMP_TIME_OVER &&
	    error->icmp.type != ICMP_PARAMETER)
		return false;
	return error->quoted.protocol == IPPROTO_TCP && error->quoted.ihl == 5 &&
	       error->ip.daddr == error->quoted.saddr;
}
