/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * closing: a server that closes its connection while it owes no answer does not close
 * its client's (docs/protocol/handoff.md 7). Its FIN is turned round: a copy of it
 * becomes the RST for its own socket, and the packet the word of that to the dispatcher.
 */
#pragma once

/* A segment that leaves, as far as it is looked at: the first two as they lie there, but for the wire's numbers. */
struct leaving {
	struct iphdr ip;
	struct tcp_header tcp;
	__be32 own_seq; /* the socket's */
	__be32 own_ack;
};

static __always_inline int follow_leaving(struct __sk_buff *skb, struct answers *answers, const struct leaving *h,
					  __u32 payload_at)
{
	struct said said = {
		.seq = bpf_ntohl(h->tcp.seq),
		.ack = bpf_ntohl(h->tcp.ack),
		.offset = payload_at,
		.payload = skb->len - payload_at,
	};

	return follow(skb, answers, &said);
}

#define LEAVING_HEADERS (sizeof(struct iphdr) + sizeof(struct tcp_header))

/*
 * Its dispatcher has said before which request the flow was wanted, and how many the server was
 * given: if these are answered, and the socket has had no more, all that it has had is taken.
 */
static __always_inline void note_all_taken(struct setup *setup, const struct leaving *h)
{
	struct answers *answers = &setup->answers;

	if (setup->was_wanted && setup->wanted == bpf_ntohl(h->tcp.ack) && setup->wanted_after == answers->finished)
		answers->taken = setup->wanted;
}

/* RCV_SHUTDOWN | SEND_SHUTDOWN */
#define SHUTDOWN_MASK 3

/*
 * It may have answered before it had all of a request, and the rest has come since: no further one has begun, as its
 * dispatcher says (3.5a). Whether that is all of it the dispatcher knows (7.2). A server that only says no more may
 * yet read it.
 */
static __always_inline void note_rest_taken(const struct __sk_buff *skb, struct setup *setup, const struct leaving *h)
{
	struct answers *answers = &setup->answers;
	struct tcp_sock *full;

	/* What another backend had been asked ahead came here at once, and is not counted. */
	if (!is_to_outlive(setup) || setup->saved & SAVED_ADOPTED || setup->asked != answers->finished ||
	    !has_answered(answers))
		return;
	full = sending_socket(skb);
	if (full && full->inet_conn.icsk_inet.sk.sk_shutdown == SHUTDOWN_MASK)
		answers->taken = bpf_ntohl(h->tcp.ack);
}

/* Does it stand behind all that the server has said? An RST may stand behind a FIN that was not to be heard. */
static __always_inline bool is_at_end(const struct leaving *h, const struct answers *answers)
{
	__u32 behind = bpf_ntohl(h->tcp.seq) - answers->next;

	return !behind || (behind == 1 && h->tcp.flags & TCP_RST && answers->flags & ANSWER_HUNG_UP);
}

/* Does the server close here, with nothing owed, as far as it can know? */
static __always_inline bool closes_idle(const struct setup *setup, const struct leaving *h, __u32 payload)
{
	const struct answers *answers = &setup->answers;

	return outlives(setup) && h->tcp.flags & (TCP_FIN | TCP_RST) &&
	       h->tcp.flags & TCP_ACK && !payload && has_answered(answers) &&
	       !(answers->flags & ANSWER_CLOSING) && bpf_ntohl(h->tcp.seq) == answers->next &&
	       bpf_ntohl(h->tcp.ack) == answers->taken;
}

/*
 * Does the server close right behind the end of an answer, in the segment that has its last
 * byte? follow() has seen that by now.
 */
static __always_inline bool closes_with_answer(const struct setup *setup, const struct leaving *h, __u32 payload)
{
	const struct answers *answers = &setup->answers;

	return outlives(setup) && h->tcp.flags & TCP_FIN && payload &&
	       setup->state == SETUP_CONFIRMED && has_answered(answers) &&
	       !(answers->flags & ANSWER_CLOSING) && bpf_ntohl(h->tcp.seq) + payload == answers->next &&
	       bpf_ntohl(h->tcp.ack) == answers->taken;
}

/* Does the request that this packet begins come to a socket that its server has closed, and will not hear it? */
static __always_inline bool meets_closed(const struct setup *known, const struct segment *segment)
{
	return known->answers.flags & ANSWER_HUNG_UP && known->state == SETUP_CONFIRMED && has_answered(&known->answers) &&
	       starts_request(segment, known->answers.taken);
}

