/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * standing: a request that is like one that the daemon has placed before is placed
 * here (the later ones of a connection: boundary.bpf.h), as long as the daemon's
 * decision stands: it is in `decisions`, of the daemon's latest generation, and its
 * lease has not run out. A policy that looks at loads leaves a choice: of the backends
 * that have the object in memory the one with the least work, for a few seconds and up
 * to a limit. The connection's owner is one of them for as long as a move costs more.
 *
 * Alike are requests with the same request line and the same Host line, byte
 * for byte (core/src/head/likeness.rs computes the same), in a packet that holds
 * one whole head and nothing else. Whatever is unusual is the daemon's.
 */
#pragma once

#include "words.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct standing);
} standing SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct decision_key);
	__type(value, struct decision);
} decisions SEC(".maps");

/* By the pool's place in the daemon's configuration. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, POOLS_MAX);
	__type(key, __u32);
	__type(value, struct turns);
} turns SEC(".maps");

/* Part of a head. */
struct span {
	__u32 at;
	__u32 length;
};

/* A walk over the head, word by word, that stops at the ends of lines. */
struct head_scan {
	const __u8 *head;
	__u32 length;
	__u32 lines; /* whose end was seen */
	struct span line; /* the request line, without its LF */
	struct span host; /* what follows "Host:", without the LF */
	bool in_host;
	bool unusual;
	bool keeps; /* "Connection: keep-alive" */
	bool closes; /* "Connection: close" */
};

static __always_inline __u64 word_at(const __u8 *head, __u32 at)
{
	__u64 word;

	__builtin_memcpy(&word, head + (at & (HEAD_MAX - 1)), 8);
	return word;
}

/*
 * "content-", "transfer", "upgrade:" in any case: what may come behind such a head is not
 * for us to say. Nor is what a line says that continues the one before (RFC 9112 5.2).
 */
static __always_inline bool announces_more(__u64 word)
{
	__u8 first = word;
	__u64 name = word | LOWER_CASE;

	return first == ' ' || first == '\t' || name == 0x2d746e65746e6f63ull || name == 0x726566736e617274ull ||
	       name == 0x3a65646172677075ull;
}

/* What a Connection line says of the connection's end (RFC 9112 9.6). */
enum connection_line {
	CONNECTION_NONE = 0, /* it is none */
	CONNECTION_KEEPS = 1, /* "connection: keep..." in any case */
	CONNECTION_CLOSES = 2, /* "connection: clos..." */
	CONNECTION_OTHER = 3,
};

static __always_inline enum connection_line read_connection(__u64 word, __u64 next)
{
	if ((word | LOWER_CASE) != 0x697463656e6e6f63ull)
		return CONNECTION_NONE;
	next |= LOWER_CASE;
	return next == 0x7065656b203a6e6full ? CONNECTION_KEEPS :
	       next == 0x736f6c63203a6e6full ? CONNECTION_CLOSES :
						CONNECTION_OTHER;
}

/* "host:" in any case. */
static __always_inline bool begins_host(__u64 word)
{
	return ((word | 0x20202020) & 0xffffffffff) == 0x3a74736f68ull;
}

static __noinline int end_line(struct head_scan *scan, __u32 at)
{
	__u64 next;

	if (!scan)
		return 0;
	next = word_at(scan->head, at + 1);
	if (scan->lines++ == 0)
		scan->line.length = at;
	if (scan->in_host)
		scan->host.length = at - scan->host.at;
	scan->in_host = false;
	if (at + 1 >= scan->length)
		return 0;
	/* The empty line ends the head, and the packet has to end there too. */
	if (((next & 0xff) == '\r' || (next & 0xff) == '\n') && at + 3 < scan->length)
		scan->unusual = true;
	if (announces_more(next))
		scan->unusual = true;
	switch (read_connection(next, word_at(scan->head, at + 1 + 8))) {
	case CONNECTION_NONE:
		break;
	case CONNECTION_KEEPS:
		scan->keeps = true;
		break;
	case CONNECTION_CLOSES:
		scan->closes = true;
		break;
	case CONNECTION_OTHER:
		scan->unusual = true;
	}
	if (begins_host(next)) {
		if (scan->host.at)
			scan->unusual = true;
		scan->host.at = at + 1 + 5;
		scan->in_host = true;
	}
	return 0;
}

