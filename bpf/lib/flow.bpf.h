/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* flow: records, how packets age them, and how a new connection under an old name is told. */
#pragma once

/* So long a segment may be on its way (RFC 9293 3.4.3), or a SYN be followed by its connection. */
#define MSL_NS (120ull * 1000000000ull)

/* False: the lengths contradict each other. */
static __always_inline bool read_segment(context_t *ctx, const struct iphdr *ip,
					 const struct tcp_header *tcp, struct segment *segment)
{
	__u32 ip_length = bpf_ntohs(ip->tot_len);
	__u32 header_length = tcp->offset >> 4 << 2;

	if (header_length < sizeof(struct tcp_header) || ip_length < sizeof(struct iphdr) + header_length ||
	    ip_length + sizeof(struct ethhdr) > context_length(ctx))
		return false;
	segment->client = ip->saddr;
	segment->vip = ip->daddr;
	segment->key = flow_key_v4(ip->saddr, ip->daddr, tcp->source, tcp->dest);
	segment->client_port = tcp->source;
	segment->window = bpf_ntohs(tcp->window);
	segment->seq = bpf_ntohl(tcp->seq);
	segment->ack = bpf_ntohl(tcp->ack);
	segment->flags = tcp->flags;
	segment->ip_length = ip_length;
	segment->header_length = header_length;
	segment->payload = ip_length - sizeof(struct iphdr) - header_length;
	return true;
}

static __always_inline struct proof proof_of(const struct flow *flow)
{
	return (struct proof){
		.client_isn = flow->client_isn,
		.server_isn = flow->server_isn,
		.mss = bpf_ntohs(flow->meta.mss),
		.window_scales = flow->meta.window_scales,
		.tcp_options = flow->meta.tcp_options,
	};
}

/*
 * Of two connections of one 4-tuple, is this the later one? It is if its SYN
 * is the latest that has come by, or if its ISN lies behind the other's (RFC
 * 6528 3), which come round in less than five minutes. A late copy of an earlier
 * connection's request is neither, and must not run again; but none is as late as
 * a record that nobody has used for so long.
 */
static __always_inline bool is_later(const struct flow *flow, __u32 client_isn)
{
	return client_isn == flow->syn_isn || (__s32)(client_isn - flow->client_isn) > 0 ||
	       bpf_ktime_get_coarse_ns() - flow->last_seen_ns > MSL_NS;
}

/* How far packets of a flow may lie from those before them, to be believed. */
#define PLAUSIBLE_SEQ (1 << 20)
#define PLAUSIBLE_ACK (1 << 24)
/* Where most of them may go by way of other dispatchers. */
#define PLAUSIBLE_UNSEEN (1 << 30)

static __always_inline bool is_near(__u32 number, __u32 known, __u32 distance)
{
	return number - known + distance < 2 * distance;
}

static __always_inline bool has_seen_syn(const struct flow *flow)
{
	return flow->syn_seen_ns && bpf_ktime_get_coarse_ns() - flow->syn_seen_ns <= MSL_NS;
}

/*
 * A SYN may have gone by at another dispatcher, of those that have come since the record was made, too. The end of
 * the connection before may have been lost with one, and its port used again at once: then our own number tells.
 */
static __always_inline bool is_doubtful(const struct flow *flow, const struct segment *segment)
{
	return (flow->version || is_among_others()) &&
	       (flow->state != FLOW_ESTABLISHED ||
		!is_near(segment->seq + segment->payload, flow->last_seq, PLAUSIBLE_SEQ) ||
		!is_near(segment->ack, flow->last_ack, PLAUSIBLE_ACK));
}

/*
 * A SYN has come by on this record's 4-tuple, which proves nothing: anyone can
 * send one. A packet that shows a valid cookie under other, later ISNs proves
 * that the client uses the port for a new connection.
 */
