/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * boundary: where a request ends and the next one starts, in a connection that has an
 * owner (docs/protocol/handoff.md). What lies before the flow's boundary `next` is the
 * owner's. A packet that starts there and holds one whole head, whose like the daemon
 * has placed before, is placed here:
 *
 *   with its owner         the boundary advances, nothing else
 *   with another backend   the record moves; the packet goes by way of the owner, as
 *                          HANDOFF, which knows whether it may
 *
 * Among other dispatchers only those that stay are placed here. The daemon tells the others of
 * them a little later, and who keeps the flow next asks the owner how far it has come
 * (docs/protocol/replication.md 4.6).
 *
 * All else that reaches beyond the boundary is the daemon's.
 */
#pragma once

/* A client's window reaches no further: 65535 << 9, twice. */
#define BOUNDARY_REACH (1 << 26)
/* What the daemon may hold lies this near: limits.head_bytes and a first window. */
#define BOUNDARY_NEAR (1 << 17)

/* What becomes of a packet that reaches beyond the boundary. */
enum boundary {
	BOUNDARY_FORWARD = 0, /* the record says where it goes */
	BOUNDARY_ASK = 1, /* the daemon */
	BOUNDARY_REPEATED = 2, /* another copy is changing the record just now */
};

/* A FIN does if what it follows does, which the daemon has then: its owner would take it for the end of less. */
static __always_inline bool reaches_beyond(const struct flow *flow, const struct segment *segment)
{
	return (segment->payload || segment->flags & TCP_FIN) && !(flow->marks & MARK_TUNNEL) &&
	       segment->seq + segment->payload - flow->next - 1 < BOUNDARY_REACH;
}

/* Not for a lease: until its daemon is back, a connection stays where it is. */
static __always_inline bool has_daemon(void)
{
	__u32 zero = 0;
	struct standing *rules = bpf_map_lookup_elem(&standing, &zero);

	return rules && (!rules->valid_until_ns || rules->valid_until_ns > bpf_ktime_get_coarse_ns());
}

/* To the daemon, and nothing goes the short way until that is done. */
static __noinline int ask_daemon(context_t *ctx, const struct segment *segment, struct flow *flow)
{
	struct proof proof;

	if (!segment || !flow)
		return VERDICT_DROP;
	if (segment->seq + segment->payload - flow->next - 1 < BOUNDARY_NEAR)
		__sync_fetch_and_or(&flow->marks, MARK_HELD);
	proof = proof_of(flow);
	proof.client_isn = flow->next - 1;
	proof.server_isn = flow->cookie;
	return send_to_daemon(ctx, segment, &proof, META_NEXT);
}

/* What is said about the segment's flow to that backend. */
static __always_inline void seal_to(struct meta *meta, const struct siphash_key *key, const struct backend *to,
				    const struct segment *segment)
{
	set_tag(meta, meta_tag(key, meta, mapped_ipv4(to->addr), segment->client, segment->vip,
			       segment->key.client_port, segment->key.vip_port));
}

/*
 * The owner changes: the record is the new one's from here on, and what is needed to
 * take it back is kept. False: it cannot be sealed.
 */
static __noinline bool move_flow(struct flow *flow, const struct segment *segment, const struct turn *turn,
				 struct workbench *bench)
{
	struct node *self = this_node();
	struct backend_load *load;
	struct backend *backend;
	struct siphash_key *key;
	struct meta *meta;
	__u32 slot;

	if (!flow || !segment || !turn || !bench)
		return false;
	slot = turn->slot;
	backend = bpf_map_lookup_elem(&backends, &slot);
	if (!backend || !backend->name[0] || backend->silent || !self || !(key = tag_key(self->signing_key)))
		return false;
	meta = &bench->flow.meta;
	*meta = flow->meta;
	meta->key_id = self->signing_key;
	meta->reason = 0;
	meta->epoch = bpf_htonl(bpf_ntohl(flow->meta.epoch) + 1);
	meta->start = bpf_htonl(segment->seq);
	meta->tcp_options = (flow->meta.tcp_options & TCP_OPTIONS_AGREED) | bench->care;
	meta->server_port = turn->server_port;
	meta->value = 0;
	seal_to(meta, key, backend, segment);

	/* At its own backend, and that is another one from here on. */
	finish_request(flow);
	flow->before = flow->meta;
	flow->previous = flow->backend;
	flow->server_isn_before = flow->server_isn;
	flow->requests_before = flow->requests;
	flow->meta = *meta;
	flow->backend = slot;
	flow->client_isn = segment->seq - 1;
	flow->server_isn = segment->ack - 1;
	flow->requests = 1;
	if (flow->marks & MARK_SHORT)
		__sync_fetch_and_or(&flow->marks, MARK_SHORT_BEFORE);
	else
		__sync_fetch_and_and(&flow->marks, ~MARK_SHORT_BEFORE);
	__sync_fetch_and_or(&flow->marks, MARK_MOVING | MARK_SHORT);
	/* Its heir does not know where it is any more. */
	__sync_fetch_and_and(&flow->marks, ~MARK_ENTRUSTED);