static long scan_word(__u64 index, struct head_scan *scan)
{
	__u32 at = index * 8;
	__u64 found;

	if (at >= scan->length)
		return 1;
	found = line_feeds(word_at(scan->head, at));
	if (!found)
		return 0;
#pragma clang loop unroll(full)
	for (int byte = 0; byte < 8; byte++)
		if (found & 0x80ull << (8 * byte) && at + byte < scan->length)
			end_line(scan, at + byte);
	return 0;
}

/* SipHash over a span, zeros behind it up to a whole word. */
struct span_hash {
	const __u8 *head;
	struct span span;
	struct siphash_state state;
};

static long hash_word(__u64 index, struct span_hash *hash)
{
	__u32 at = index * 8;
	__u64 word;

	if (at >= hash->span.length)
		return 1;
	word = word_at(hash->head, hash->span.at + at);
	if (hash->span.length - at < 8)
		word &= (1ull << (hash->span.length - at) * 8) - 1;
	siphash_word(&hash->state, word);
	return 0;
}

/*
 * What requests that are alike have in common; 0: it is not for us to say. `closes`: it
 * is to be the last of its connection.
 */
static __noinline __u64 likeness(const __u8 *head, __u32 length, const struct standing *rules, __u8 *closes)
{
	struct head_scan scan = { .head = head, .length = length };
	struct span_hash hash = { .head = head };
	__u32 words;

	if (!head || !rules || !closes || length < 16 || length > HEAD_MAX)
		return 0;
	if (word_at(head, length - 8) >> 32 != 0x0a0d0a0d)
		return 0;
	if (!is_get_request(word_at(head, 0)) && !is_head_request(word_at(head, 0)))
		return 0;
	bpf_loop(HEAD_MAX / 8, scan_word, &scan, 0);
	if (scan.unusual || scan.lines < 2 || !scan.line.length)
		return 0;
	/* "HTTP/1.0", and a CR behind it. */
	*closes = scan.closes || (!scan.keeps && scan.line.length > 9 &&
				  word_at(head, scan.line.length - 9) == 0x302e312f50545448ull);
	siphash_begin(&hash.state, rules->k0, rules->k1);
	hash.span = scan.line;
	bpf_loop(HEAD_MAX / 8, hash_word, &hash, 0);
	hash.span = scan.host;
	bpf_loop(HEAD_MAX / 8, hash_word, &hash, 0);
	siphash_word(&hash.state, (__u64)scan.host.length << 32 | scan.line.length);
	words = (scan.line.length + 7) / 8 + (scan.host.length + 7) / 8 + 1;
	return siphash_end(&hash.state, words);
}

/* Work that the backend has before it, in microseconds. */
static __always_inline __s64 work_before(__u32 slot)
{
	struct backend_load *load = bpf_map_lookup_elem(&loads, &slot);

	return load ? load->cost_us : 0;
}

/* The owner of a connection that has one. */
static __always_inline bool is_owner(const struct flow *flow, const struct turn *turn)
{
	return flow && turn->slot == flow->backend && turn->server_port == flow->meta.server_port;
}

/*
 * Of the decision's backends the one with the least to do, or the owner that `flow`
 * has, as long as it has not much more. False: it is time to ask the daemon again,
 * because of that, or anyway.
 */
static __always_inline bool least_busy(const struct decision *decision, struct turn *turn, const struct flow *flow)
{
	__s64 least = work_before(turn->slot), owners = least;
	struct turn owner = *turn;
	bool is_among = is_owner(flow, turn);

	if (decision->until_ns < bpf_ktime_get_coarse_ns())
		return false;
#pragma clang loop unroll(full)
	for (int i = 0; i < OTHERS_MAX; i++) {
		__s64 work;

		if (i >= decision->others_count)
			break;
		work = work_before(decision->others[i].slot);
		if (is_owner(flow, &decision->others[i])) {
			is_among = true;
			owners = work;
			owner = decision->others[i];
		}
		if (work < least) {
			least = work;
			*turn = decision->others[i];
		}
	}
	if (is_among && owners - decision->move_us <= least)
		*turn = owner;
	return least <= decision->most_us;
}

