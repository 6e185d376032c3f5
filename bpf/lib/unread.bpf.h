/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * unread: a server that closes a connection while a request lies there of which it has
 * not read a byte has not run that request (docs/protocol/handoff.md 7.5). Its kernel
 * has, or may have, acknowledged it, and says RST: instead of that the request, of whose
 * packets copies were kept, comes in once more, as the first one of a new connection.
 */
#pragma once

#include "summing.bpf.h"

/* A packet that a request's first one, which came in again, has before it. */
#define BEHIND_MARK 0x545a0005
/* The same, once it has gone round. */
#define STILL_BEHIND_MARK 0x545a0008

/*
 * Is it one of those, from which the mark is taken? 0: no. Not static: the verifier need not walk all
 * that follows for each.
 */
__noinline int take_behind(struct __sk_buff *skb)
{
	__u32 mark = skb->mark;

	if (mark != BEHIND_MARK && mark != STILL_BEHIND_MARK)
		return 0;
	skb->mark = 0;
	return mark;
}

/* A copy of a part of a packet that is too long for it has a whole one's length, in an encapsulation of 1500 bytes. */
#define UNREAD_PART (1500 - ENCAP_LEN - sizeof(struct iphdr))
/* Nothing is sent again that takes more. */
#define UNREAD_PACKETS 64
/* As many packets as may wait to be read at once; the least used makes room. */
#define UNREADS 16384
/* Servers that read nothing are not given a request for ever. */
#define UNREAD_TIMES 2

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
	       unread->key.client_port == key->client_port && unread->key.vip_port == key->vip_port &&
	       unread->key.behind == key->behind;
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

/*
 * Is it a packet of the next request, with none before it that is not answered? Its copies are for what may
 * outlive its backend, too (adopt.bpf.h), whoever asks ahead.
 */
static __always_inline bool brings_request(const struct setup *setup, const struct segment *segment)
{
	return segment->payload && setup->meta.tcp_options & CARE_OUTLIVE && is_between_answers(&setup->answers) &&
	       segment->seq - next_start(setup) < UNREAD_REACH;
}

/* A part of a client's packet, as one of its own. */
struct part {
	__u32 start; /* its request's */
	__u32 at; /* in the packet's payload */
	__u32 length;
};

/* Copies it from the packet. */
static __always_inline bool copy_part(struct __sk_buff *skb, const struct segment *segment, const struct part *part,
				      struct unread *unread)
{
	struct tcp_header *tcp = (void *)unread->packet + sizeof(struct iphdr);
	struct iphdr *ip = (void *)unread->packet;
	__u32 headers = sizeof(*ip) + segment->header_length, length = part->length;

	barrier_var(headers);
	if (headers < sizeof(*ip) + sizeof(*tcp) || headers > sizeof(*ip) + 60 ||
	    bpf_skb_load_bytes(skb, INNER_IP, unread->packet, headers))
		return false;
	barrier_var(length);
	if (!length || length > UNREAD_MAX - 80 ||
	    bpf_skb_load_bytes(skb, INNER_IP + headers + part->at, unread->packet + headers, length))
		return false;
	unread->length = headers + length;
	unread->seq = segment->seq + part->at;
	tcp->seq = bpf_htonl(unread->seq);
	if (part->at + length < segment->payload)
		tcp->flags &= ~TCP_FIN;
	ip->tot_len = bpf_htons(unread->length);
	set_ipv4_checksum(ip);
	return true;
}

/* Not static, as send_reply(). */
__noinline int keep_part(struct __sk_buff *skb, const struct segment *segment, const struct part *part)
{
	struct unread_key key = {};
	struct unread *unread;

	if (!segment || !part)
		return 0;
	key.client = segment->client;
	key.vip = segment->vip;
	key.client_port = segment->key.client_port;
	key.vip_port = segment->key.vip_port;
	key.behind = segment->seq + part->at - part->start;
	unread = make_unread(&key);
	if (!unread)
		return 0;
	if (!copy_part(skb, segment, part, unread))
		unread->length = 0;
	leave_unread(unread);
	return 0;
}