	load = bpf_map_lookup_elem(&loads, &slot);
	if (load) {
		__sync_fetch_and_add(&load->active, 1);
		__sync_fetch_and_add(&load->total, 1);
	}
	slot = flow->previous;
	load = bpf_map_lookup_elem(&loads, &slot);
	if (load)
		__sync_fetch_and_add(&load->active, -1);
	count_event(EVENT_MOVED);
	return true;
}

/* So many moves a second that a later connection's epoch might be below this one's. */
static __always_inline bool runs_ahead(const struct flow *flow)
{
	__u32 clock = cluster_time_ns() >> EPOCH_SHIFT;

	return (__s32)(bpf_ntohl(flow->meta.epoch) - clock) > EPOCH_LEAD_MAX;
}

/* The flow's latest request is now the one that `decision` has placed with its owner. */
static __always_inline void begin_request(struct flow *flow, const struct segment *segment, struct decision *decision)
{
	__u32 slot = flow->backend;

	finish_request(flow);
	flow->began = segment->seq;
	/* Before the charge: a copy of the packet must not find that one answered. */
	flow->asked_ack = segment->ack;
	flow->asked_ns = bpf_ktime_get_coarse_ns();
	flow->pool = decision->pool;
	flow->object = 0;
	flow->kind = 0;
	flow->class = 0;
	flow->shared = 0;
	flow->charge_us = decision->charge_us;
	charge(decision, bpf_map_lookup_elem(&loads, &slot));
}

/* The daemon has a record for less than a microsecond (lib/change.bpf.h). */
#define TAKE_TRIES 256

static __noinline bool take_record(struct flow *flow)
{
	if (!flow)
		return false;
	for (int tries = 0; tries < TAKE_TRIES; tries++)
		if (__sync_bool_compare_and_swap(&flow->busy, 0, 1))
			return true;
	return false;
}

static __always_inline void leave_record(struct flow *flow)
{
	__sync_bool_compare_and_swap(&flow->busy, 1, 0);
}

/* What the client asks that has had all up to `ack` may be the daemon's to keep (takeover.md 2.2b). */
static __always_inline bool may_be_ahead(const struct flow *flow, __u32 ack)
{
	return flow->marks & MARK_PROTECTED && (!(flow->marks & MARK_ENDS) || (__s32)(ack - flow->answer_end) < 0);
}

/* Can a request be seen to start at its boundary, and nobody else be at work there? */
static __always_inline bool may_begin(const struct flow *flow, __u32 ack)
{
	return flow->expect == EXPECT_HEAD && flow->state == FLOW_ESTABLISHED &&
	       !(flow->marks & (MARK_HELD | MARK_PIPELINES | MARK_UNSURE | MARK_REFUSED)) && !may_be_ahead(flow, ack);
}

/*
 * May requests of this flow be given without a word to the others? They have to know the flow,
 * and a daemon has to be there to tell them soon. Not static, as the next: the verifier walks
 * them once.
 */
__noinline int may_go_untold(const struct flow *flow)
{
	if (!flow)
		return 0;
	/* Of a server without an agent who keeps the flow next can ask nobody, and leaves the connection there. */
	return flow->version && !(flow->splice.port && flow->splice.changes & SPLICE_SPLIT) && is_fit();
}

/* The daemon is to tell the others of this flow, which is marked MARK_STAYED. */
__noinline int tell_later(const struct segment *segment)
{
	/* Full: the sweep finds the mark. */
	if (segment)
		bpf_ringbuf_output(&stays, (void *)&segment->key, sizeof(segment->key), BPF_RB_NO_WAKEUP);
	return 0;
}

/* Of requests that have been given without a word: once for all until then. */
__noinline int note_untold(struct flow *flow, const struct segment *segment)
{
	if (!flow || !segment || !is_among_others() || flow->marks & MARK_STAYED)
		return 0;
	__sync_fetch_and_or(&flow->marks, MARK_STAYED);
	return tell_later(segment);
}

