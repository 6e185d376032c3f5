/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * older: the anchored half-pipe (docs/protocol/handoff.md 6). The newest owner hears the
 * client; what it hears of the range of the one before it goes on to that one as GC,
 * until that one says RETIRED.
 */
#pragma once

/* Every socket that has read all takes that much. */
#define OLDER_WINDOW 16384

/* Does it come after an older owner, and has not begun (6.2a)? Only the packet that starts its request begins it. */
static __always_inline bool is_to_begin(const struct segment *segment, const struct setup *known,
					const struct meta *meta)
{
	return meta->kind == META_FORWARD && meta->value && !starts_request(segment, bpf_ntohl(meta->start)) &&
	       (!known || is_before(known->epoch, bpf_ntohl(meta->epoch)));
}

/*
 * 6.3a: up to where the client's bytes have come to this owner, or to one after it, or, as it has been
 * told, to its dispatcher. What has no socket here has them up to its start.
 */
static __noinline __u32 reach_of(struct __sk_buff *skb, const struct segment *segment, struct setup *known,
				 const struct meta *meta)
{
	struct own_socket own;
	__u32 reach;
	__be32 word;

	if (!segment || !meta)
		return 0;
	if (meta->kind == META_GC) {
		__builtin_memcpy(&word, &meta->mss, sizeof(word));
		return bpf_ntohl(word);
	}
	if (!known)
		return bpf_ntohl(meta->start);
	own = find_own_socket(skb, segment, known);
	reach = own.state ? own.rcv_nxt : known->start;
	return reach + told_ahead(&known->told, reach);
}