/* Keeps what the client's packet brings of the request at `start`; packets that were joined on their way, in parts. */
/* Not static, as send_reply(). */
__noinline int keep_unread(struct __sk_buff *skb, const struct segment *segment, __u32 start)
{
	struct part part = { .start = start };
	__u32 most;

	if (!segment)
		return 0;
	most = segment->payload > UNREAD_MAX - 80 ? UNREAD_PART - segment->header_length : UNREAD_MAX - 80;
	for (int i = 0; i < UNREAD_PACKETS && part.at < segment->payload; i++) {
		part.length = segment->payload - part.at;
		if (part.length > most)
			part.length = most;
		keep_part(skb, segment, &part);
		part.at += part.length;
	}
	return 0;
}

/*
 * Does the server close, having said all that it owed before the request that lies there?
 * RST without ACK is the kernel's word, that the request has met a socket that was closed
 * before it came: nobody can have read it.
 */
static __always_inline bool closes_unanswered(const struct setup *setup, const struct leaving *h, __u32 payload)
{
	const struct answers *answers = &setup->answers;

	return is_to_outlive(setup) && h->tcp.flags & (TCP_FIN | TCP_RST) && !payload &&
	       setup->state == SETUP_CONFIRMED && is_between_answers(answers) &&
	       !(answers->flags & (ANSWER_CLOSING | ANSWER_GONE | ANSWER_MIDWAY)) && is_at_end(h, answers) &&
	       (!(h->tcp.flags & TCP_ACK) || bpf_ntohl(h->tcp.ack) != next_start(setup)) &&
	       (answers->unread < UNREAD_TIMES || answers->flags & ANSWER_HUNG_UP);
}

/* A socket that is closed with bytes unread says so within this time. */
#define OWN_WORD_NS 20000000ull

/* What lies behind a request's beginning comes to a socket, or to none: has that one had the beginning? */
static __noinline int note_met(struct __sk_buff *skb, const struct segment *segment, struct setup *setup)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct own_socket own;

	if (!segment || !setup || !is_before(setup->begun, segment->seq) ||
	    (setup->met == setup->begun && now - setup->met_ns < OWN_WORD_NS / 4))
		return 0;
	own = find_own_socket(skb, segment, setup);
	if (!own.state || !is_before(setup->begun, own.rcv_nxt))
		return 0;
	setup->met = setup->begun;
	setup->met_ns = now;
	return 0;
}

/*
 * Is it the kernel's answer to a packet that has come while its socket is being closed, which had the beginning?
 * What that has read it says itself, just now.
 */
static __always_inline bool is_ahead_of_own_word(const struct setup *setup, const struct leaving *h)
{
	return !(h->tcp.flags & TCP_ACK) && setup->met == setup->begun && setup->met_ns &&
	       bpf_ktime_get_coarse_ns() - setup->met_ns < OWN_WORD_NS;
}

/*
 * Is it the kernel's answer to a packet that met a closed socket, in whose place another stands since, or is about to?
 * Of that one it says nothing, and its request may be read. Not static: it is walked once.
 */
__noinline int is_late_reset(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	bool stands;

	if (!h || !setup || (h->tcp.flags & (TCP_RST | TCP_ACK)) != TCP_RST ||
	    setup->start == bpf_ntohl(setup->meta.start))
		return false;
	if (setup->state == SETUP_TRIED)
		return true;
	tuple.ipv4.saddr = h->ip.daddr;
	tuple.ipv4.daddr = h->ip.saddr;
	tuple.ipv4.sport = h->tcp.dest;
	tuple.ipv4.dport = h->tcp.source;
	found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	stands = is_full(found);
	bpf_sk_release(found);
	return stands;
}

/*
 * Does this tell the client that more of its request is here than copies can give again, of which its server has not
 * begun to read? Unsaid, its client keeps it, and says it again.
 */
