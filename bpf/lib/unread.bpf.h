/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * unread: a server that closes a connection while a request lies there of which it has
 * not read a byte has not run that request (docs/protocol/handoff.md 7.5). Its kernel
 * has, or may have, acknowledged it, and says RST: instead of that the request, of which
 * a copy was kept, comes in once more, as the first one of a new connection.
 */
#pragma once

/* Longer requests are not kept, nor are those of more than one packet. */
#define UNREAD_MAX 1500
/* As many as may wait to be read at once; the least used makes room. */
#define UNREADS 8192
/* Servers that read nothing are not given a request for ever. */
#define UNREAD_TIMES 2

/* On which a request sits here. */
struct unread_key {
	__be32 client;
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
};

struct unread {
	struct unread_key key; /* again: its memory may be given to another flow's while it is read */
	__u32 busy;
	__u32 length;
	__u32 start;
	__u8 packet[UNREAD_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, UNREADS);
	__type(key, struct unread_key);
	__type(value, struct unread);
} unreads SEC(".maps");

/* What a new one is before it is filled. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unread);
} new_unread SEC(".maps");

static __always_inline bool is_unread_of(const struct unread *unread, const struct unread_key *key)
{
	return unread->key.client == key->client && unread->key.vip == key->vip &&
	       unread->key.client_port == key->client_port && unread->key.vip_port == key->vip_port;
}

/* Its copy, or NULL when there is none or another CPU is there; leave_unread() afterwards. */
static __always_inline struct unread *enter_unread(const struct unread_key *key)
{
	struct unread *unread = bpf_map_lookup_elem(&unreads, key);

	return unread && !__sync_val_compare_and_swap(&unread->busy, 0, 1) ? unread : NULL;
}

static __always_inline void leave_unread(struct unread *unread)
{
	__sync_lock_test_and_set(&unread->busy, 0);
}

/* The same; made where there is none. */
static __always_inline struct unread *make_unread(const struct unread_key *key)
{
	struct unread *unread;
	__u32 zero = 0;

	if (!bpf_map_lookup_elem(&unreads, key)) {
		unread = bpf_map_lookup_elem(&new_unread, &zero);
		if (!unread)
			return NULL;
		unread->key = *key;
		bpf_map_update_elem(&unreads, key, unread, BPF_NOEXIST);
	}
	return enter_unread(key);
}

/* Where the request starts that is answered next. */
static __always_inline __u32 next_start(const struct setup *setup)
{
	return setup->answers.flags & ANSWER_ENDED ? setup->answers.taken : setup->start;
}

/* Is it the first packet of the next request, with none before it that is not answered? */
static __always_inline bool brings_request(const struct setup *setup, const struct segment *segment)
{
	return segment->payload && setup->meta.tcp_options & CARE_OUTLIVE && is_between_answers(&setup->answers) &&
	       segment->seq == next_start(setup);
}

/* Keeps the client's packet, as it came. */
static __noinline int keep_unread(struct __sk_buff *skb, const struct segment *segment)
{
	struct unread_key key = {};
	struct unread *unread;
	__u32 length;

	if (!segment)
		return 0;
	key.client = segment->client;
	key.vip = segment->vip;
	key.client_port = segment->key.client_port;
	key.vip_port = segment->key.vip_port;
	length = segment->ip_length;
	barrier_var(length);
	if (length < sizeof(struct iphdr) + sizeof(struct tcp_header) || length > UNREAD_MAX)
		return 0;
	unread = make_unread(&key);
	if (!unread)
		return 0;
	unread->length = bpf_skb_load_bytes(skb, INNER_IP, unread->packet, length) ? 0 : length;
	unread->start = segment->seq;
	leave_unread(unread);
	return 0;
}

/*
 * Does the server reset, having said all that it owed before the request that lies there?
 * Without ACK it is the kernel's word, that the request has met a socket that was closed
 * before it came: nobody can have read it.
 */