static __noinline bool is_another_connection(context_t *ctx, const struct flow *flow,
					     const struct segment *segment)
{
	/* The SYN of a client that has begun anew while the daemon decided met no record. */
	bool is_young = flow->packets == 1 && !(flow->marks & MARK_SPENT);
	/* Nothing has been said to it, so all that it says acknowledges the same. */
	bool is_unread = flow->state == FLOW_READING && segment->ack - 1 != flow->cookie;
	bool is_suspect = has_seen_syn(flow) || is_doubtful(flow, segment) || is_unread ||
			  (is_young && !(flow->marks & MARK_TUNNEL) && (__s32)(segment->seq - flow->next) > 0);
	struct tcp_options options;
	struct cookie_terms terms = {};
	struct proof *proof;

	if (!is_suspect && !is_young)
		return false;
	proof = bpf_map_lookup_elem(&proofs, &segment->key);
	if (proof && proof->mss && proof->server_isn != flow->cookie && segment->ack == proof->server_isn + 1 &&
	    segment->seq - proof->client_isn < 1 << 20)
		return is_later(flow, proof->client_isn);
	if (!is_suspect || segment->ack - 1 == flow->cookie || read_options(ctx, segment, &options) == CHECKSUM_WRONG)
		return false;
	if (is_later(flow, segment->seq - 1) &&
	    check_cookie(segment, segment->seq - 1, options.timestamps, options.tsecr, &terms))
		return true;
	/* What has overtaken its first byte: to the owner of the one before, and its RST would end this one. */
	return has_seen_syn(flow) && segment->seq - 1 - flow->syn_isn < PLAUSIBLE_SEQ &&
	       check_cookie(segment, flow->syn_isn, options.timestamps, options.tsecr, &terms);
}

/*
 * Has the daemon changed the record, and told nobody yet? If it dies now, nobody else ever knows:
 * nothing may follow from that. Not static: the verifier walks it once.
 */
__noinline int is_untold(const struct flow *flow)
{
	__u32 zero = 0;
	__u32 *until = bpf_map_lookup_elem(&told, &zero);

	if (!flow || !until)
		return 0;
	return flow->turn && (__s32)(flow->turn - *until) > 0;
}

/* Has the client had a byte of the answer to its latest request? */
static __always_inline bool is_answered(const struct flow *flow)
{
	return (__s32)(flow->last_ack - flow->asked_ack) > 0;
}

/* Not static, as the next: the verifier walks them once. */
__noinline int is_silent(__u32 slot)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &slot);

	return backend && backend->silent;
}

/* Does its backend not answer, or the one by way of which its packets go there? */
__noinline int is_way_silent(const struct flow *flow)
{
	if (!flow)
		return 0;
	return is_silent(flow->backend) || (flow->marks & MARK_MOVING && is_silent(flow->previous));
}

/*
 * The flow's latest request is finished, or given up: its backend has that much
 * less to do, and the daemon learns what it took.
 */
static __noinline int finish_request(struct flow *flow)
{
	struct backend_load *load;
	struct workbench *bench = this_workbench();
	__u32 slot, charge;
	bool answered;

	if (!flow)
		return 0;
	answered = is_answered(flow);
	slot = flow->backend;
	charge = flow->charge_us;
	flow->charge_us = 0;
	load = bpf_map_lookup_elem(&loads, &slot);
	if (load && charge)
		__sync_fetch_and_add(&load->cost_us, -(__s64)charge);
	if (!flow->report || !bench)
		return 0;
	flow->report = 0;
	bench->finished = (struct finished){
		.object = flow->object,
		.bytes = answered ? flow->last_ack - flow->asked_ack : 0,
		.elapsed_ns = flow->acked_ns > flow->asked_ns ? flow->acked_ns - flow->asked_ns : 0,
		.ended_ns = answered ? flow->acked_ns : 0,
		.charge_us = charge,
		.shared = flow->shared,
		.pool = flow->pool,
		.slot = slot,
		.kind = flow->kind,
		.class = flow->class,
		.lost = !answered,
		.stood = load ? load->stood : 0,
	};
	/* Full: the daemon is gone, or learns from the others. */
	bpf_ringbuf_output(&reports, &bench->finished, sizeof(bench->finished), BPF_RB_NO_WAKEUP);
	return 0;
}