static __always_inline bool acknowledges_unread(const struct __sk_buff *skb, const struct setup *setup,
						const struct leaving *h, __u32 payload)
{
	__u32 had = bpf_ntohl(h->tcp.ack) - next_start(setup);
	struct tcp_sock *full;

	if (payload || h->tcp.flags != TCP_ACK || had <= UNREAD_REACH || had > 1u << 30 || !is_to_outlive(setup) ||
	    setup->state != SETUP_CONFIRMED || !is_between_answers(&setup->answers) || setup->begun != next_start(setup))
		return false;
	full = sending_socket(skb);
	return full && full->copied_seq + setup->client_shift == setup->begun;
}

/*
 * It does not leave; nor is the kernel to take it for lost on its way. Nothing makes the socket say it again when its
 * server reads, and its client may have sent all that it can: the daemon asks the socket for it.
 */
static __noinline int withhold(const struct flow_key *key, const struct leaving *h, struct setup *setup)
{
	struct withheld said = {};

	count_drop(DROP_UNREAD);
	if (key && h && setup && !setup->withheld) {
		setup->withheld = 1;
		said.key = *key;
		said.seq = bpf_ntohl(h->own_seq);
		said.ack = bpf_ntohl(h->own_ack);
		bpf_ringbuf_output(&withheld, &said, sizeof(said), BPF_RB_FORCE_WAKEUP);
	}
	/* To nowhere: TC_ACT_SHOT would be congestion to the socket. */
	return bpf_redirect(0, 0);
}

/* What the daemon sends on a connection of a socket here comes in there, if something is withheld still. */
static __noinline int ask_socket(struct __sk_buff *skb)
{
	struct leaving h = {};
	struct setup *setup;
	struct flow_key key;

	skb->mark = 0;
	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &h, LEAVING_HEADERS))
		return TC_ACT_SHOT;
	key = flow_key_v4(h.ip.daddr, h.ip.saddr, h.tcp.dest, h.tcp.source);
	setup = bpf_map_lookup_elem(&setups, &key);
	if (!setup || !setup->withheld)
		return TC_ACT_SHOT;
	h.own_seq = h.tcp.seq;
	h.own_ack = h.tcp.ack;
	if (!turn_round(skb, &h, TCP_ACK))
		return drop(DROP_REWRITE);
	skb->mark = PASS_BY_MARK;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* How many bytes of the client's a copy has; 0: it is none. */
static __always_inline __u32 payload_of(const struct unread *unread)
{
	const __u32 tcp = sizeof(struct iphdr);
	__u32 length = unread->length;
	__u32 headers = tcp + (unread->packet[tcp + offsetof(struct tcp_header, offset)] >> 4 << 2);

	return length > headers && length <= UNREAD_MAX ? length - headers : 0;
}

static __always_inline struct unread_key unread_key_of(const struct leaving *h, __u32 behind)
{
	return (struct unread_key){
		.client = h->ip.daddr,
		.vip = h->ip.saddr,
		.client_port = h->tcp.dest,
		.vip_port = h->tcp.source,
		.behind = behind,
	};
}

/* How far there are copies of the request at `start` without a gap; from `end` on it does not matter. */
static __noinline __u32 reach_of_copies(const struct leaving *h, __u32 start, __u32 end)
{
	struct unread_key key;
	struct unread *unread;
	__u32 behind = 0, payload;

	if (!h)
		return 0;
	for (int i = 0; i < UNREAD_PACKETS && behind < end; i++) {
		key = unread_key_of(h, behind);
		unread = bpf_map_lookup_elem(&unreads, &key);
		payload = unread && unread->seq == start + behind ? payload_of(unread) : 0;
		if (!payload)
			break;
		behind += payload;
	}
	return behind;
}

/* A packet of a request. */
struct again {
	__u32 start;
	__u32 behind; /* the start; the next packet's, when this one has been laid out */
	__u32 reach; /* what they bring, in bytes */
	bool fin; /* the client has said behind the last that it sends no more */
	bool needs_sum; /* the frame is the kernel's own RST: nobody completes its checksum */
	__be32 ack; /* of all that was said before */
	__be32 clock; /* of who said it, by now; 0 without timestamps */
};

/*
 * What it echoes: who is rebuilt from it goes on from there, and the client takes nothing older than it has
 * heard of the one before since it said this (RFC 7323 5.3). Not static: the verifier walks the options once.
 */
