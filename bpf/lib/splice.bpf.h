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
 * What there is no connection for yet is the daemon's, at the dispatcher whose address it is.
 */
#pragma once

#include "to_dispatcher.bpf.h"

/* By the server's packets: the server is the key's client, the splice address its VIP. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct flow_key);
	__type(value, struct spliced);
} splices SEC(".maps");

#define IP_LEN sizeof(struct iphdr)
#define TCP_LEN sizeof(struct tcp_header)
#define TCP_LEN_MAX 60
/* With NOP NOP timestamps: nearly all. */
#define TCP_LEN_USUAL 32

/* A packet's IP and TCP headers, as they came and as they go; any word may be read from any place. */
struct header_bench {
	__u8 before[IP_LEN + TCP_LEN_MAX + 16];
	__u8 after[IP_LEN + TCP_LEN_MAX + 16];
} __attribute__((aligned(8)));

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct header_bench);
} header_benches SEC(".maps");

/* What becomes of a segment. */
struct rewriting {
	__be32 source;
	__be32 dest;
	__be16 source_port;
	__be16 dest_port;
	__u32 seq; /* is added to it; so are the others */
	__u32 ack;
	__u32 value; /* of the timestamps */
	__u32 echo;
	__s32 window_shift; /* left; right if negative */
	__u32 changes; /* SPLICE_* */
};

struct option_rewriting {
	struct header_bench *bench;
	const struct rewriting *how;
	__u32 at; /* in the TCP header */
	__u32 end;
};

static __always_inline __u8 *byte_at(__u8 *header, __u32 at)
{
	return header + IP_LEN + (at & 63);
}

static __always_inline void add_at(struct header_bench *bench, __u32 at, __u32 by)
{
	put_be32(byte_at(bench->after, at), get_be32(byte_at(bench->before, at)) + by);
}

static __always_inline void rewrite_clock(struct header_bench *bench, __u32 at, const struct rewriting *how)
{
	if (how->changes & SPLICE_NO_TIMESTAMPS) {
		__builtin_memset(byte_at(bench->after, at), 1, 10);
		return;
	}
	add_at(bench, at + 2, how->value);
	/* 0: it has not heard a clock yet. */
	if (get_be32(byte_at(bench->before, at + 6)))
		add_at(bench, at + 6, how->echo);
}

static long rewrite_option(__u64 index, struct option_rewriting *rewriting)
{
	struct header_bench *bench = rewriting->bench;
	__u32 at = rewriting->at, edge;
	__u8 kind, size;

	if (at + 1 >= rewriting->end || at >= TCP_LEN_MAX)
		return 1;
	kind = *byte_at(bench->before, at);
	if (kind == 0)
		return 1;
	if (kind == 1) {
		rewriting->at = at + 1;
		return 0;
	}
	size = *byte_at(bench->before, at + 1);
	if (size < 2 || at + size > rewriting->end)
		return 1;
	if (kind == 8 && size == 10)
		rewrite_clock(bench, at, rewriting->how);
	/* RFC 2018: the edges of blocks are of the numbers that the acknowledgement is of. */
	for (edge = 0; kind == 5 && edge < 8; edge++)
		if (6 + 4 * edge <= size)
			add_at(bench, at + 2 + 4 * edge, rewriting->how->ack);
	rewriting->at = at + size;
	return 0;
}

static __always_inline void rewrite_options(struct header_bench *bench, __u32 header_length,
					    const struct rewriting *how)
{
	struct option_rewriting rewriting = {
		.bench = bench,
		.how = how,
		.at = TCP_LEN,
		.end = header_length,
	};

	if (header_length == TCP_LEN_USUAL && get_be32(byte_at(bench->before, TCP_LEN)) == 0x0101080a)
		rewrite_clock(bench, TCP_LEN + 2, how);
	else if (header_length > TCP_LEN)
		bpf_loop(TCP_OPTIONS_MAX, rewrite_option, &rewriting, 0);
}

/* The window field, where the two sides have agreed to other scales (RFC 7323 2.2). */
static __always_inline __be16 shift_window(__be16 field, __s32 by)
{
	__u32 window = bpf_ntohs(field);

	if (by < 0)
		return bpf_htons(window >> (-by & 15));
	window <<= by & 15;
	return bpf_htons(window > 0xffff ? 0xffff : window);
}

static __always_inline void rewrite_tcp(struct tcp_header *tcp, const struct rewriting *how)
{
	tcp->source = how->source_port;
	tcp->dest = how->dest_port;
	tcp->seq = bpf_htonl(bpf_ntohl(tcp->seq) + how->seq);
	if (tcp->flags & TCP_ACK)
		tcp->ack = bpf_htonl(bpf_ntohl(tcp->ack) + how->ack);
	if (how->window_shift)
		tcp->window = shift_window(tcp->window, how->window_shift);
	if (how->changes & SPLICE_NO_ECN)
		tcp->flags &= ~(TCP_ECE | TCP_CWR);
}

static __always_inline void rewrite_ip(struct iphdr *ip, const struct rewriting *how, __u32 addresses)
{
	__u64 sum = (__u64)(__u16)~ip->check + addresses;

	ip->saddr = how->source;
	ip->daddr = how->dest;
	if (how->changes & SPLICE_NO_ECN) {
		/* RFC 3168 5: nobody would hear of a mark; RFC 1624. */
		sum += bpf_htons(ip->tos & ~3) + (__u16)~bpf_htons(ip->tos);
		ip->tos &= ~3;
	}
	ip->check = ~checksum_fold(sum);
}

