/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * split: a dispatcher opens a connection to a server on this host, and rewrites what the
 * client says on it; what the server answers becomes the flow's here, and goes to the client
 * directly [SPLICE06 2] (docs/protocol/splice.md 8):
 *
 *   SPLIT, a SYN in it     noted in `splits`; up, from the splice address     receive_split()
 *   the SYN-ACK            its numbers noted too; to the dispatcher           answer_split()
 *   the socket's first     the note is the socket's from here on              begin_split()
 *   that, and the rest     rewritten, to the client                           leave_split()
 *   resets, and what no
 *   full socket says       to the dispatcher, which rewrites it
 *
 * A server cannot answer a SYN of which this was not told; and with the socket goes what
 * is known of it. What is not known here, or not for sure, a dispatcher's record knows.
 */
#pragma once

/* Connections being opened, and those of which nothing came. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct split);
} splits SEC(".maps");

/* Those that are open. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct split);
} split_sockets SEC(".maps");

#define SOCKET_RAW 3

/* It has been rewritten, and comes by again on its way to the client. */
#define SPLIT_MARK 0x545a0006

/* As the server's host has the connection that this is about. */
static __always_inline struct flow_key split_key(const struct meta *meta, __be32 here)
{
	return flow_key_v4(meta->start, here, meta->requests, meta->server_port);
}

static __always_inline bool is_told_again(const struct split *known, const struct split *told)
{
	return known->client == told->client && known->vip == told->vip &&
	       known->client_port == told->client_port && known->vip_port == told->vip_port &&
	       known->client_isn == told->client_isn && known->known_isn == told->known_isn &&
	       known->echo == told->echo && known->window_scales == told->window_scales &&
	       known->tcp_options == told->tcp_options;
}

/*
 * Is the connection there, of which this is the SYN again? One of another flow may be, whose
 * port is used again: what it says to that is the dispatcher's to hear, who resets it.
 */
static __always_inline bool is_open_already(struct __sk_buff *skb, const struct flow_key *key,
					    const struct split *told)
{
	struct bpf_sock_tuple tuple = {
		.ipv4 = {
			.saddr = mapped_ipv4(key->client_addr),
			.daddr = mapped_ipv4(key->vip_addr),
			.sport = key->client_port,
			.dport = key->vip_port,
		},
	};
	struct bpf_sock *found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	struct split *its;
	bool is_open;

	if (!found)
		return false;
	its = bpf_sk_storage_get(&split_sockets, found, NULL, 0);
	is_open = its && is_told_again(its, told);
	if (its && !is_open)
		bpf_sk_storage_delete(&split_sockets, found);
	bpf_sk_release(found);
	return is_open;
}

/* A SYN of a dispatcher's: whose answers will come. */
static __noinline int note_split(struct __sk_buff *skb, const struct segment *segment, const struct meta *option)
{
	struct node *self = this_node();
	struct split told = {}, *known;
	struct flow_key key;
	struct meta meta;

	if (!segment || !self || !option)
		return 0;
	meta = *option;
	key = split_key(&meta, self->address);
	told.client = segment->client;
	told.vip = segment->vip;
	told.client_port = segment->client_port;
	told.vip_port = segment->key.vip_port;
	told.client_isn = segment->seq;
	told.known_isn = bpf_ntohl(meta.value);
	told.echo = bpf_ntohl(meta.epoch);
	told.window_scales = meta.window_scales;
	told.tcp_options = meta.tcp_options;
	told.told_ns = bpf_ktime_get_coarse_ns();
	known = bpf_map_lookup_elem(&splits, &key);
	if ((known && is_told_again(known, &told)) || is_open_already(skb, &key, &told))
		return 0;
	return bpf_map_update_elem(&splits, &key, &told, BPF_ANY);
}