/* The request that starts in this packet. */
static __noinline int next_request(context_t *ctx, const struct segment *segment, struct flow *flow, __u32 service)
{
	struct workbench *bench = this_workbench();
	struct decision *decision;
	struct turn turn;
	bool stays, begins;

	if (!segment || !flow || !bench)
		return BOUNDARY_ASK;
	if (is_among_others() && !may_go_untold(flow))
		return BOUNDARY_ASK;
	if (segment->seq != flow->next || !may_begin(flow, segment->ack) || segment->flags & (TCP_FIN | TCP_RST))
		return BOUNDARY_ASK;
	/* It would give nothing up, and answer nothing. */
	if (is_silent(flow->backend))
		return BOUNDARY_ASK;
	/* It cannot have been answered: the client has not heard a word since it last asked. */
	if ((__s32)(segment->ack - flow->asked_ack) <= 0) {
		__sync_fetch_and_or(&flow->marks, MARK_PIPELINES);
		return BOUNDARY_ASK;
	}
	decision = decision_for(ctx, segment, bench, service);
	if (!decision || !(decision->care & CARE_FOLLOW))
		return BOUNDARY_ASK;
	/* Its server is to be asked by the daemon whether it has closed. */
	if (bench->closes && flow->splice.port)
		return BOUNDARY_ASK;
	bench->care = care_for(decision, bench);
	if (!whose_turn(decision, &turn, flow))
		return BOUNDARY_ASK;
	/* An owner knows of a HEAD, and of a last request, only where it is a setup's first. */
	stays = is_owner(flow, &turn) && !(bench->care & CARE_HEAD) &&
		!(flow->meta.tcp_options & ~bench->care & CARE_OUTLIVE);
	/* Spliced connections are opened, and ended, by the daemon. */
	if (!stays && (decision->stays || flow->splice.port || turn.slot >= BACKENDS_MAX || runs_ahead(flow)))
		return BOUNDARY_ASK;
	if (!take_record(flow))
		return BOUNDARY_REPEATED;
	/* Of two copies, one; and nothing that the daemon has changed since it was looked at. */
	begins = flow->next == segment->seq && may_begin(flow, segment->ack);
	if (begins && stays)
		__sync_fetch_and_add(&flow->requests, 1);
	else if (begins)
		begins = move_flow(flow, segment, &turn, bench);
	if (begins) {
		if (flow->marks & MARK_PROTECTED)
			__sync_fetch_and_and(&flow->marks, ~(MARK_PROTECTED | MARK_ENDS));
		begin_request(flow, segment, decision);
		/* Last, and behind a barrier: who sees it sees all of the rest. */
		__sync_bool_compare_and_swap(&flow->next, segment->seq, segment->seq + segment->payload);
		note_untold(flow, segment);
	}
	leave_record(flow);
	if (begins && stays)
		count_event(EVENT_STAYED);
	return begins || flow->next != segment->seq ? BOUNDARY_FORWARD : BOUNDARY_ASK;
}

/* Most records are as they are when they are looked at. */
#define WAY_TRIES 4

static __always_inline void copy_way(const struct flow *flow, struct way *way)
{
	const volatile struct flow *now = flow;

	way->meta = flow->meta;
	way->backend = now->backend;
	way->previous = now->previous;
	way->requests_before = now->requests_before;
	way->server_isn = now->server_isn;
	way->began = now->began;
	way->marks = now->marks;
}

/* Where its packets go. False: that is being changed all the while, and what has been read is perhaps of two moments. */
static __noinline bool read_way(struct flow *flow, struct way *way)
{
	const volatile struct flow *now = flow;
	__u32 epoch;

	if (!flow || !way)
		return false;
	for (int tries = 0; tries < WAY_TRIES; tries++) {
		bool was_busy = now->busy;

		epoch = now->meta.epoch;
		barrier();
		copy_way(flow, way);
		barrier();
		/* Whoever changes the way changes the epoch. */
		if (!was_busy && !now->busy && now->meta.epoch == epoch)
			return true;
	}
	/* A change takes longer than that. */
	if (!take_record(flow))
		return false;
	copy_way(flow, way);
	leave_record(flow);
	return true;
}

/*
 * The client has heard the new owner: it has the flow, and the one before has given it up. Or so it seems: of the
 * one before it may have heard more as well, if that has refused.
 */
static __always_inline bool has_arrived(const struct flow *flow, const struct way *way)
{
	return !(way->marks & MARK_REFUSED) && (__s32)(flow->last_ack - way->server_isn - 1) > 0;
}

/* Is it the request once more by which the flow has moved the short way? Who has heard its owner does not repeat that. */
static __always_inline bool repeats_move(const struct segment *segment, const struct way *way)
{
	return way->marks & MARK_SHORT && segment->payload && segment->seq == bpf_ntohl(way->meta.start);
}

/*
 * The owner before keeps the flow (4.4), of which the daemon hears, if there is one. Its answer goes on, and what the
 * client says to that is not for the other one. Who has never had the flow keeps nothing (4.4a).
 */
