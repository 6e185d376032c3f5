/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* services: the service addresses, as dispatchers and sprays know them. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

/* With port 0: is it the address of any service? */
static __always_inline struct service *find_service(__be32 address, __be16 port)
{
	struct service_key key = { .port = port };

	map_ipv4(key.addr, address);
	return bpf_map_lookup_elem(&services, &key);
}

/* What stands under its port 0: a dispatcher's own, for its connections to servers, and no service's. */
static __always_inline bool is_splice_address(const struct service *address)
{
	return !address->mss;
}