/* To the server, as from the splice address. */
static __noinline int open_split(struct __sk_buff *skb, const struct segment *segment, const struct meta *option)
{
	struct node *self = this_node();

	if (!segment || !self || !option)
		return drop(DROP_MALFORMED);
	struct rewriting how = {
		.source = option->start,
		.dest = self->address,
		.source_port = option->requests,
		.dest_port = option->server_port,
	};
	if (!decapsulate(skb) || rewrite(skb, segment->header_length, &how))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

/* How far has it come? As receive_probe(); nobody asks what such a socket owes. */
static __noinline int probe_split(struct __sk_buff *skb, const struct segment *segment)
{
	struct node *self = this_node();
	struct segment named;
	struct occupant occupant;
	struct bpf_sock *found;
	struct headers h;
	bool is_opening;

	if (!segment || !self || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	named = *segment;
	named.client = h.outer->meta.start;
	named.vip = self->address;
	named.key = split_key(&h.outer->meta, self->address);
	occupant = find_occupant(skb, &named);
	if (occupant.state)
		return answer_probe(skb, h.outer, segment, occupant.rcv_nxt,
				    occupant.state == TCP_STATE_TIME_WAIT ? PROBE_GONE : PROBE_STANDS, 0, 0);
	found = find_connection(skb, &named);
	is_opening = found && found->state == TCP_STATE_NEW_SYN_RECV;
	if (found)
		bpf_sk_release(found);
	/* What ends its handshake is on its way. */
	if (is_opening)
		return drop(DROP_EARLY);
	return answer_probe(skb, h.outer, segment, segment->seq, PROBE_GONE, 0, 0);
}

static __always_inline int receive_split(struct __sk_buff *skb, const struct headers *h)
{
	struct meta meta = h->outer->meta;
	struct segment segment;

	if (!read_inner(h, &segment))
		return drop(DROP_MALFORMED);
	if (!is_proved(h->encapsulated, h->tcp->source, h->tcp->dest))
		return drop(DROP_BAD_TAG);
	if (meta.kind == META_SPLIT_PROBE)
		return probe_split(skb, &segment);
	if ((segment.flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) != TCP_SYN)
		return drop(DROP_BAD_ENCAP);
	/* Not noted, its answers go by way of dispatchers. */
	note_split(skb, &segment, &meta);
	return open_split(skb, &segment, &meta);
}

/*
 * The SYN-ACK, on its way to the dispatcher, who makes the same of it. It may come again,
 * and not be the one that counts there: so its clock stays what it was.
 */
static __noinline int answer_split(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key)
{
	__u8 bytes[TCP_OPTIONS_ROOM] = {};
	struct tcp_options options;
	struct split *told;
	__u32 header_length, length;

	if (!h || !key || !(h->tcp.flags & TCP_ACK))
		return TC_ACT_UNSPEC;
	told = bpf_map_lookup_elem(&splits, key);
	header_length = h->tcp.offset >> 4 << 2;
	length = header_length - sizeof(struct tcp_header);
	if (!told || bpf_ntohl(h->tcp.ack) != told->client_isn + 1 || length > TCP_OPTIONS_MAX)
		return TC_ACT_UNSPEC;
	if (length && bpf_skb_load_bytes(skb, UNPACKED_TCP + sizeof(struct tcp_header), bytes, length))
		return TC_ACT_UNSPEC;
	parse_tcp_options(bytes, length, &options);
	if (told->answered && told->server_isn == bpf_ntohl(h->tcp.seq)) {
		struct rewriting how = {
			.source = h->ip.saddr,
			.dest = h->ip.daddr,
			.source_port = h->tcp.source,
			.dest_port = h->tcp.dest,
			.value = told->clock - options.tsval,
		};
		if (options.timestamps && how.value && rewrite(skb, header_length, &how))
			return drop(DROP_REWRITE);
		return TC_ACT_UNSPEC;
	}
	told->server_isn = bpf_ntohl(h->tcp.seq);
	told->clock = options.tsval;
	told->ahead = told->known_isn - told->server_isn;
	told->clock_ahead = 0;
	if (told->tcp_options & TCP_OPTION_TIMESTAMPS && options.timestamps)
		told->clock_ahead = told->echo - options.tsval;
	told->to_client_shift = 0;
	if (told->tcp_options & TCP_OPTION_WINDOW_SCALE)
		told->to_client_shift = (options.shift == WSCALE_NONE ? 0 : options.shift) - (told->window_scales & 15);
	told->answered = 1;
	return TC_ACT_UNSPEC;
}

/* Its socket speaks for the first time: where it begins shows that it is the one that was told of. */
static __always_inline struct split *begin_split(struct bpf_sock *sender, const struct leaving *h,
						 const struct flow_key *key)
{
	struct split *told = bpf_map_lookup_elem(&splits, key), *begun;

	if (!told || !told->answered || bpf_ntohl(h->tcp.seq) != told->server_isn + 1)
		return NULL;
	begun = bpf_sk_storage_get(&split_sockets, sender, told, BPF_SK_STORAGE_GET_F_CREATE);
	if (!begun)
		return NULL;
	bpf_map_delete_elem(&splits, key);
	count_event(EVENT_SPLIT);
	return begun;
}

/* What leaves and is of no setup. */
static __noinline int leave_split(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key)
{
	struct bpf_sock *sender = skb->sk;
	struct split *split;

	if (!h || !key)
		return TC_ACT_UNSPEC;
	if (h->tcp.flags & TCP_SYN)
		return answer_split(skb, h, key);
	sender = sender ? bpf_sk_fullsock(sender) : NULL;
	/* For a connection in SYN-RECEIVED the listener speaks, or (before 6.13 or so) a raw socket of the kernel's. */
	if (!sender || sender->state == TCP_STATE_LISTEN || sender->type == SOCKET_RAW)
		return TC_ACT_UNSPEC;
	split = bpf_sk_storage_get(&split_sockets, sender, NULL, 0);
	if (!split)
		split = begin_split(sender, h, key);
	/* Of a reset the dispatchers are to hear. */
	if (!split || h->tcp.flags & TCP_RST)
		return TC_ACT_UNSPEC;

	struct rewriting how = {
		.source = split->vip,
		.dest = split->client,
		.source_port = split->vip_port,
		.dest_port = split->client_port,
		.seq = split->ahead,
		.value = split->clock_ahead,
		.window_shift = split->to_client_shift,
	};
	if (rewrite(skb, h->tcp.offset >> 4 << 2, &how))
		return drop(DROP_REWRITE);
	count_event(EVENT_TO_CLIENT);
	skb->mark = SPLIT_MARK;
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}