/* The client has closed, or aborted: its backend has one connection less. */
static __always_inline void end_flow(struct flow *flow, __u32 state)
{
	struct backend_load *load;
	__u32 slot = flow->backend;

	if (__sync_val_compare_and_swap(&flow->state, FLOW_ESTABLISHED, state) != FLOW_ESTABLISHED) {
		flow->state = state;
		/* Who had only said FIN does not wait any more. */
		if (state == FLOW_RESET)
			finish_request(flow);
		return;
	}
	load = bpf_map_lookup_elem(&loads, &slot);
	if (load)
		__sync_fetch_and_add(&load->active, -1);
	/* Whoever says FIN behind a request waits for its answer. */
	if (state == FLOW_RESET || is_answered(flow))
		finish_request(flow);
}

/* A repetition after so long is the second or third one: the first may have been lost by chance. */
#define STALL_NS 700000000ull

/* The client says once more what it has said last, having heard nothing since, of a request that is not answered. */
static __always_inline void note_stall(const struct flow *flow, const struct segment *segment, __u32 end, __u64 now)
{
	__u32 slot = flow->backend;
	__u64 *stalled;

	if (!segment->payload || end != flow->last_seq || segment->ack != flow->last_ack || is_answered(flow) ||
	    (__s64)(now - flow->last_seen_ns) < (__s64)STALL_NS)
		return;
	stalled = bpf_map_lookup_elem(&stalls, &slot);
	if (stalled)
		__sync_fetch_and_add(stalled, 1);
}

/*
 * What anyone could have sent is forwarded, and left to the server's TCP to
 * judge; it only may not end the record. A reset must lie exactly at the end of
 * what the client has sent (RFC 5961 3.2). Not static: the verifier walks it once, not with
 * all that follows.
 */
__noinline int age_flow(struct flow *flow, const struct segment *segment, __u64 now)
{
	__u32 end, far_seq, far_ack;

	if (!flow || !segment)
		return 0;
	end = segment->seq + segment->payload;
	far_seq = flow->version ? PLAUSIBLE_UNSEEN : PLAUSIBLE_SEQ;
	far_ack = flow->version ? PLAUSIBLE_UNSEEN : PLAUSIBLE_ACK;
	note_stall(flow, segment, end, now);
	flow->last_seen_ns = now;
	flow->packets++;
	flow->bytes += segment->payload;
	if (segment->flags & TCP_RST) {
		if (segment->seq == flow->last_seq)
			end_flow(flow, FLOW_RESET);
		return 0;
	}
	if (!is_near(end, flow->last_seq, far_seq) || !is_near(segment->ack, flow->last_ack, far_ack))
		return 0;
	if ((__s32)(end - flow->last_seq) > 0)
		flow->last_seq = end;
	if ((__s32)(segment->ack - flow->last_ack) >= 0)
		flow->window = segment->window;
	if ((__s32)(segment->ack - flow->last_ack) > 0) {
		flow->last_ack = segment->ack;
		if (flow->report)
			flow->acked_ns = bpf_ktime_get_ns();
	}
	/* Who asks again has had the answer before. */
	if ((flow->report || flow->charge_us) && segment->payload && is_answered(flow))
		finish_request(flow);
	if (segment->flags & TCP_FIN) {
		if (flow->last_seq == end)
			flow->last_seq = end + 1;
		end_flow(flow, FLOW_CLIENT_FIN);
	} else if (flow->state == FLOW_RESET) {
		flow->state = FLOW_CLIENT_FIN; /* that RST was not the client's */
	}
	return 0;
}
