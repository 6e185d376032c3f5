/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * own_host: a backend whose host is a dispatcher, too [SPLICE06 figure 2b]. What its data path
 * has for us it leaves at this interface's ingress, where we are next (forward.bpf.h). What its
 * daemon says to us the kernel brings by the loopback device, and it goes on to where other
 * dispatchers' words come in; what we say to it goes that way, too: what the interface brings
 * with this host's own address as its source the kernel does not believe.
 */
#pragma once

#include "encapsulation.bpf.h"
#include "own_interface.bpf.h"

/* In every network namespace (include/net/net_namespace.h). */
#define LOOPBACK_IFINDEX 1

static const __u8 loopback_address[ETH_ALEN] = {};

/* A packet in the encapsulation, for its daemon. */
static __always_inline int give_to_own_dispatcher(struct __sk_buff *skb)
{
	if (bpf_skb_store_bytes(skb, 0, loopback_address, sizeof(loopback_address), 0))
		return drop(DROP_REWRITE);
	return bpf_redirect(LOOPBACK_IFINDEX, BPF_F_INGRESS);
}

static __always_inline bool is_for_agents(enum meta_kind kind)
{
	switch (kind) {
	case META_FORWARD:
	case META_PROBE:
	case META_ICMP:
	case META_ECHO:
	case META_HANDOFF:
	case META_RELEASE:
	case META_GC:
	case META_RETIRED:
	case META_SPLIT:
	case META_SPLIT_PROBE:
	case META_SPLIT_RELEASE:
		return true;
	default:
		return false;
	}
}

/* At the loopback device's ingress. Nothing is believed here: the tag is looked at where it goes. */
SEC("tcx/ingress")
int agent_loopback(struct __sk_buff *skb)
{
	struct node *self = this_node();
	struct encapsulation outer;
	__u32 zero = 0, *interface = bpf_map_lookup_elem(&own_interface, &zero);
	__u8 mac[ETH_ALEN];

	if (!self || !interface || skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &outer.ip, sizeof(outer.ip)) ||
	    outer.ip.protocol != IPPROTO_UDP || outer.ip.daddr != self->address ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &outer, sizeof(outer)) || !is_ours(&outer) ||
	    !is_for_agents(outer.meta.kind))
		return TC_ACT_UNSPEC;
	__builtin_memcpy(mac, self->mac, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0))
		return drop(DROP_REWRITE);
	return bpf_redirect(*interface, BPF_F_INGRESS);
}
