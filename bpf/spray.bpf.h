/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * spray: a stateless layer-3 balancer in front of dispatchers, one source for both hooks
 * (spray_tc.bpf.c, spray_xdp.bpf.c). A packet to a service address is
 *
 *   TCP to a service           sent to the dispatcher that its lot names   lots
 *   an ICMP error about one    the same, by the connection it quotes
 *   a fragment, with options   dropped under a named reason: dispatchers would
 *   anything else              this host's own: an echo request is answered here
 *
 * as it is, by link address; in the encapsulation where a router is in between. Whether
 * this node has the service address does not matter: what comes is sprayed. Other nodes'
 * packets are heartbeats, which are answered, and answers to ours, which pass.
 */
#include "kernel.h"
#include "lib/address.bpf.h"
#include "lib/counters.bpf.h"
#include "lib/packet.bpf.h"
#include "lib/checksum.bpf.h"
#include "lib/services.bpf.h"
#include "lib/heartbeat.bpf.h"
#include "lib/lots.bpf.h"
#include "lib/quoted.bpf.h"
#include "lib/sent.bpf.h"
#include "lib/to_dispatcher.bpf.h"

/* Packets sent to each, by slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DISPATCHERS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} sprayed SEC(".maps");

static __always_inline int drop(enum drop_reason reason)
{
	count_drop(reason);
	return VERDICT_DROP;
}

static __always_inline bool address_frame(context_t *ctx, const struct dispatcher *to)
{
	struct ethhdr ethernet = { .h_proto = bpf_htons(ETH_P_IP) };

	__builtin_memcpy(ethernet.h_dest, to->destination_mac, ETH_ALEN);
	__builtin_memcpy(ethernet.h_source, to->source_mac, ETH_ALEN);
	if (context_store(ctx, 0, &ethernet, sizeof(ethernet))) {
		count_drop(DROP_REWRITE);
		return false;
	}
	return true;
}

static __always_inline int spray_packet(context_t *ctx, const struct iphdr *ip, const struct four_tuple *tuple)
{
	struct wrapping says = { .source_port = tuple->client_port, .kind = META_SPRAYED };
	__u32 slot = draw_lot(tuple);
	struct dispatcher *to = bpf_map_lookup_elem(&dispatchers, &slot);
	__u64 *count;

	if (!to || !to->name[0])
		return drop(DROP_NO_DISPATCHER);
	if (!knows_way_to(ctx, to))
		return VERDICT_DROP;
	if (ip->protocol == IPPROTO_TCP) {
		keep_sent(ctx, bpf_ntohs(ip->tot_len), slot);
		says.signed_ports = (__u32)tuple->vip_port << 16 | tuple->client_port;
	}
	if (to->far ? !enclose(ctx, to, ip, &says) : !address_frame(ctx, to))
		return VERDICT_DROP;
	if (to->far)
		count_event(EVENT_ENCAPSULATED);
	count = bpf_map_lookup_elem(&sprayed, &slot);
	if (count)
		(*count)++;
	count_event(EVENT_SPRAYED);
	return context_send(ctx, to->ifindex);
}

/* It is served while servers speak to it, whether its dispatcher is a member still or not (spray/src/left.rs). */
static __always_inline void note_use(struct service *splice_address)
{
	__u32 now_s = bpf_ktime_get_coarse_ns() / 1000000000ULL;

	if (splice_address->id != now_s)
		splice_address->id = now_s;
}

/* Errors about what backends sent from a service address belong to the connection's dispatcher. */
static __always_inline int spray_icmp(context_t *ctx, const struct iphdr *ip, const struct service *address)
{
	struct icmp_error error;
	struct four_tuple tuple;

	if (!read_icmp_error(ctx, &error) ||
	    (!is_splice_address(address) && !find_service(error.quoted.saddr, error.quoted_source)))
		return VERDICT_NEXT;
	tuple = (struct four_tuple){
		.client = error.quoted.daddr,
		.vip = error.quoted.saddr,
		.client_port = error.quoted_dest,
		.vip_port = error.quoted_source,
	};
	return spray_packet(ctx, ip, &tuple);
}

/* Other nodes' packets: heartbeats are answered here, answers to ours are the daemon's. */
static __noinline int receive(context_t *ctx)
{
	const __u32 at = sizeof(struct ethhdr);
	struct node *self = this_node();
	struct encapsulated h;

	if (context_load(ctx, at, &h.outer, sizeof(h.outer)) || !self || h.outer.ip.daddr != self->address ||
	    !is_ours(&h.outer))
		return VERDICT_NEXT;
	if (context_load(ctx, at, &h, sizeof(h)) || !is_well_formed(&h, context_length(ctx)) ||
	    h.ip.protocol == IPPROTO_TCP)
		return drop(DROP_BAD_ENCAP);
	if (!is_proved(&h, 0, 0))
		return drop(DROP_BAD_TAG);
	switch (h.outer.meta.kind) {
	case META_BEAT:
		return answer_beat(ctx, &h);
	case META_BEAT_REPLY:
		return VERDICT_PASS;
	default:
		return drop(DROP_BAD_ENCAP);
	}
}

SEC(HOOK_SECTION)
int spray(context_t *ctx)
{
	struct node *self = this_node();
	struct {
		struct iphdr ip;
		__be16 ports[2];
	} h;
	struct four_tuple tuple;
	struct service *address;
	__be16 protocol;

	if (!self || context_load(ctx, 12, &protocol, sizeof(protocol)) || protocol != bpf_htons(ETH_P_IP) ||
	    !context_is_for_us(ctx, self->mac) || context_load(ctx, sizeof(struct ethhdr), &h.ip, sizeof(h.ip)) ||
	    h.ip.version != 4)
		return VERDICT_NEXT;
	if (h.ip.protocol == IPPROTO_UDP)
		return receive(ctx);
	if ((h.ip.protocol != IPPROTO_TCP && h.ip.protocol != IPPROTO_ICMP) ||
	    !(address = find_service(h.ip.daddr, 0)))
		return VERDICT_NEXT;
	if (h.ip.ihl != 5)
		return drop(DROP_IP_OPTIONS);
	if (h.ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK))
		return drop(DROP_FRAGMENT);
	if (bpf_ntohs(h.ip.tot_len) + sizeof(struct ethhdr) > context_length(ctx))
		return drop(DROP_MALFORMED);
	if (h.ip.protocol == IPPROTO_ICMP)
		return spray_icmp(ctx, &h.ip, address);
	if (context_load(ctx, sizeof(struct ethhdr), &h, sizeof(h)))
		return drop(DROP_MALFORMED);
	/* Port 0 is nobody's: under it stands that the address is a VIP, or a splice address. */
	if (is_splice_address(address))
		note_use(address);
	else if (!h.ports[1] || !find_service(h.ip.daddr, h.ports[1]))
		return VERDICT_NEXT;
	tuple = (struct four_tuple){
		.client = h.ip.saddr,
		.vip = h.ip.daddr,
		.client_port = h.ports[0],
		.vip_port = h.ports[1],
	};
	return spray_packet(ctx, &h.ip, &tuple);
}

char _license[] SEC("license") = "Dual BSD/GPL";