__noinline int set_echo(struct unread *unread, __be32 clock)
{
	const __u32 tcp = sizeof(struct iphdr);
	__u32 length, ahead, at = 0;
	__u8 *options, kind, size;

	if (!unread || !clock)
		return 0;
	options = unread->packet + tcp + sizeof(struct tcp_header);
	length = (unread->packet[tcp + offsetof(struct tcp_header, offset)] >> 4 << 2) - sizeof(struct tcp_header);
	for (int i = 0; i < TCP_OPTIONS_MAX && at + 10 <= length; i++) {
		barrier_var(at);
		at &= 63;
		kind = options[at];
		size = options[at + 1];
		if ((kind == 8 || kind == AGED_TIMESTAMPS) && size == 10) {
			ahead = bpf_ntohl(clock) - get_be32(options + at + 6);
			if (ahead < 1u << 30)
				__builtin_memcpy(options + at + 6, &clock, sizeof(clock));
			break;
		}
		if (!kind || (kind != 1 && size < 2))
			break;
		at += kind == 1 ? 1 : size;
	}
	return 0;
}

/*
 * What lies in the frame from `at` on becomes that packet, as the client sent it, but for what it
 * acknowledges. Its length, 0 when the frame is spoilt, or -1 when it is as before.
 */
/* Not static, as send_reply(). */
__noinline int lay_out(struct __sk_buff *skb, const struct leaving *h, struct again *again, __u32 at)
{
	const __u32 tcp = sizeof(struct iphdr);
	__u32 length, payload, seq;
	struct unread_key key;
	struct unread *unread;
	int done = -1;
	__u16 sum;

	if (!h || !again)
		return -1;
	key = unread_key_of(h, again->behind);
	seq = again->start + again->behind;
	unread = enter_unread(&key);
	if (!unread)
		return -1;
	payload = payload_of(unread);
	length = unread->length;
	barrier_var(length);
	if (unread->seq == seq && payload && length > tcp && length <= UNREAD_MAX) {
		/* Of the pseudo header alone: a card, or nobody, completes it in a frame that was a socket's. */
		sum = checksum_fold(pseudo_header_sum(h->ip.daddr, h->ip.saddr, length - tcp));
		if (again->fin && again->behind + payload == again->reach)
			unread->packet[tcp + offsetof(struct tcp_header, flags)] |= TCP_FIN;
		__builtin_memcpy(unread->packet + tcp + offsetof(struct tcp_header, ack), &again->ack, sizeof(again->ack));
		set_echo(unread, again->clock);
		__builtin_memcpy(unread->packet + tcp + offsetof(struct tcp_header, check), &sum, sizeof(sum));
		done = !bpf_skb_change_tail(skb, at + length, 0) &&
				       !bpf_skb_store_bytes(skb, at, unread->packet, length, 0) &&
				       is_unread_of(unread, &key) && unread->seq == seq ?
			       (int)length :
			       0;
		again->behind += payload;
	}
	leave_unread(unread);
	return done;
}

/*
 * The same, with a checksum of its own where that is needed: in the field is the pseudo header's sum. Not static: it
 * is walked once.
 */
__noinline int lay_out_whole(struct __sk_buff *skb, const struct leaving *h, struct again *again, __u32 at)
{
	int length = lay_out(skb, h, again, at);
	__u32 tcp = at + sizeof(struct iphdr), sum;
	__u16 check;

	if (length <= (int)sizeof(struct iphdr) || !again || !again->needs_sum)
		return length;
	if (!sum_frame(skb, tcp, length - sizeof(struct iphdr), &sum))
		return 0;
	check = ~checksum_fold(sum);
	return bpf_skb_store_bytes(skb, tcp + offsetof(struct tcp_header, check), &check, sizeof(check), 0) ? 0 : length;
}

/*
 * The frame has a dispatcher's headers from now on. The kernel is not told that they are a
 * tunnel's: it does not change the length of what is in one, and the next packet may be longer.
 */
static __always_inline bool enclose(struct __sk_buff *skb, const struct encapsulation *outer)
{
	return turn_frame(skb) && !bpf_skb_adjust_room(skb, ENCAP_LEN, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) &&
	       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), outer, sizeof(*outer), 0);
}