/*
 * Does it lie behind where a request would begin, at a socket that its server has closed with nothing owed, and
 * that has had nothing since? It has overtaken the beginning, and a closed socket would reset its client for it.
 */
static __noinline bool overtakes_beginning(struct __sk_buff *skb, const struct segment *segment,
					   const struct setup *known)
{
	struct own_socket own;

	if (!segment || !known || !(known->answers.flags & ANSWER_HUNG_UP) || known->state != SETUP_CONFIRMED ||
	    !segment->payload || !has_answered(&known->answers) || !is_before(known->answers.taken, segment->seq))
		return false;
	own = find_own_socket(skb, segment, known);
	return own.state && own.rcv_nxt == known->answers.taken;
}

/*
 * Does it come to a server that has closed, and begin no request, as far as its dispatcher has said? A
 * server may answer before it has all of a request: what lies where it has closed may be a body.
 */
static __always_inline bool is_nobodys(const struct setup *known, const struct segment *segment, const struct meta *meta)
{
	return known->state == SETUP_VACANT && known->epoch == bpf_ntohl(meta->epoch) &&
	       !(starts_request(segment, known->start) && known->begun == known->start);
}

static __always_inline void become_vacant(struct setup *setup)
{
	setup->start = setup->answers.taken;
	if (setup->state != SETUP_VACANT)
		count_event(EVENT_VACATED);
	setup->state = SETUP_VACANT;
}

static __always_inline bool set_flags(struct __sk_buff *skb, __u8 words, __u8 old, __u8 new)
{
	return replace_half(skb, offsetof(struct tcp_header, offset), bpf_htons(words << 8 | old),
			    bpf_htons(words << 8 | new));
}

/* The FIN comes again by itself, once the client has the answer. */
static __always_inline void keep_fin_back(struct __sk_buff *skb, const struct leaving *h, struct setup *setup)
{
	if (set_flags(skb, h->tcp.offset, h->tcp.flags, h->tcp.flags & ~TCP_FIN))
		setup->answers.flags |= ANSWER_HUNG_UP;
}

/* To whom it is from. */
static __always_inline bool turn_frame(struct __sk_buff *skb)
{
	__u8 macs[2 * ETH_ALEN], turned[2 * ETH_ALEN];

	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return false;
	__builtin_memcpy(turned, macs + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(turned + ETH_ALEN, macs, ETH_ALEN);
	return !bpf_skb_store_bytes(skb, 0, turned, sizeof(turned), 0);
}

static __always_inline bool encapsulate(struct __sk_buff *skb, const struct encapsulation *outer)
{
	return !bpf_skb_adjust_room(skb, ENCAP_LEN, BPF_ADJ_ROOM_MAC,
				    BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					    BPF_F_ADJ_ROOM_FIXED_GSO) &&
	       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), outer, sizeof(*outer), 0);
}

/* Into one from the client, that begins where this one's acknowledgement says. */
static __always_inline bool turn_round(struct __sk_buff *skb, const struct leaving *h, __u8 flags)
{
	__be32 addresses[2] = { h->ip.daddr, h->ip.saddr };
	__be16 ports[2] = { h->tcp.dest, h->tcp.source };
	__be32 numbers[2] = { h->own_ack, h->own_seq };

	/* What changes places does not change a sum. */
	return turn_frame(skb) &&
	       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr) + offsetof(struct iphdr, saddr), addresses,
				    sizeof(addresses), 0) &&
	       !bpf_skb_store_bytes(skb, UNPACKED_TCP, ports, sizeof(ports), 0) &&
	       !bpf_skb_store_bytes(skb, UNPACKED_TCP + offsetof(struct tcp_header, seq), numbers, sizeof(numbers), 0) &&
	       set_flags(skb, h->tcp.offset, h->tcp.flags, flags);
}