static __always_inline bool closes_unread(const struct setup *setup, const struct leaving *h, __u32 payload)
{
	const struct answers *answers = &setup->answers;

	return setup->meta.tcp_options & CARE_OUTLIVE && h->tcp.flags & TCP_RST && !payload &&
	       setup->state == SETUP_CONFIRMED && is_between_answers(answers) &&
	       !(answers->flags & (ANSWER_CLOSING | ANSWER_GONE)) && bpf_ntohl(h->tcp.seq) == answers->next &&
	       (!(h->tcp.flags & TCP_ACK) || bpf_ntohl(h->tcp.ack) != next_start(setup)) &&
	       answers->unread < UNREAD_TIMES;
}

/*
 * The RST becomes the request, as the client sent it, but that it acknowledges all that was said before.
 * Its length, 0 when the packet is spoilt, or -1 when it is still the RST.
 */
static __noinline int become_request(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup)
{
	const __u32 tcp = sizeof(struct iphdr);
	__u32 length, header_length, start;
	__be32 ack;
	struct unread_key key = {};
	struct unread *unread;
	int done = -1;
	__u16 sum;

	if (!h || !setup)
		return -1;
	key.client = h->ip.daddr;
	key.vip = h->ip.saddr;
	key.client_port = h->tcp.dest;
	key.vip_port = h->tcp.source;
	unread = enter_unread(&key);
	if (!unread)
		return -1;
	length = unread->length;
	start = next_start(setup);
	header_length = unread->packet[tcp + offsetof(struct tcp_header, offset)] >> 4 << 2;
	barrier_var(length);
	/* All that lies there, and no FIN. */
	if (unread->start == start && length > tcp + header_length && length <= UNREAD_MAX &&
	    (!(h->tcp.flags & TCP_ACK) || bpf_ntohl(h->tcp.ack) - start == length - tcp - header_length)) {
		ack = bpf_htonl(setup->answers.next);
		/* Of the pseudo header alone: a card, or nobody, completes it. */
		sum = checksum_fold(pseudo_header_sum(h->ip.daddr, h->ip.saddr, length - tcp));
		__builtin_memcpy(unread->packet + tcp + offsetof(struct tcp_header, ack), &ack, sizeof(ack));
		__builtin_memcpy(unread->packet + tcp + offsetof(struct tcp_header, check), &sum, sizeof(sum));
		done = !bpf_skb_change_tail(skb, sizeof(struct ethhdr) + length, 0) &&
				       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), unread->packet, length, 0) &&
				       is_unread_of(unread, &key) && unread->start == start ?
			       (int)length :
			       0;
	}
	leave_unread(unread);
	return done;
}

/* The request comes in again, as its dispatcher would send it here (handoff.md 7.3). */
static __noinline int return_unread(struct __sk_buff *skb, const struct leaving *h, struct setup *setup)
{
	struct node *self = this_node();
	struct encapsulation outer = {};
	struct bpf_sock *sender = skb->sk;
	struct tcp_sock *full = NULL;
	int length;

	if (!h || !setup || !self)
		return TC_ACT_UNSPEC;
	if (sender)
		sender = bpf_sk_fullsock(sender);
	if (sender)
		full = bpf_skc_to_tcp_sock(sender);
	if (h->tcp.flags & TCP_ACK && (!full || full->copied_seq + setup->client_shift != next_start(setup) ||
				       full->snd_una + setup->server_shift != setup->answers.next))
		return TC_ACT_UNSPEC;
	length = become_request(skb, h, setup);
	if (length <= 0)
		return length ? TC_ACT_UNSPEC : drop(DROP_REWRITE);
	setup->start = next_start(setup);
	setup->state = SETUP_VACANT;
	setup->answers.unread++;
	count_event(EVENT_UNREAD);
	outer.meta = setup->meta;
	fill_encapsulation(&outer, setup->dispatcher, self->address, h->tcp.dest | bpf_htons(0xc000), length);
	if (!turn_frame(skb) || !encapsulate(skb, &outer))
		return drop(DROP_REWRITE);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