static __noinline int note_refusal(const struct encapsulated *h, __be16 client_port, __be16 vip_port)
{
	struct flow_key key;
	struct flow *flow;

	if (!h || h->outer.meta.reason == HELD_STRANGER)
		return 0;
	key = flow_key_v4(h->ip.saddr, h->ip.daddr, client_port, vip_port);
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow || !(flow->marks & MARK_SHORT) || !take_record(flow))
		return 0;
	if (flow->marks & MARK_SHORT && flow->meta.epoch == h->outer.meta.epoch &&
	    flow->meta.start == h->outer.meta.start)
		__sync_fetch_and_or(&flow->marks, MARK_MOVING | MARK_REFUSED);
	leave_record(flow);
	return 0;
}

/* The flow's option to its owner has these bits of care from here on, if it can be sealed. */
static __always_inline void reseal(struct flow *flow, const struct segment *segment, __u8 care)
{
	struct node *self = this_node();
	struct backend *backend;
	struct siphash_key *key;
	struct meta meta = flow->meta;
	__u32 slot = flow->backend;

	backend = bpf_map_lookup_elem(&backends, &slot);
	if (!backend || !self || !(key = tag_key(self->signing_key)))
		return;
	meta.key_id = self->signing_key;
	meta.tcp_options = care;
	seal_to(&meta, key, backend, segment);
	flow->meta = meta;
}

/*
 * Without a daemon a flow stays where it is: where its next request starts is known to nobody from here on. The one
 * that starts here is the last of which its owner hears that it does, and may be a new connection's there, for its
 * server may have closed, unheard (handoff.md 7.3). From then on the client hears what its server does.
 */
static __noinline int stay(struct flow *flow, const struct segment *segment)
{
	if (!flow || !segment || !take_record(flow))
		return 0;
	if (segment->payload && segment->seq == flow->next && flow->expect == EXPECT_HEAD)
		flow->began = segment->seq;
	if (!flow->splice.port && flow->meta.tcp_options & CARE_OUTLIVE)
		reseal(flow, segment, flow->meta.tcp_options & ~CARE_OUTLIVE);
	__sync_fetch_and_or(&flow->marks, MARK_TUNNEL);
	leave_record(flow);
	return 0;
}

/* There is no daemon to ask for it in another way: the flow is its owner's again. */
static __noinline int take_back(struct flow *flow)
{
	struct backend_load *load;
	__u32 slot;

	if (!flow || !take_record(flow))
		return 0;
	if (flow->marks & MARK_REFUSED && flow->before.version) {
		slot = flow->backend;
		load = bpf_map_lookup_elem(&loads, &slot);
		if (load) {
			__sync_fetch_and_add(&load->active, -1);
			__sync_fetch_and_add(&load->cost_us, -(__s64)flow->charge_us);
		}
		slot = flow->previous;
		load = bpf_map_lookup_elem(&loads, &slot);
		if (load)
			__sync_fetch_and_add(&load->active, 1);
		flow->next = bpf_ntohl(flow->meta.start);
		flow->meta = flow->before;
		flow->backend = flow->previous;
		flow->client_isn = bpf_ntohl(flow->before.start) - 1;
		flow->server_isn = flow->server_isn_before;
		flow->requests = flow->requests_before;
		flow->before.version = 0;
		flow->charge_us = 0;
		flow->report = 0;
		__sync_fetch_and_and(&flow->marks, ~(MARK_MOVING | MARK_SHORT | MARK_SHORT_BEFORE | MARK_REFUSED));
	}
	leave_record(flow);
	return 0;
}

/* By way of the owner before, who knows whether it has given the flow up (4.2, 4.5). */
static __noinline int send_handoff(context_t *ctx, const struct segment *segment, const struct way *way)
{
	struct node *self = this_node();
	struct backend *next, *previous;
	struct siphash_key *key;
	struct meta meta;
	__u32 slot;

	if (!segment || !way)
		return VERDICT_DROP;
	slot = way->backend;
	next = bpf_map_lookup_elem(&backends, &slot);
	slot = way->previous;
	previous = bpf_map_lookup_elem(&backends, &slot);
	if (!next || !previous || !self || !(key = tag_key(self->signing_key))) {
		count_drop(DROP_NO_BACKEND);
		return VERDICT_DROP;
	}
	meta = way->meta;
	meta.kind = META_HANDOFF;
	meta.key_id = self->signing_key;
	meta.requests = bpf_htons(way->requests_before);
	meta.value = mapped_ipv4(next->addr);
	seal_to(&meta, key, previous, segment);
	return send_to_backend(ctx, slot, &meta, entropy_port(segment), segment->ip_length);
}