/* 6.2: the second pass of what an owner has heard. */
__noinline int become_gc(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	struct node *self = this_node();
	struct encapsulation outer;
	struct siphash_key *key;
	struct meta *meta = &outer.meta;
	struct headers h;
	__be32 before, reach;
	__u16 inner_length;

	if (!segment || !self || !(key = tag_key(self->signing_key)))
		return drop(DROP_STALE_EPOCH);
	/* What bpf_skb_adjust_room() has encapsulated on this host cannot be cut: the older owner leaves it out. */
	if (brings_bytes(segment) && !bpf_skb_change_tail(skb, INNER_TCP + segment->header_length, 0) &&
	    !leave_out_payload(skb, segment))
		return drop(DROP_REWRITE);
	if (!find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_REWRITE);
	outer = *h.outer;
	inner_length = bpf_ntohs(h.ip->tot_len);
	if (is_to_begin(segment, known, meta)) {
		reach = meta->start;
		before = meta->value;
		/* Where the other one ends is not known here yet: not before that. */
		meta->value = bpf_htonl(segment->ack + 1);
	} else if (known && known->before) {
		reach = bpf_htonl(reach_of(skb, segment, known, meta));
		before = known->before;
		meta->epoch = bpf_htonl(known->before_epoch);
		meta->start = bpf_htonl(known->before_start);
		meta->value = bpf_htonl(known->first);
	} else {
		return drop(DROP_STALE_EPOCH);
	}
	meta->kind = META_GC;
	meta->key_id = self->signing_key;
	meta->reason = 0;
	meta->requests = 0;
	__builtin_memcpy(&meta->mss, &reach, sizeof(reach));
	set_tag(meta, meta_tag(key, meta, before, segment->client, segment->vip, segment->client_port,
			       segment->key.vip_port));
	fill_encapsulation(&outer, self->address, before, outer.udp.source, inner_length);
	if (bpf_skb_store_bytes(skb, sizeof(struct ethhdr), &outer, sizeof(outer), 0))
		return drop(DROP_REWRITE);
	count_event(EVENT_GC);
	/* It has come back to where it was, because who was to have it had no room. */
	if (before == self->address)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/* 6.3: to the one after us. */
static __noinline int answer_retired(struct __sk_buff *skb, const struct segment *segment)
{
	struct encapsulation *outer;
	struct headers h;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	outer = begin_reply(h.outer);
	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta.kind = META_RETIRED;
	return send_reply(skb, segment);
}

/*
 * The client's number, for a socket that expects S for ever: as it is, so that what the
 * client says of its window is later than what it said before (RFC 9293 3.10.7.4, SND.WL1),
 * but within this socket's window. Where the packet that opened the window is lost, all that come
 * after it may begin before one that said that it was closed: they are as late as that.
 */
static __always_inline __u32 seq_for_older(const struct segment *segment, const struct setup *known, __u32 edge,
					   __u32 said_at)
{
	__u32 seq = segment->seq;

	if (segment->window && is_before(seq, said_at))
		seq = said_at;
	if (is_before(seq, known->start))
		return known->start;
	return is_before(edge, seq) ? edge : seq;
}

/*
 * 6.3b: whatever clock the client has heard last, by whomever, what is older it takes for a late repetition: the
 * socket's clock stands there then. Of an unpacked segment.
 */
static __always_inline void hear_clock(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	__be32 option[3];
	__u32 echo;

	if (segment->header_length < TSECR_WORD + 4 ||
	    bpf_skb_load_bytes(skb, UNPACKED_TCP + TSVAL_WORD - 4, option, sizeof(option)) ||
	    option[0] != bpf_htonl(0x0101080a))
		return;
	echo = bpf_ntohl(option[2]);
	if (echo && is_before(known->last_clock, echo))
		known->last_clock = echo;
}

/* 6.3: what the client has had of our range. */
__noinline int receive_gc(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	struct range range = {};
	struct headers h;
	struct meta meta;
	__u32 reach, edge, said_at;
	bool ours, over;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	meta = h.outer->meta;
	/* A later epoch: of who got what the next owner had refused. */
	ours = known && is_given_up(known) && known->start == bpf_ntohl(meta.start) &&
	       !is_before(bpf_ntohl(meta.epoch), known->epoch);
	if (skb->mark == RESET_MARK)
		return ours && known->state == SETUP_MOVED ? tell_own_socket(skb, segment, known) : drop(DROP_STALE_EPOCH);
	/* A client that resets wants nothing more of anybody. */
	over = segment->flags & TCP_RST || !is_before(segment->ack, ours ? known->end : bpf_ntohl(meta.value));
	if (!ours)
		return over ? answer_retired(skb, segment) : drop(DROP_STALE_EPOCH);
	if (known->before)
		send_gc(skb);
	if (known->state == SETUP_MOVED)
		return is_relaying(known) ? TC_ACT_SHOT : answer_retired(skb, segment);
	known->heard_ns = bpf_ktime_get_coarse_ns();
	reach = reach_of(skb, segment, known, &meta);
	if (is_before(known->reach, reach))
		known->reach = reach;
	if (over) {
		known->state = SETUP_MOVED;
		bpf_map_delete_elem(&older, &segment->key);
		count_event(EVENT_RETIRED);
		send_own_last(skb);
		return is_relaying(known) ? TC_ACT_SHOT : answer_retired(skb, segment);
	}
	edge = client_number(skb, segment, known, WINDOW_EDGE, known->start + OLDER_WINDOW);
	said_at = client_number(skb, segment, known, WINDOW_SAID_AT, segment->seq);
	range.end = known->end;
	range.has_end = true;
	range.first = known->first;
	range.has_first = !!known->before;
	if (brings_bytes(segment) && !leave_out_payload(skb, segment))
		return drop(DROP_REWRITE);
	if (!unpack(skb, segment))
		return drop(DROP_REWRITE);
	hear_clock(skb, segment, known);
	if (!replace_word(skb, offsetof(struct tcp_header, seq), segment->seq, seq_for_older(segment, known, edge, said_at)) ||
	    keep_to_range(skb, segment, &range, known->meta.window_scales >> 4) || !shift_in(skb, segment, known))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

/* 6.7b: how far the client lets anybody speak. */
static __always_inline void note_edge(const struct segment *segment, struct setup *known)
{
	__u32 edge = segment->ack + ((__u32)segment->window << (known->meta.window_scales >> 4 & 15));

	if (segment->flags & TCP_ACK && (!known->edge || is_before(known->edge, edge)))
		known->edge = edge;
}

/* 6.7b: what only acknowledges is said from where the client hears it. */
static __always_inline bool keep_in_clients_window(struct __sk_buff *skb, const struct leaving *h,
						   const struct setup *setup)
{
	__u32 last = setup->edge - 1, ahead = bpf_ntohl(h->tcp.seq) - last, own = bpf_ntohl(h->own_seq);
	__u32 empty = sizeof(struct iphdr) + (h->tcp.offset >> 4 << 2);

	if (!setup->before || !setup->edge || (__s32)ahead <= 0 || bpf_ntohs(h->ip.tot_len) != empty ||
	    h->tcp.flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return true;
	return replace_word(skb, offsetof(struct tcp_header, seq), own, own - ahead);
}

/* 6.5 */
static __always_inline int receive_retired(struct setup *known, const struct meta *meta, __be32 from)
{
	if (!known || known->before != from || known->before_epoch != bpf_ntohl(meta->epoch) ||
	    known->first != bpf_ntohl(meta->value))
		return drop(DROP_STALE_EPOCH);
	known->before = 0;
	return TC_ACT_SHOT;
}

/*
 * 6.3a: a socket that expects S for ever acknowledges what the client has long forgotten: too old
 * an acknowledgement for its segments to be taken (RFC 5961 5.2).
 */
static __always_inline bool acknowledge_reach(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup)
{
	/* Old enough to say nothing of window and clock, which are the newest owner's to say. */
	__u32 reach = setup->reach - OLDER_WINDOW;
	__u32 own = reach - (setup->shifted ? setup->client_shift : 0);

	return !is_before(bpf_ntohl(h->tcp.ack), reach) ||
	       replace_word(skb, offsetof(struct tcp_header, ack), bpf_ntohl(h->own_ack), own);
}

/*
 * 6.3b: nor does its clock go on, for the client would take what the owner after it has said
 * before that for a late repetition (RFC 7323 5). Linux has its timestamps first.
 */
static __always_inline bool keep_clock(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup)
{
	__u32 last = setup->last_clock - (setup->shifted ? setup->clock_shift : 0);
	__be32 option[2];
	__u32 value;

	if (h->tcp.offset >> 4 < 8 || bpf_skb_load_bytes(skb, UNPACKED_TCP + TSVAL_WORD - 4, option, sizeof(option)) ||
	    option[0] != bpf_htonl(0x0101080a))
		return true;
	value = bpf_ntohl(option[1]);
	return !is_before(last, value) || replace_word(skb, TSVAL_WORD, value, last);
}

/*
 * 6.4: the question whether the client's window is open again (RFC 9293 3.8.6.1; Linux asks by a
 * segment without payload, from before what the client has): nobody else can ask it, for what
 * others would ask from lies in the client's window, and is not answered.
 */
static __always_inline bool asks_for_window(const struct __sk_buff *skb, const struct leaving *h)
{
	struct tcp_sock *full = sending_socket(skb);

	return full && !(h->tcp.flags & TCP_FIN) && bpf_ntohl(h->own_seq) + 1 == full->snd_una;
}

/*
 * 6.4: from an older owner only what lies in its range leaves, or the word that the
 * rest of it will never come: an RST, or a FIN in its midst.
 */
static __noinline int leave_older(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup,
				  __u32 payload)
{
	bool cuts;
	__u32 end;

	if (!h || !setup)
		return TC_ACT_UNSPEC;
	end = bpf_ntohl(h->tcp.seq) + payload;
	if (h->tcp.flags & TCP_RST)
		return TC_ACT_UNSPEC;
	cuts = h->tcp.flags & TCP_FIN && is_before(end, setup->end);
	if (is_before(setup->end, end) || (!payload && !cuts && !asks_for_window(skb, h)))
		return drop(DROP_MOVED);
	if (h->tcp.flags & TCP_FIN && !cuts && !set_flags(skb, h->tcp.offset, h->tcp.flags, h->tcp.flags & ~TCP_FIN))
		return drop(DROP_REWRITE);
	if (!acknowledge_reach(skb, h, setup) || !keep_clock(skb, h, setup))
		return drop(DROP_REWRITE);
	return TC_ACT_UNSPEC;
}
