/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* address: the 16 bytes in which keys hold addresses, IPv4 mapped (RFC 4291 2.5.5.2). */
#pragma once

static __always_inline void map_ipv4(__u8 to[16], __be32 address)
{
	__u32 *words = (void *)to;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = address;
}

static __always_inline __be32 mapped_ipv4(const __u8 from[16])
{
	return ((const __u32 *)from)[3];
}

/* The key of the flow that a packet from the client belongs to. */
static __always_inline struct flow_key flow_key_v4(__be32 client, __be32 vip, __be16 client_port,
						   __be16 vip_port)
{
	struct flow_key key;

	map_ipv4(key.client_addr, client);
	map_ipv4(key.vip_addr, vip);
	key.client_port = client_port;
	key.vip_port = vip_port;
	return key;
}