/* Too long for a stack as deep as here. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct encapsulation);
} new_outer SEC(".maps");

/* What follows the first packet, whose frame this is, comes in behind it. */
static __noinline int send_behind(struct __sk_buff *skb, const struct leaving *h, const struct setup *setup,
				  struct again *again)
{
	__u32 zero = 0;
	struct encapsulation *outer = bpf_map_lookup_elem(&new_outer, &zero);
	struct node *self = this_node();
	int length;

	if (!h || !setup || !again || !self || !outer)
		return drop(DROP_REWRITE);
	outer->meta = setup->meta;
	for (int i = 1; i < UNREAD_PACKETS && again->behind < again->reach; i++) {
		if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
			return drop(DROP_REWRITE);
		length = lay_out_whole(skb, h, again, INNER_IP);
		if (length <= 0)
			return drop(DROP_REWRITE);
		fill_encapsulation(outer, setup->dispatcher, self->address, h->tcp.dest | bpf_htons(0xc000), length);
		if (bpf_skb_store_bytes(skb, sizeof(struct ethhdr), outer, sizeof(*outer), 0))
			return drop(DROP_REWRITE);
		skb->mark = BEHIND_MARK;
	}
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct protection);
} protecting SEC(".maps");

/* May the request at `start` run, though it may have run before? As its pools and its copy say. */
static __noinline bool may_run_again(const struct leaving *h, __u32 start)
{
	struct unread_key key;
	struct unread *unread;
	__u32 at, payload, zero = 0;
	__u64 word = 0;
	struct protection *rules = bpf_map_lookup_elem(&protecting, &zero);

	if (!h || !rules || rules->once)
		return false;
	key = unread_key_of(h, 0);
	unread = bpf_map_lookup_elem(&unreads, &key);
	payload = unread && unread->seq == start ? payload_of(unread) : 0;
	if (payload < sizeof(word))
		return false;
	at = unread->length - payload;
	barrier_var(at);
	if (at > UNREAD_MAX - sizeof(word) || bpf_probe_read_kernel(&word, sizeof(word), unread->packet + at))
		return false;
	return may_run_twice(word);
}