/* 0, or the packet is as it was, or lost. Not static, nor are the two below: each is verified once. */
__noinline int rewrite(context_t *ctx, __u32 header_length, const struct rewriting *how)
{
	const __u32 at = sizeof(struct ethhdr);
	__u32 zero = 0, old[2], new[2];
	struct header_bench *bench = bpf_map_lookup_elem(&header_benches, &zero);
	bool usual = header_length == TCP_LEN_USUAL;
	__s64 addresses, header;

	if (!bench || !how || header_length < TCP_LEN || header_length > TCP_LEN_MAX)
		return -1;
	if (usual) {
		if (context_load(ctx, at, bench->before, IP_LEN + TCP_LEN_USUAL))
			return -1;
	} else {
		__builtin_memset(bench->before, 0, sizeof(bench->before));
		if (context_load(ctx, at, bench->before, IP_LEN + header_length))
			return -1;
	}
	__builtin_memcpy(bench->after, bench->before, sizeof(bench->after));
	__builtin_memcpy(old, bench->before + offsetof(struct iphdr, saddr), sizeof(old));
	new[0] = how->source;
	new[1] = how->dest;
	addresses = bpf_csum_diff(old, sizeof(old), new, sizeof(new), 0);
	if (addresses < 0)
		return -1;
	rewrite_ip((void *)bench->after, how, addresses);
	rewrite_tcp((void *)(bench->after + IP_LEN), how);
	rewrite_options(bench, header_length, how);
	if (usual) {
		header = bpf_csum_diff((void *)(bench->before + IP_LEN), TCP_LEN_USUAL,
				       (void *)(bench->after + IP_LEN), TCP_LEN_USUAL, 0);
		if (header < 0 || context_store(ctx, at, bench->after, IP_LEN + TCP_LEN_USUAL))
			return -1;
	} else {
		header = bpf_csum_diff((void *)(bench->before + IP_LEN), TCP_LEN_MAX,
				       (void *)(bench->after + IP_LEN), TCP_LEN_MAX, 0);
		if (header < 0 || context_store(ctx, at, bench->after, IP_LEN + header_length))
			return -1;
	}
	return context_mend_tcp_checksum(ctx, addresses, header);
}

/* Two link addresses, the receiver's first, as `struct backend` has them. */
static __always_inline int send_to_hop(context_t *ctx, __u32 ifindex, __u8 *macs)
{
	__u8 both[2 * ETH_ALEN];

	__builtin_memcpy(both, macs, sizeof(both));
	if (context_store(ctx, 0, both, sizeof(both))) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	return context_send(ctx, ifindex);
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

/* A client's packet, of a flow that is spliced. */
__noinline int send_to_server(context_t *ctx, const struct flow *flow, const struct segment *segment)
{
	struct backend *backend;
	struct splice splice;

	if (!flow || !segment)
		return VERDICT_DROP;
	backend = backend_at(flow->backend);
	if (!backend || !knows_way(ctx, backend))
		return VERDICT_DROP;
	splice = read_splice(flow);
	struct rewriting how = {
		.source = splice.address,
		.dest = mapped_ipv4(backend->addr),
		.source_port = splice.port,
		.dest_port = splice.server_port,
		.ack = -splice.ahead,
		.echo = -splice.clock_ahead,
		.window_shift = splice.to_server_shift,
		.changes = splice.changes,
	};
	if (rewrite(ctx, segment->header_length, &how)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	count_event(EVENT_FORWARDED);
	count_event(EVENT_TO_SERVER);
	return send_to_hop(ctx, backend->ifindex, backend->destination_mac);
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

/* A server's packet, for the client. */
static __noinline int send_to_client(context_t *ctx, struct spliced *to, const struct segment *segment)
{
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
		.value = to->splice.clock_ahead,
		.window_shift = to->splice.to_client_shift,
	};
	resolved = now - to->resolved_ns <= NEXT_HOP_LIFETIME_NS || resolve_client(ctx, to, now);
	if (rewrite(ctx, segment->header_length, &how)) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
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

/*
 * A TCP packet to no service: to a splice address, from a server, or the host's. In the
 * segment the server is the client.
 */
__noinline int dispatch_answer(context_t *ctx, bool was_passed)
{
	struct {
		struct iphdr ip;
		struct tcp_header tcp;
	} h;
	struct service *address;
	struct segment segment;
	struct spliced *to;

	if (context_load(ctx, sizeof(struct ethhdr), &h, sizeof(h)) || !(address = find_service(h.ip.daddr, 0)) ||
	    !is_splice_address(address))
		return VERDICT_NEXT;
	if (!read_segment(ctx, &h.ip, &h.tcp, &segment)) {
		count_drop(DROP_MALFORMED);
		return VERDICT_DROP;
	}
	to = bpf_map_lookup_elem(&splices, &segment.key);
	if (!to) {
		if (!was_passed && address->id != NO_DISPATCHER)
			return pass_to_keeper(ctx, &segment, address->id, 0);
		count_drop(DROP_NO_SPLICE);
		return VERDICT_DROP;
	}
	/* A handshake again: it has not heard the end of it. */
	if (to->state == SPLICED_CONNECTING || segment.flags & TCP_SYN)
		return give_to_connector(ctx, to, &segment);
	if (segment.flags & TCP_ACK && (__s32)(segment.ack - to->server_ack) > 0)
		to->server_ack = segment.ack;
	if (segment.flags & TCP_RST)
		note_reset(to);
	return send_to_client(ctx, to, &segment);
}