/*
 * The decision's backend, or the one whose turn it is; `flow` is of a connection that has
 * an owner, or NULL. False: the daemon says who.
 */
static __always_inline bool whose_turn(const struct decision *decision, struct turn *turn, const struct flow *flow)
{
	__u32 row = decision->row;
	struct turns *all;
	__u64 count;

	*turn = (struct turn){ .slot = decision->slot, .server_port = decision->server_port };
	if (decision->until_ns)
		return least_busy(decision, turn, flow);
	if (turn->slot != SLOT_BY_TURNS)
		return true;
	all = bpf_map_lookup_elem(&turns, &row);
	count = all ? all->count : 0;
	if (count)
		*turn = all->turns[__sync_fetch_and_add(&all->next, 1) % count & (TURNS_MAX - 1)];
	return count;
}

static __always_inline __u32 new_epoch(const struct standing *rules, const struct proof *proof)
{
	__u32 epoch = cluster_time_ns() >> EPOCH_SHIFT;

	if (rules->epoch_floor && (__s32)(epoch - rules->epoch_floor) < 0)
		epoch = rules->epoch_floor;
	if (proof->older_epoch && (__s32)(epoch - proof->older_epoch) <= 0)
		epoch = proof->older_epoch + 1;
	return epoch;
}

/* As the daemon writes it (dispatcher/src/records.rs). False: it cannot be sealed. */
static __always_inline bool fill_flow(struct flow *flow, const struct segment *segment, const struct proof *proof,
				      const struct turn *turn, __u32 pool, __u8 care, __u32 epoch, __u64 now)
{
	struct node *self = this_node();
	struct backend *backend;
	struct siphash_key *key;
	__u32 slot = turn->slot;

	backend = bpf_map_lookup_elem(&backends, &slot);
	if (!backend || !backend->name[0] || backend->silent || !self || !(key = tag_key(self->signing_key)))
		return false;
	*flow = (struct flow){
		.meta = {
			.version = META_VERSION,
			.kind = META_FORWARD,
			.key_id = self->signing_key,
			.epoch = bpf_htonl(epoch),
			.start = bpf_htonl(proof->client_isn + 1),
			.mss = bpf_htons(proof->mss),
			.window_scales = proof->window_scales,
			.tcp_options = proof->tcp_options | care,
			.server_port = turn->server_port,
		},
		.client_isn = proof->client_isn,
		.server_isn = proof->server_isn,
		.backend = slot,
		.state = FLOW_ESTABLISHED,
		.last_seq = proof->client_isn + 1 + segment->payload,
		.last_ack = proof->server_isn + 1,
		.window = segment->window,
		.pool = pool,
		.created_ns = now,
		.last_seen_ns = now,
		.packets = 1,
		.bytes = segment->payload,
		.marks = care & CARE_FOLLOW ? 0 : MARK_TUNNEL,
		.asked_ns = now,
		.next = proof->client_isn + 1 + segment->payload,
		.began = proof->client_isn + 1,
		.asked_ack = proof->server_isn + 1,
		.requests = 1,
		.cookie = proof->server_isn,
	};
	set_tag(&flow->meta, meta_tag(key, &flow->meta, mapped_ipv4(backend->addr), segment->client, segment->vip,
				      segment->key.client_port, segment->key.vip_port));
	return true;
}

/* The first version of a record that `maker` makes, and that its heir alone is told of. */
static __always_inline void begin_in_trust(struct flow *flow, __be32 maker)
{
	flow->version = 1;
	flow->maker = maker;
	flow->told = flow->state;
	flow->refreshed_ns = flow->last_seen_ns;
	flow->marks |= MARK_ENTRUSTED;
}