/* The request comes in again, as its dispatcher would send it here (handoff.md 7.3). */
static __noinline int return_unread(struct __sk_buff *skb, const struct leaving *h, struct setup *setup)
{
	bool is_sockets = h && h->tcp.flags & TCP_ACK;
	struct encapsulation outer = {};
	struct node *self = this_node();
	struct tcp_sock *full = sending_socket(skb);
	struct again again = {};
	bool was_read, said_before;
	__u32 start, end;
	int length;

	if (!h || !setup || !self)
		return TC_ACT_UNSPEC;
	again.start = next_start(setup);
	/* It may be the body of one that was answered before all of it had come. */
	if (setup->begun != again.start)
		return TC_ACT_UNSPEC;
	again.ack = bpf_htonl(setup->answers.next);
	again.needs_sum = !is_sockets;
	if (!is_sockets)
		full = NULL;
	note_clock(setup, full);
	again.clock = bpf_htonl(own_clock(setup, setup->clock_offset));
	if (is_sockets && (!full || full->snd_una + setup->server_shift != setup->answers.next))
		return TC_ACT_UNSPEC;
	/* Who has said FIN answers nothing; but may have read all, or read on. The kernel may say RST for it since. */
	said_before = setup->answers.flags & ANSWER_HUNG_UP && (h->tcp.flags & TCP_FIN || setup->answers.unread);
	was_read = said_before ||
		   (full && (h->tcp.flags & TCP_FIN || full->copied_seq + setup->client_shift != again.start));
	if (was_read && !may_run_again(h, again.start))
		return TC_ACT_UNSPEC;
	/* All that lies there, but for the FIN; or what the client has sent. */
	again.fin = has_clients_fin(full);
	end = full ? bpf_ntohl(h->tcp.ack) - again.fin - again.start : UNREAD_REACH;
	/* More has come, perhaps; the client has not been told so (acknowledges_unread()). */
	if (end > UNREAD_REACH && !was_read && !told_ahead(&setup->told, again.start + UNREAD_REACH)) {
		end = UNREAD_REACH;
		again.fin = false;
	}
	again.reach = reach_of_copies(h, again.start, again.fin ? end : UNREAD_REACH);
	if (full && again.reach < end)
		return TC_ACT_UNSPEC;
	/*
	 * Who says FIN has its lock, and would not hear the RST before the request: when its timer says it
	 * again. Or when the client says the request again, which has not heard that it has come (7.4).
	 */
	if (h->tcp.flags & TCP_FIN && !said_before) {
		setup->answers.flags |= ANSWER_HUNG_UP;
		setup->answers.unread++;
		count_event(EVENT_RETRIED);
		return drop(DROP_SERVER_CLOSE);
	}
	/* The kernel may speak for several packets, and the socket for itself: one of them has it come in again. */
	start = setup->start;
	setup->start = again.start;
	if (__sync_val_compare_and_swap(&setup->state, SETUP_CONFIRMED, SETUP_VACANT) != SETUP_CONFIRMED)
		return drop(DROP_SERVER_CLOSE);
	length = lay_out_whole(skb, h, &again, sizeof(struct ethhdr));
	if (length <= 0) {
		setup->start = start;
		setup->state = SETUP_CONFIRMED;
		return length ? TC_ACT_UNSPEC : drop(DROP_REWRITE);
	}
	if (!said_before) {
		setup->answers.unread++;
		count_event(was_read ? EVENT_RETRIED : EVENT_UNREAD);
	}
	outer.meta = setup->meta;
	outer.meta.reason |= FORWARD_BEGINS;
	fill_encapsulation(&outer, setup->dispatcher, self->address, h->tcp.dest | bpf_htons(0xc000), length);
	if (!enclose(skb, &outer))
		return drop(DROP_REWRITE);
	return send_behind(skb, h, setup, &again);
}

/*
 * Was the request at its start given back, and are its copies here still? If its dispatcher asks
 * after it all the same, the word of that has been lost, or has gone to a dispatcher that has
 * died; and the client has been told that it has arrived.
 */
static __always_inline bool has_given_back(const struct setup *known, const struct segment *segment)
{
	struct unread_key key = {
		.client = segment->client,
		.vip = segment->vip,
		.client_port = segment->key.client_port,
		.vip_port = segment->key.vip_port,
	};
	struct unread *unread;

	if (!known->answers.unread || known->begun != known->start || (known->state != SETUP_REFUSED && known->state != SETUP_VACANT))
		return false;
	unread = bpf_map_lookup_elem(&unreads, &key);
	return unread && unread->seq == known->start && payload_of(unread);
}

/* A verdict of receive_probe(): the question is to become what it asks about. */
#define ASKED_BACK (-4)

/* That is given back once more, and for good: to who asks. */
static __noinline int return_again(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	struct node *self = this_node();
	struct encapsulation *outer;
	struct leaving copies = {};
	struct again again = {};
	struct headers h;
	int length;

	if (!segment || !known || !self || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	outer = begin_reply(h.outer);
	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta = known->meta;
	known->dispatcher = outer->ip.saddr;
	known->state = SETUP_REFUSED;
	copies.ip.daddr = segment->client;
	copies.ip.saddr = segment->vip;
	copies.tcp.dest = segment->key.client_port;
	copies.tcp.source = segment->key.vip_port;
	again.start = known->start;
	again.ack = bpf_htonl(known->answers.next);
	again.clock = bpf_htonl(own_clock(known, known->clock_offset));
	again.reach = reach_of_copies(&copies, again.start, UNREAD_REACH);
	length = lay_out(skb, &copies, &again, INNER_IP);
	if (length <= 0)
		return drop(DROP_REWRITE);
	fill_encapsulation(outer, known->dispatcher, self->address, outer->udp.source, length);
	if (bpf_skb_store_bytes(skb, sizeof(struct ethhdr), outer, sizeof(*outer), 0))
		return drop(DROP_REWRITE);
	return send_behind(skb, &copies, known, &again);
}
