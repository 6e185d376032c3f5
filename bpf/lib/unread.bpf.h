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
/* As many as may wait to be read at once; a later one takes the place of an earlier one. */
#define UNREADS 8192
/* Servers that read nothing are not given a request for ever. */
#define UNREAD_TIMES 2

struct unread {
	__u32 busy;
	__u32 length;
	__u32 start;
	__be32 client;
	__be32 vip;
	__be16 client_port; /* on which it sits here */
	__be16 vip_port;
	__u8 packet[UNREAD_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNREADS);
	__type(key, __u32);
	__type(value, struct unread);
} unreads SEC(".maps");

/* Its place, or NULL when another CPU is there; leave_unread() afterwards. */
static __always_inline struct unread *enter_unread(__be32 client, __be16 client_port)
{
	__u32 hash = (client ^ client_port * 0x9e3779b1u) * 0x85ebca6bu;
	__u32 slot = hash >> 19;
	struct unread *unread = bpf_map_lookup_elem(&unreads, &slot);

	return unread && !__sync_val_compare_and_swap(&unread->busy, 0, 1) ? unread : NULL;
}

static __always_inline void leave_unread(struct unread *unread)
{
	__sync_lock_test_and_set(&unread->busy, 0);
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
	struct unread *unread;
	__u32 length;

	if (!segment)
		return 0;
	length = segment->ip_length;
	barrier_var(length);
	if (length < sizeof(struct iphdr) + sizeof(struct tcp_header) || length > UNREAD_MAX)
		return 0;
	unread = enter_unread(segment->client, segment->key.client_port);
	if (!unread)
		return 0;
	unread->length = bpf_skb_load_bytes(skb, INNER_IP, unread->packet, length) ? 0 : length;
	unread->start = segment->seq;
	unread->client = segment->client;
	unread->vip = segment->vip;
	unread->client_port = segment->key.client_port;
	unread->vip_port = segment->key.vip_port;
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

/* The RST becomes the request, as the client sent it, but that it acknowledges all that was said before. */
static __noinline int become_request(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup)
{
	const __u32 tcp = sizeof(struct iphdr);
	__u32 length, header_length, start;
	__be32 ack;
	struct unread *unread;
	bool done = false;
	__u16 sum;

	if (!h || !setup)
		return -1;
	unread = enter_unread(h->ip.daddr, h->tcp.dest);
	if (!unread)
		return -1;
	length = unread->length;
	start = next_start(setup);
	header_length = unread->packet[tcp + offsetof(struct tcp_header, offset)] >> 4 << 2;
	barrier_var(length);
	/* All that lies there, and no FIN. */
	if (unread->client == h->ip.daddr && unread->vip == h->ip.saddr && unread->client_port == h->tcp.dest &&
	    unread->vip_port == h->tcp.source && unread->start == start && length > tcp + header_length &&
	    length <= UNREAD_MAX &&
	    (!(h->tcp.flags & TCP_ACK) || bpf_ntohl(h->tcp.ack) - start == length - tcp - header_length)) {
		ack = bpf_htonl(setup->answers.next);
		/* Of the pseudo header alone: a card, or nobody, completes it. */
		sum = checksum_fold(pseudo_header_sum(h->ip.daddr, h->ip.saddr, length - tcp));
		__builtin_memcpy(unread->packet + tcp + offsetof(struct tcp_header, ack), &ack, sizeof(ack));
		__builtin_memcpy(unread->packet + tcp + offsetof(struct tcp_header, check), &sum, sizeof(sum));
		done = !bpf_skb_change_tail(skb, sizeof(struct ethhdr) + length, 0) &&
		       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), unread->packet, length, 0);
	}
	leave_unread(unread);
	return done ? (int)length : -1;
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
	if (length < 0)
		return TC_ACT_UNSPEC;
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
