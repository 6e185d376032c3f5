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
 *   what the client has    up, as from the edge of the socket's window        hear_client()
 *   resets, and what no
 *   full socket says       to the dispatcher, which rewrites it
 *   SPLIT_RELEASE          between two requests: its socket is reset        release_split()
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

/* One that is open. */
struct split_socket {
	struct split is;
	struct answers answers; /* with CARE_FOLLOW */
	__u32 given_up;
	__u32 told; /* as in struct setup */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct split_socket);
} split_sockets SEC(".maps");

/* Ports of servers here that were split, a bit for each: what comes to others is looked at no further. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536 / 64);
	__type(key, __u32);
	__type(value, __u64);
} split_ports SEC(".maps");

/* What was given up, until the port is used again. */
struct split_end {
	__u32 epoch;
	__u32 start;
	__u32 end; /* these two as the client knows them */
	__u32 clock_offset;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct split_end);
} split_ends SEC(".maps");

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
	struct split_socket *its;
	bool is_open;

	if (!found)
		return false;
	its = bpf_sk_storage_get(&split_sockets, found, NULL, 0);
	is_open = its && is_told_again(&its->is, told);
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
	bpf_map_delete_elem(&split_ends, &key);
	return bpf_map_update_elem(&splits, &key, &told, BPF_ANY);
}

/* To the server, as from the splice address: what has no encapsulation any more. */
static __noinline int to_server(struct __sk_buff *skb, const struct segment *segment, const struct meta *option)
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
	return rewrite(skb, segment->header_length, &how) ? drop(DROP_REWRITE) : TC_ACT_OK;
}

/* As the server's host has its numbers. */
static __always_inline struct segment as_there(const struct segment *segment, const struct meta *meta, __be32 here)
{
	struct segment named = *segment;

	named.client = meta->start;
	named.vip = here;
	named.key = split_key(meta, here);
	return named;
}

/* What was given up has not gone: who asks for it is told so. A call: its stack is not its caller's. */
static __noinline bool was_given_up(const struct segment *segment, const struct meta *meta)
{
	struct node *self = this_node();
	struct segment named;

	if (!segment || !meta || !self)
		return false;
	named = as_there(segment, meta, self->address);
	return bpf_map_lookup_elem(&split_ends, &named.key);
}

