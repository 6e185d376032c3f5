// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/*
 * lab_switch: the short way through the lab's switch, at tc ingress of each port.
 * A real switch costs its hosts no CPU; a bridge between veths costs a second hop
 * through backlog and softirq. A frame between two hosts that are connected
 * directly is handed to the other one's interface at once; the bridge has the rest:
 * broadcast, what no entry is for, emulated links, and frames that are too long.
 */
#include "kernel.h"
#include <linux/if_packet.h>

/* Hosts that are connected directly: link address -> ifindex of the port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u64);
	__type(value, __u32);
} ports SEC(".maps");

static __always_inline __u32 *port_of(const __u8 *mac)
{
	__u64 key = 0;

	__builtin_memcpy(&key, mac, ETH_ALEN);
	return bpf_map_lookup_elem(&ports, &key);
}

SEC("tcx/ingress")
int lab_switch(struct __sk_buff *ctx)
{
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	__u32 *from, *to;
	__u32 mtu = 0;

	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return TC_ACT_UNSPEC;
	to = port_of(ethernet->h_dest);
	if (!to || *to == ctx->ifindex)
		return TC_ACT_UNSPEC;
	/* An emulated link's frames come by here, too; its relay carries them. */
	from = port_of(ethernet->h_source);
	if (!from || *from != ctx->ifindex)
		return TC_ACT_UNSPEC;
	if (bpf_check_mtu(ctx, *to, &mtu, 0, 0))
		return TC_ACT_UNSPEC;
	/* It is not the port's, but the host's; kernels before 6.16 leave that to us. */
	if (bpf_skb_change_type(ctx, PACKET_HOST))
		return TC_ACT_UNSPEC;
	return bpf_redirect_peer(*to, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