static __always_inline __be32 own_address(void)
{
	struct node *self = this_node();

	return self ? self->address : 0;
}

/* The decision that stands for the whole head that `segment` holds; NULL: none. */
static __noinline struct decision *decision_for(context_t *ctx, const struct segment *segment,
						struct workbench *bench, __u32 service)
{
	struct decision_key key = { .service = service };
	struct decision *decision;
	struct standing *rules;
	__u32 zero = 0, length;

	if (!segment || !bench)
		return NULL;
	rules = bpf_map_lookup_elem(&standing, &zero);
	length = segment->payload;
	barrier_var(length);
	if (!rules || rules->valid_until_ns < bpf_ktime_get_coarse_ns() || length < 16 || length > HEAD_MAX)
		return NULL;
	if (context_load(ctx, sizeof(struct ethhdr) + sizeof(struct iphdr) + segment->header_length, bench->head,
			 length))
		return NULL;
	key.likeness = likeness(bench->head, length, rules, &bench->closes);
	decision = key.likeness ? bpf_map_lookup_elem(&decisions, &key) : NULL;
	return decision && decision->generation == rules->generation ? decision : NULL;
}

/* What the owner is to do about the answer to the head on the bench. */
static __always_inline __u8 care_for(const struct decision *decision, const struct workbench *bench)
{
	__u8 care = decision->care;

	if (care & CARE_FOLLOW && is_head_request(word_at(bench->head, 0)))
		care |= CARE_HEAD;
	return bench->closes ? care & ~(CARE_OUTLIVE | CARE_PARK) : care;
}

/* A request more is placed by the decision, at the backend of that load. */
static __always_inline void charge(struct decision *decision, struct backend_load *load)
{
	if (load) {
		__sync_fetch_and_add(&load->cost_us, decision->charge_us);
		if (decision->until_ns)
			__sync_fetch_and_add(&load->stood, 1);
	}
	__sync_fetch_and_add(&decision->placed, 1);
}

/*
 * The decision that stands for this first request, made into a record in
 * `bench->flow`. False: the daemon has to decide.
 */
static __noinline bool place(context_t *ctx, const struct segment *segment, const struct proof *proof,
			     struct workbench *bench, __u32 service)
{
	struct backend_load *load;
	struct standing *rules;
	struct decision *decision;
	__u32 zero = 0, slot;
	struct turn turn;

	if (!segment || !proof || !bench)
		return false;
	if (segment->seq != proof->client_isn + 1 || segment->flags & TCP_FIN)
		return false;
	decision = decision_for(ctx, segment, bench, service);
	rules = bpf_map_lookup_elem(&standing, &zero);
	if (!decision || !rules || decision->stays)
		return false;
	if (!whose_turn(decision, &turn, NULL) || turn.slot >= BACKENDS_MAX ||
	    !fill_flow(&bench->flow, segment, proof, &turn, decision->pool, care_for(decision, bench),
		       new_epoch(rules, proof), bpf_ktime_get_coarse_ns()))
		return false;
	bench->flow.charge_us = decision->charge_us;
	bench->flow.marks |= MARK_SPENT;
	/* Its heir is to have it before the backend has the packet. */
	if (is_among_others()) {
		begin_in_trust(&bench->flow, own_address());
		bench->flow.marks |= MARK_STAYED;
		bench->flow.lot = bench->lot + 1;
	}
	/* Two copies of a request at once: one makes the record, both are the daemon's to sort. */
	if (bpf_map_update_elem(&flows, &segment->key, &bench->flow, BPF_NOEXIST))
		return false;
	spend_proof(&segment->key, &bench->flow, bench->flow.last_seen_ns);
	slot = turn.slot;
	load = bpf_map_lookup_elem(&loads, &slot);
	if (load) {
		__sync_fetch_and_add(&load->active, 1);
		__sync_fetch_and_add(&load->total, 1);
	}
	charge(decision, load);
	count_event(EVENT_DECIDED);
	return true;
}
