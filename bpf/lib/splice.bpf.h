/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * splice: flows whose server has no agent (docs/protocol/splice.md). The daemon has opened
 * a connection to the server from a splice address, which begins at the client's own
 * number; from then on every dispatcher rewrites the segments of both directions
 * [SPLICE06 2, 6.2]:
 *
 *   client -> VIP             becomes  splice address -> server    send_to_server()
 *   server -> splice address  becomes  VIP -> client               dispatch_answer()
 *   ICMP errors about either, the same, and what they quote        splice_icmp.bpf.h
 *
 * Where the server's host has an agent, that does the second (split.bpf.h), and only what it
 * does not know comes here.
 *
 * Of flows that have boundaries the server's answers are followed (overheard.bpf.h).
 *
 * What there is no connection for yet is the daemon's, at the dispatcher whose address it is.
 */
#pragma once

#include "rewrite.bpf.h"
#include "to_dispatcher.bpf.h"
#include "overheard.bpf.h"
#include "told.bpf.h"

/* By the server's packets: the server is the key's client, the splice address its VIP. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct flow_key);
	__type(value, struct spliced);
} splices SEC(".maps");

/* Two link addresses, the receiver's first, as `struct backend` has them. */
static __always_inline int send_to_hop(context_t *ctx, __u32 ifindex, __u8 *macs)
{
	struct ethhdr *ethernet = context_data(ctx);

	if ((void *)(ethernet + 1) > context_end(ctx)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	__builtin_memcpy(ethernet, macs, 2 * ETH_ALEN);
	return context_send(ctx, ifindex);
}

/* Rewritten, to its server: one on this host has it from the kernel, as it came; its agent hears it before that. */
static __always_inline int send_to_host(context_t *ctx, struct backend *backend)
{
	if (is_on_this_host(backend)) {
		count_event(EVENT_TO_OWN_HOST);
		return VERDICT_NEXT;
	}
	return send_to_hop(ctx, backend->ifindex, backend->destination_mac);
}

/* As of one moment, unless it is being changed all the while. */
static __always_inline struct splice read_splice(const struct flow *flow)
{
	const volatile struct flow *now = flow;
	struct splice splice = {};

	for (int tries = 0; tries < 4; tries++) {
		bool was_busy = now->busy;

		barrier();
		splice = flow->splice;
		barrier();
		if (!was_busy && !now->busy)
			break;
	}
	return splice;
}

/* No window is larger (RFC 7323 2.3), */
#define WINDOW_MAX (1 << 30)
/* and no connection takes longer to be made, in epochs. */
#define CONNECTING_MAX (3 * 1000000000ull >> EPOCH_SHIFT)

/*
 * Does it acknowledge what another owner has said? To a server that is being connected to it is no connection's. Later a
 * client that has had more of its server than half of all numbers would look so, too.
 */
static __always_inline bool is_of_another_owner(const struct flow *flow, const struct segment *segment)
{
	__u32 behind = flow->server_isn + 1 - segment->ack;

	return segment->flags & TCP_ACK && behind && behind <= WINDOW_MAX &&
	       (__s32)((__u32)(cluster_time_ns() >> EPOCH_SHIFT) - bpf_ntohl(flow->meta.epoch)) < (__s32)CONNECTING_MAX;
}

/*
 * What is added to the echo of a client's segment. Of what starts the connection while its client has heard nothing of it the
 * echo is the SYN-ACK's clock: until the handshake is over Linux takes none from before that (from 6.15 on), and a client that
 * repeats its request has an older one, of the owner before.
 */
static __always_inline __u32 change_of_echo(context_t *ctx, const struct flow *flow, const struct segment *segment,
					    const struct splice *splice, const struct spliced *to)
{
	struct clock_options *options = context_data(ctx) + sizeof(struct ethhdr) + IP_LEN + TCP_LEN;

	if (!to || !to->clock || segment->ack != flow->server_isn + 1 || segment->header_length != TCP_LEN_USUAL ||
	    (void *)(options + 1) > context_end(ctx) || options->kinds != bpf_htonl(NOP_NOP_TIMESTAMPS))
		return -splice->clock_ahead;
	return to->clock - bpf_ntohl(options->echo);
}

/* A client's packet, of a flow that is spliced. */
__noinline int send_to_server(context_t *ctx, const struct flow *flow, const struct segment *segment)
{
	struct backend *backend;
	struct splice splice;
	struct flow_key key;
	__u32 ahead = 0, echo;

	if (!flow || !segment)
		return VERDICT_DROP;
	if (is_of_another_owner(flow, segment)) {
		count_drop(DROP_REPEATED);
		return VERDICT_DROP;
	}
	backend = backend_at(flow->backend);
	if (!backend || !knows_way(ctx, backend))
		return VERDICT_DROP;
	splice = read_splice(flow);
	echo = -splice.clock_ahead;
	if (segment->payload) {
		if (segment->seq == flow->client_isn + 1) {
			key = flow_key_v4(mapped_ipv4(backend->addr), splice.address, splice.server_port, splice.port);
			echo = change_of_echo(ctx, flow, segment, &splice, bpf_map_lookup_elem(&splices, &key));
		}
	} else if (!(segment->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && flow->meta.tcp_options & CARE_FOLLOW &&
		   !(splice.changes & SPLICE_SPLIT)) {
		key = flow_key_v4(mapped_ipv4(backend->addr), splice.address, splice.server_port, splice.port);
		ahead = ahead_of_window(bpf_map_lookup_elem(&overheard, &key), segment, splice.ahead);
	}
	struct rewriting how = {
		.source = splice.address,
		.dest = mapped_ipv4(backend->addr),
		.source_port = splice.port,
		.dest_port = splice.server_port,
		.seq = -ahead,
		.ack = -splice.ahead,
		.echo = echo,
		.window_shift = splice.to_server_shift,
		.changes = splice.changes,
	};
	if (rewrite(ctx, segment->header_length, &how)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	count_event(EVENT_FORWARDED);
	count_event(EVENT_TO_SERVER);
	return send_to_host(ctx, backend);
}

/* There is no such connection any more: what its server still says is nobody's. */
__noinline int forget_splice(const struct flow *flow)
{
	struct backend *backend;
	struct flow_key key;
	__u32 slot;

	if (!flow || !flow->splice.port)
		return 0;
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	if (!backend)
		return 0;
	key = flow_key_v4(mapped_ipv4(backend->addr), flow->splice.address, flow->splice.server_port,
			  flow->splice.port);
	bpf_map_delete_elem(&overheard, &key);
	return bpf_map_delete_elem(&splices, &key);
}

/* False: nobody knows a link address for the client. */
static __noinline bool resolve_client(context_t *ctx, struct spliced *to, __u64 now)
{
	struct bpf_fib_lookup fib = {
		.family = AF_INET,
		.l4_protocol = IPPROTO_TCP,
		.ifindex = ctx->ingress_ifindex,
		.ipv4_src = mapped_ipv4(to->flow.vip_addr),
		.ipv4_dst = mapped_ipv4(to->flow.client_addr),
	};

	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return to->ifindex;
	to->ifindex = fib.ifindex;
	__builtin_memcpy(to->destination_mac, fib.dmac, ETH_ALEN);
	__builtin_memcpy(to->source_mac, fib.smac, ETH_ALEN);
	to->resolved_ns = now;
	return true;
}

/* The clock of a packet that has been rewritten: where there is nothing but it, nearly always. */
static __always_inline void note_clock(context_t *ctx, struct overheard *its)
{
	struct clock_options *options = context_data(ctx) + sizeof(struct ethhdr) + IP_LEN + TCP_LEN;
	__u32 clock;

	if ((void *)(options + 1) > context_end(ctx) || options->kinds != bpf_htonl(NOP_NOP_TIMESTAMPS))
		return;
	clock = bpf_ntohl(options->value);
	if (!its->clock || (__s32)(clock - its->clock) > 0)
		its->clock = clock;
}

/* A server's packet, for the client; with what is known of its answers, if they are followed. */
static __noinline int send_to_client(context_t *ctx, struct spliced *to, const struct segment *segment,
				     struct overheard *its)
{
	bool usual = segment && segment->header_length <= TCP_LEN_USUAL;
	__u64 now = bpf_ktime_get_coarse_ns();
	bool resolved;

	if (!to || !segment)
		return VERDICT_DROP;
	struct rewriting how = {
		.source = mapped_ipv4(to->flow.vip_addr),
		.dest = mapped_ipv4(to->flow.client_addr),
		.source_port = to->flow.vip_port,
		.dest_port = to->flow.client_port,
		.seq = to->splice.ahead,
		/* With SACK blocks, which would move along, by nothing. */
		.ack = its && usual ? told_ahead(&its->told, segment->ack) : 0,
		.value = to->splice.clock_ahead,
		.window_shift = to->splice.to_client_shift,
	};
	resolved = now - to->resolved_ns <= NEXT_HOP_LIFETIME_NS || resolve_client(ctx, to, now);
	if (rewrite(ctx, segment->header_length, &how)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	if (its && segment->header_length == TCP_LEN_USUAL)
		note_clock(ctx, its);
	count_event(EVENT_TO_CLIENT);
	if (!resolved)
		return context_send_routed(ctx, how.source, how.dest);
	return send_to_hop(ctx, to->ifindex, to->destination_mac);
}

/* Up this host's own stack, as the client's own first packets go: to the same worker. */
static __noinline int give_to_connector(context_t *ctx, const struct spliced *to, const struct segment *segment)
{
	struct new_head head = {};
	struct meta *meta = &head.encapsulation.meta;
	struct node *self = this_node();
	struct siphash_key *key;

	if (!to || !segment)
		return VERDICT_DROP;
	if (!self || segment->ip_length > 0xffff - ENCAP_LEN || !(key = tag_key(self->signing_key)) ||
	    context_load(ctx, 0, &head.ethernet, sizeof(head.ethernet))) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	fill_encapsulation(&head.encapsulation, mapped_ipv4(to->flow.client_addr), self->address,
			   to->flow.client_port, segment->ip_length);
	*meta = (struct meta){
		.version = META_VERSION,
		.kind = META_SPLICE,
		.key_id = self->signing_key,
	};
	set_tag(meta, meta_tag(key, meta, self->address, segment->client, segment->vip,
			       segment->key.client_port, segment->key.vip_port));
	if (!encapsulate(ctx, &head))
		return VERDICT_DROP;
	count_event(EVENT_TO_DAEMON);
	return VERDICT_PASS;
}

/* The server has aborted: its client hears it, and the record ends soon. */
static __always_inline void note_reset(const struct spliced *to)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, &to->flow);

	if (flow && flow->splice.port == to->splice.port && flow->splice.address == to->splice.address)
		end_flow(flow, FLOW_RESET);
}

/* Of a server's packet: to a member of another sub-cluster, and there to whose address it is for. */
#define ANSWER_PASSES_MAX 2
/* Who has no daemon just now may know an older deal of lots, and so may the one that he passes it to. */
#define FOLLOWED_PASSES_MAX 3

/* Who keeps the flow of a server whose answers are followed: NO_DISPATCHER, this one does, or they are not. */
static __noinline __u32 keeper_of_followed(const struct spliced *to)
{
	struct four_tuple tuple;

	if (!to || to->state != SPLICED_FOLLOWED || !is_among_others())
		return NO_DISPATCHER;
	tuple.client = mapped_ipv4(to->flow.client_addr);
	tuple.vip = mapped_ipv4(to->flow.vip_addr);
	tuple.client_port = to->flow.client_port;
	tuple.vip_port = to->flow.vip_port;
	return keeper_by_lot(lot_of(&tuple));
}

/* What a server acknowledges lies no further from what its client has said: 65535 << 9. */
#define ACKNOWLEDGED_REACH (1 << 25)

/*
 * Its flow is over, as far as is known here, and the packet acknowledges what that flow's client has never said: whoever
 * connects from that address has taken the port again, and has not been heard to (splice.md 4.6). Its client of before would
 * reset that connection.
 */
static __noinline bool is_taken_again(const struct spliced *to, const struct segment *segment)
{
	struct flow *flow;

	if (!to || !segment || to->state == SPLICED_CONNECTING || !(segment->flags & TCP_ACK) ||
	    is_near(segment->ack, to->server_ack, ACKNOWLEDGED_REACH) || !is_among_others())
		return false;
	flow = bpf_map_lookup_elem(&flows, &to->flow);
	return !flow || (flow->state != FLOW_ESTABLISHED && !is_near(segment->ack, flow->last_seq, ACKNOWLEDGED_REACH));
}

/*
 * A TCP packet to no service: to a splice address, from a server, or the host's. In the
 * segment the server is the client.
 */
__noinline int dispatch_answer(context_t *ctx, const struct passage *how)
{
	struct iphdr *ip = context_data(ctx) + sizeof(struct ethhdr);
	struct tcp_header *tcp = (void *)(ip + 1);
	struct service *address;
	struct overheard *its = NULL;
	struct segment segment;
	struct spliced *to;
	__u32 keeper;
	bool is_sound;

	if (!how || (void *)(tcp + 1) > context_end(ctx))
		return VERDICT_NEXT;
	is_sound = read_segment(ctx, ip, tcp, &segment);
	to = is_sound ? bpf_map_lookup_elem(&splices, &segment.key) : NULL;
	if (!to || is_taken_again(to, &segment)) {
		address = find_service(ip->daddr, 0);
		if (!address || !is_splice_address(address))
			return VERDICT_NEXT;
		if (!is_sound) {
			count_drop(DROP_MALFORMED);
			return VERDICT_DROP;
		}
		if (how->times < (is_in_sub_cluster() ? ANSWER_PASSES_MAX : 1) && address->id != NO_DISPATCHER)
			return pass_to_keeper(ctx, &segment, address->id, how);
		count_drop(DROP_NO_SPLICE);
		return VERDICT_DROP;
	}
	/* A handshake again: it has not heard the end of it. */
	if (to->state == SPLICED_CONNECTING || segment.flags & TCP_SYN)
		return give_to_connector(ctx, to, &segment);
	/* Lots have been dealt anew since it was connected: what it has come to have is its keeper's to hear (splice.md 5.7). */
	keeper = segment.payload || how->times >= FOLLOWED_PASSES_MAX ? NO_DISPATCHER : keeper_of_followed(to);
	if (keeper != NO_DISPATCHER)
		return pass_to_keeper(ctx, &segment, keeper, how);
	if (segment.flags & TCP_ACK && (__s32)(segment.ack - to->server_ack) > 0)
		to->server_ack = segment.ack;
	if (to->state == SPLICED_FOLLOWED)
		its = bpf_map_lookup_elem(&overheard, &segment.key);
	if (its)
		note_edge(its, &segment);
	if (its && !is_heard(ctx, its, &segment))
		return VERDICT_DROP;
	if (segment.flags & TCP_RST)
		note_reset(to);
	return send_to_client(ctx, to, &segment, its);
}