/* The turned segment is an ACK of the client's now: to the dispatcher with it. */
static __noinline int tell_vacated(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup,
				   __u32 start, __u8 reason)
{
	struct encapsulation outer = {};
	struct meta *meta = &outer.meta;
	struct node *self = this_node();
	struct siphash_key *key;
	__be16 client_port;

	if (!h || !setup || !self || !(key = tag_key(self->signing_key)))
		return drop(DROP_BAD_TAG);
	fill_encapsulation(&outer, self->address, setup->dispatcher, h->tcp.dest | bpf_htons(0xc000),
			   bpf_ntohs(h->ip.tot_len));
	if (setup->shifted &&
	    (!replace_word(skb, offsetof(struct tcp_header, seq), bpf_ntohl(h->own_ack), bpf_ntohl(h->tcp.ack)) ||
	     !replace_word(skb, offsetof(struct tcp_header, ack), bpf_ntohl(h->own_seq), bpf_ntohl(h->tcp.seq))))
		return drop(DROP_REWRITE);
	*meta = setup->meta;
	meta->kind = META_VACATED;
	meta->key_id = self->signing_key;
	meta->reason = reason;
	meta->start = bpf_htonl(start);
	meta->requests = bpf_htons(setup->answers.finished);
	meta->value = bpf_htonl(setup->answers.next);
	client_port = setup->origin ? setup->origin : h->tcp.dest;
	if (setup->origin &&
	    !replace_half(skb, offsetof(struct tcp_header, source), h->tcp.dest, setup->origin))
		return drop(DROP_REWRITE);
	set_tag(meta, meta_tag(key, meta, setup->dispatcher, h->ip.daddr, h->ip.saddr, client_port, h->tcp.source));
	if (!encapsulate(skb, &outer))
		return drop(DROP_REWRITE);
	if (setup->dispatcher == self->address)
		return give_to_own_dispatcher(skb);
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/* The word of it once more, to whose packet this is: it has no place here. */
static __noinline int tell_vacated_anew(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	struct encapsulation *outer;
	struct headers h;

	if (!segment || !known || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	outer = begin_reply(h.outer);
	if (!outer)
		return drop(DROP_REWRITE);
	count_drop(DROP_VACANT);
	outer->meta.kind = META_VACATED;
	outer->meta.reason = VACATED_ANEW;
	outer->meta.start = bpf_htonl(known->start);
	outer->meta.requests = bpf_htons(known->answers.finished);
	outer->meta.value = bpf_htonl(known->answers.next);
	return send_reply(skb, segment);
}

/*
 * The client's connection outlives its server's. Not before the client has
 * acknowledged all: who repeats it is the socket; a FIN comes again, and an RST
 * leaves. Done once more whenever the FIN comes again: the word of it may be lost.
 */
static __noinline int vacate(struct __sk_buff *skb, const struct leaving *h, struct setup *setup)
{
	struct tcp_sock *full = sending_socket(skb);
	struct bpf_sock *sender = skb->sk;

	if (!h || !setup)
		return TC_ACT_UNSPEC;
	if (!full)
		return setup->state == SETUP_VACANT ? drop(DROP_SERVER_CLOSE) : TC_ACT_UNSPEC;
	/* The client has closed before: there is nothing left that could outlive it. */
	if (sender && sender->state == TCP_STATE_LAST_ACK)
		return TC_ACT_UNSPEC;
	if (setup->state != SETUP_VACANT && is_before(full->snd_una + setup->server_shift, setup->answers.next)) {
		if (h->tcp.flags & TCP_RST)
			return TC_ACT_UNSPEC;
		setup->answers.flags |= ANSWER_HUNG_UP;
		return drop(DROP_SERVER_CLOSE);
	}
	note_clock(setup, full);
	become_vacant(setup);
	if (!turn_round(skb, h, TCP_RST))
		return drop(DROP_REWRITE);
	skb->mark = PASS_BY_MARK;
	if (!(h->tcp.flags & TCP_RST) && bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		count_drop(DROP_REWRITE);
	skb->mark = 0;
	if (!set_flags(skb, h->tcp.offset, TCP_RST, TCP_ACK))
		return drop(DROP_REWRITE);
	return tell_vacated(skb, h, setup, setup->start, 0);
}

/* A server that closes what is parked: its FIN becomes the RST for its own socket. */
static __noinline int end_parked(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key,
				 struct setup *setup)
{
	if (!h || !key || !setup)
		return drop(DROP_MOVED);
	count_drop(DROP_MOVED);
	/* Who takes it out has it: it may just be being taken up. */
	if (bpf_map_delete_elem(&parked, key))
		return TC_ACT_SHOT;
	setup->parked = 0;
	skb->mark = PASS_BY_MARK;
	return turn_round(skb, h, TCP_RST) ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) : drop(DROP_REWRITE);
}