/* How far has it come? As receive_probe(); nobody asks what such a socket owes. */
static __noinline int probe_split(struct __sk_buff *skb, const struct segment *segment)
{
	struct node *self = this_node();
	struct segment named;
	struct own_socket own;
	struct occupant occupant;
	struct bpf_sock *found;
	struct headers h;
	bool is_opening;
	__u32 clock;

	if (!segment || !self || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	named = as_there(segment, &h.outer->meta, self->address);
	own = find_own_socket(skb, &named, NULL);
	if (own.state) {
		clock = (__u32)(bpf_ktime_get_ns() / 1000000) + own.clock_offset;
		return answer_probe(skb, h.outer, segment, own.rcv_nxt, PROBE_STANDS, own.snd_nxt, clock);
	}
	occupant = find_occupant(skb, &named);
	if (occupant.state)
		return answer_probe(skb, h.outer, segment, occupant.rcv_nxt, PROBE_GONE, 0, 0);
	found = find_connection(skb, &named);
	is_opening = found && found->state == TCP_STATE_NEW_SYN_RECV;
	if (found)
		bpf_sk_release(found);
	/* What ends its handshake is on its way. */
	if (is_opening)
		return drop(DROP_EARLY);
	return answer_probe(skb, h.outer, segment, segment->seq, PROBE_GONE, 0, 0);
}

/* Why it cannot leave before the request at `start`; 0: it can, drained. As why_held(). */
static __always_inline enum held why_split_held(const struct split_socket *its, const struct own_socket *own,
						const struct segment *segment, const struct meta *meta)
{
	const struct answers *answers = &its->answers;

	if (!(its->is.tcp_options & CARE_FOLLOW) || answers->flags & ANSWER_CLOSING ||
	    answers->phase == ANSWER_LOST || own->state != TCP_STATE_ESTABLISHED)
		return HELD_CLOSING;
	/* Another dispatcher has given it the request already: it stays, and is given once more what it has. */
	if (is_before(bpf_ntohl(meta->value), own->rcv_nxt))
		return HELD_CLOSING;
	if (!is_between_answers(answers) || answers->finished != bpf_ntohs(meta->mss) ||
	    own->rcv_nxt != bpf_ntohl(meta->value) || own->write_seq != answers->next ||
	    own->snd_nxt != answers->next)
		return HELD_ANSWERING;
	if (own->snd_una != answers->next && segment->ack - its->is.ahead != answers->next)
		return HELD_UNACKED;
	return 0;
}

/* Between two requests its socket is given up; else why not. `end` is what is told of it. */
static __noinline int give_up_split(struct __sk_buff *skb, const struct segment *named, const struct meta *meta)
{
	struct own_socket own;
	struct split_socket *its;
	struct split_end end;
	struct bpf_sock *found;
	enum held reason = HELD_STRANGER;
	__u32 ahead;

	if (!named || !meta)
		return reason;
	own = find_own_socket(skb, named, NULL);
	found = find_connection(skb, named);
	if (!found)
		return reason;
	its = bpf_sk_storage_get(&split_sockets, found, NULL, 0);
	ahead = meta->reason << 16 | meta->window_scales << 8 | meta->tcp_options;
	if (its && ahead)
		note_told(&its->told, bpf_ntohl(meta->value) + ahead);
	if (its && own.state)
		reason = why_split_held(its, &own, named, meta);
	else if (own.state)
		reason = HELD_CLOSING; /* nobody here knows its answers */
	if (its && !reason) {
		end.epoch = meta->epoch;
		end.start = meta->value;
		end.end = own.snd_nxt + its->is.ahead;
		end.clock_offset = own.clock_offset + its->is.clock_ahead;
		if (bpf_map_update_elem(&split_ends, &named->key, &end, BPF_ANY))
			reason = HELD_ANSWERING;
		else
			its->given_up = 1;
	}
	bpf_sk_release(found);
	return reason;
}

/* A copy of the RELEASE by which it was given up becomes the last that its socket hears. */
static __noinline int reset_split(struct __sk_buff *skb, const struct segment *segment, const struct meta *meta)
{
	struct node *self = this_node();
	struct occupant occupant;
	struct segment named;

	if (!segment || !meta || !self)
		return drop(DROP_MALFORMED);
	skb->mark = 0;
	named = as_there(segment, meta, self->address);
	occupant = find_occupant(skb, &named);
	if (!occupant.state)
		return drop(DROP_MOVED);
	return !decapsulate(skb) || !become_reset(skb, segment, occupant.rcv_nxt) ? drop(DROP_REWRITE) : TC_ACT_OK;
}

/* Its end, and its clock in place of the handshake; or why not. */
static __noinline int answer_split_release(struct __sk_buff *skb, const struct segment *segment,
					   const struct split_end *end, int reason)
{
	struct encapsulation *outer;
	struct headers h;
	__be32 clock = 0;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	outer = begin_reply(h.outer);
	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta.kind = end ? META_RELEASED : META_HELD;
	outer->meta.reason = end ? RELEASED_DRAINED : reason;
	outer->meta.requests = 0;
	outer->meta.start = outer->meta.value;
	outer->meta.value = end ? bpf_htonl(end->end) : 0;
	if (end)
		clock = bpf_htonl((__u32)(bpf_ktime_get_ns() / 1000000) + end->clock_offset);
	__builtin_memcpy(&outer->meta.mss, &clock, sizeof(clock));
	count_event(end ? EVENT_GIVEN_UP : EVENT_HELD);
	return send_reply(skb, segment);
}

/* handoff.md 5, drained only: the next request is another's. */
static __noinline int release_split(struct __sk_buff *skb, const struct segment *segment, const struct meta *option)
{
	struct node *self = this_node();
	struct split_end *end;
	struct segment named;
	struct meta meta;
	int reason;

	if (!segment || !option || !self)
		return drop(DROP_MALFORMED);
	meta = *option;
	named = as_there(segment, &meta, self->address);
	end = bpf_map_lookup_elem(&split_ends, &named.key);
	if (end && end->epoch == meta.epoch && end->start == meta.value)
		return answer_split_release(skb, segment, end, 0);
	reason = end ? HELD_STRANGER : give_up_split(skb, &named, &meta);
	if (reason)
		return answer_split_release(skb, segment, NULL, reason);
	end = bpf_map_lookup_elem(&split_ends, &named.key);
	if (!end)
		return drop(DROP_EARLY);
	send_own_last(skb);
	return answer_split_release(skb, segment, end, 0);
}

static __always_inline int end_split(struct __sk_buff *skb, const struct segment *segment, const struct meta *meta)
{
	int verdict = reset_split(skb, segment, meta);

	return verdict == TC_ACT_OK ? to_server(skb, segment, meta) : verdict;
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
		return was_given_up(&segment, &meta) ? drop(DROP_EARLY) : probe_split(skb, &segment);
	if (meta.kind == META_SPLIT_RELEASE)
		return skb->mark == RESET_MARK ? end_split(skb, &segment, &meta) : release_split(skb, &segment, &meta);
	if ((segment.flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) != TCP_SYN)
		return drop(DROP_BAD_ENCAP);
	/* Not noted, its answers go by way of dispatchers. */
	note_split(skb, &segment, &meta);
	if (!decapsulate(skb))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return to_server(skb, &segment, &meta);
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

static __always_inline __u64 *word_of_port(__be16 port)
{
	__u32 word = bpf_ntohs(port) / 64;

	return bpf_map_lookup_elem(&split_ports, &word);
}

static __always_inline __u64 bit_of_port(__be16 port)
{
	return 1ull << (bpf_ntohs(port) & 63);
}

static __always_inline void note_split_port(__be16 port)
{
	__u64 *word = word_of_port(port);

	if (word && !(*word & bit_of_port(port)))
		__sync_fetch_and_or(word, bit_of_port(port));
}

static __always_inline bool is_split_port(__be16 port)
{
	__u64 *word = word_of_port(port);

	return word && *word & bit_of_port(port);
}

/* Its socket speaks for the first time: where it begins shows that it is the one that was told of. */
static __always_inline struct split_socket *begin_split(struct bpf_sock *sender, const struct leaving *h,
							const struct flow_key *key)
{
	struct split *told = bpf_map_lookup_elem(&splits, key);
	struct split_socket *begun;

	if (!told || !told->answered || bpf_ntohl(h->tcp.seq) != told->server_isn + 1)
		return NULL;
	begun = bpf_sk_storage_get(&split_sockets, sender, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!begun)
		return NULL;
	begun->is = *told;
	begun->answers.next = told->server_isn + 1;
	begun->answers.flags = told->tcp_options & CARE_HEAD ? ANSWER_TO_HEAD : 0;
	bpf_map_delete_elem(&splits, key);
	note_split_port(key->vip_port);
	count_event(EVENT_SPLIT);
	return begun;
}

/* What leaves and is of no setup. */
static __noinline int leave_split(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key)
{
	struct bpf_sock *sender = skb->sk;
	struct split_socket *its;
	struct split *split;
	__u32 payload_at, header_length;

	if (!h || !key)
		return TC_ACT_UNSPEC;
	if (h->tcp.flags & TCP_SYN)
		return answer_split(skb, h, key);
	/* To what comes late: another has the flow. */
	if (h->tcp.flags & TCP_RST && bpf_map_lookup_elem(&split_ends, key))
		return drop(DROP_MOVED);
	sender = sender ? bpf_sk_fullsock(sender) : NULL;
	/* For a connection in SYN-RECEIVED the listener speaks, or (before 6.13 or so) a raw socket of the kernel's. */
	if (!sender || sender->state == TCP_STATE_LISTEN || sender->type == SOCKET_RAW)
		return TC_ACT_UNSPEC;
	its = bpf_sk_storage_get(&split_sockets, sender, NULL, 0);
	if (!its)
		its = begin_split(sender, h, key);
	/* Of a reset the dispatchers are to hear. */
	if (!its || h->tcp.flags & TCP_RST)
		return TC_ACT_UNSPEC;
	if (its->given_up)
		return drop(DROP_MOVED);
	split = &its->is;
	header_length = h->tcp.offset >> 4 << 2;
	payload_at = sizeof(struct ethhdr) + sizeof(struct iphdr) + header_length;
	if (split->tcp_options & CARE_FOLLOW && skb->len > payload_at)
		follow_leaving(skb, &its->answers, h, payload_at);

	struct rewriting how = {
		.source = split->vip,
		.dest = split->client,
		.source_port = split->vip_port,
		.dest_port = split->client_port,
		.seq = split->ahead,
		/* With SACK blocks, which would move along, by nothing. */
		.ack = header_length <= TCP_LEN_USUAL ? told_ahead(&its->told, bpf_ntohl(h->tcp.ack)) : 0,
		.value = split->clock_ahead,
		.window_shift = split->to_client_shift,
	};
	if (rewrite(skb, header_length, &how))
		return drop(DROP_REWRITE);
	count_event(EVENT_TO_CLIENT);
	skb->mark = SPLIT_MARK;
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/* Where the window of the connection that this is said to ends (RFC 9293 3.3.1); `otherwise` if it is not split. */
static __always_inline __u32 split_edge(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 otherwise)
{
	struct bpf_sock *found = bpf_skc_lookup_tcp(skb, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	struct tcp_sock *full;

	if (!found)
		return otherwise;
	if (bpf_sk_storage_get(&split_sockets, found, NULL, 0) && (full = bpf_skc_to_tcp_sock(found)))
		otherwise = full->rcv_wup + full->rcv_wnd;
	bpf_sk_release(found);
	return otherwise;
}

#define PLAIN_TCP_END (UNPACKED_TCP + sizeof(struct tcp_header))

/*
 * TCP without an encapsulation may be said by a client to a split connection. As keep_in_window(): where its
 * dispatcher has acknowledged what waits there, the client acknowledges from beyond the window of a socket
 * that answers and reads nothing, which would not hear it, and repeat its answer for ever. The dispatcher,
 * who mends that of servers without an agent, does not hear these. Not static, as send_reply().
 */
__noinline int hear_client(struct __sk_buff *skb)
{
	struct bpf_sock_tuple tuple = {};
	struct tcp_header *tcp;
	struct iphdr *ip;
	__u32 seq, edge;

	if ((void *)(long)skb->data + PLAIN_TCP_END > (void *)(long)skb->data_end && bpf_skb_pull_data(skb, PLAIN_TCP_END))
		return TC_ACT_UNSPEC;
	ip = (void *)(long)skb->data + sizeof(struct ethhdr);
	tcp = (void *)(ip + 1);
	if ((void *)(tcp + 1) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	if (ip->ihl != 5 ||
	    bpf_ntohs(ip->tot_len) != sizeof(struct iphdr) + (tcp->offset >> 4 << 2) ||
	    (tcp->flags & (TCP_ACK | TCP_SYN | TCP_FIN | TCP_RST)) != TCP_ACK || !is_split_port(tcp->dest))
		return TC_ACT_UNSPEC;
	tuple.ipv4.saddr = ip->saddr;
	tuple.ipv4.daddr = ip->daddr;
	tuple.ipv4.sport = tcp->source;
	tuple.ipv4.dport = tcp->dest;
	seq = bpf_ntohl(tcp->seq);
	edge = split_edge(skb, &tuple, seq);
	if ((__s32)(seq - edge) > 0 && !replace_word(skb, offsetof(struct tcp_header, seq), seq, edge))
		return drop(DROP_REWRITE);
	return TC_ACT_UNSPEC;
}
