/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * dispatch: the dispatcher's data path, one source for both hooks
 * (dispatch_tc.bpf.c, dispatch_xdp.bpf.c). A packet to a service is
 *
 *   SYN                        answered with a cookie            handshake
 *   of a flow with a record    forwarded to its backend          forward
 *   the first of a proved one  placed as one like it before      standing
 *                              or given to the daemon            forward
 *   a later request            the same; it may change hands     boundary
 *   encapsulated by a spray    unpacked, then as above           dispatch
 *   another's to decide about  passed to that dispatcher         keeper
 *   of a flow placed here that
 *   others do not know yet     to its heir first                 heir
 *   another sub-cluster's      passed to a member of it          keeper
 *   of or for a server that is
 *   spliced                    rewritten for the other side      splice
 *   an ICMP error about one    forwarded to its backend          icmp
 *   anything else              dropped under a named reason
 *
 * The daemon changes records, makes those of what was entrusted to it, looks which are to be told
 * of, and takes flows from servers without an agent, by way of programs of its own (change, heir,
 * sieve, parting).
 *
 * All other packets pass to the host, but for forged ones to the daemon's port.
 */
#include "kernel.h"
#include "lib/address.bpf.h"
#include "lib/counters.bpf.h"
#include "lib/packet.bpf.h"
#include "lib/checksum.bpf.h"
#include "lib/encapsulation.bpf.h"
#include "lib/dispatch_maps.bpf.h"
#include "lib/handshake.bpf.h"
#include "lib/forward.bpf.h"
#include "lib/heartbeat.bpf.h"
#include "lib/attended.bpf.h"
#include "lib/flow.bpf.h"
#include "lib/standing.bpf.h"
#include "lib/boundary.bpf.h"
#include "lib/keeper.bpf.h"
#include "lib/splice.bpf.h"
#include "lib/heir.bpf.h"
#include "lib/icmp.bpf.h"
#include "lib/change.bpf.h"
#include "lib/sieve.bpf.h"
#include "lib/parting.bpf.h"

static __always_inline int drop(enum drop_reason reason)
{
	count_drop(reason);
	return VERDICT_DROP;
}

/* Not static: the verifier walks it once, not for each way that leads here. */
__noinline int forward(context_t *ctx, struct flow *flow, const struct segment *segment)
{
	struct workbench *bench = this_workbench();
	struct way *way;
	bool whole, by_previous = false;
	int verdict;

	if (!flow || !segment)
		return VERDICT_DROP;
	if (flow->splice.port)
		return send_to_server(ctx, flow, segment);
	if (!bench)
		return VERDICT_DROP;
	way = &bench->way;
	whole = read_way(flow, way);
	if (way->marks & (MARK_MOVING | MARK_REFUSED)) {
		by_previous = !has_arrived(flow, way);
		if (!by_previous)
			__sync_fetch_and_and(&flow->marks, ~MARK_MOVING);
	}
	if (!by_previous && repeats_move(segment, way)) {
		/* A late copy; or what seemed to be the new owner was the one before, which has the flow still. */
		if (segment->ack == way->server_isn + 1)
			return drop(DROP_REPEATED);
		by_previous = true;
	}
	if (by_previous) {
		/* It would be sealed as it is. */
		if (!whole)
			return drop(DROP_REPEATED);
		verdict = send_handoff(ctx, segment, way);
	} else {
		if (segment->payload && segment->seq == way->began)
			way->meta.reason |= FORWARD_BEGINS;
		/* If it is not whole, its tag says so. */
		verdict = send_to_backend(ctx, way->backend, &way->meta, entropy_port(segment), segment->ip_length);
	}
	if (verdict != VERDICT_DROP)
		count_event(EVENT_FORWARDED);
	return verdict;
}

/* The first bytes of a connection: to a backend, if it is known which, else to the daemon. */
__noinline int start_flow(context_t *ctx, const struct segment *segment, const struct service *service,
				 const struct proof *proof)
{
	struct workbench *bench = this_workbench();
	bool among = is_among_others();
	__u32 heir = NO_DISPATCHER;

	if (!segment || !service || !proof)
		return VERDICT_DROP;
	if (among && bench)
		heir = heir_of(bench->lot);
	/* Without an heir the daemon is to tell those that may be there. */
	if (bench && (!among || heir != NO_DISPATCHER) && place(ctx, segment, proof, bench, service->id)) {
		if (!among)
			return forward(ctx, &bench->flow, segment);
		tell_later(segment);
		return entrust(ctx, segment, &bench->flow, heir);
	}
	return send_to_daemon(ctx, segment, proof, META_REQUEST);
}

/*
 * The client resets a connection of which there is no record yet: its request may be at the daemon, on its way to a backend, and
 * nobody would end it there if the client used its port again at once.
 */
static __noinline int reset_unknown(context_t *ctx, const struct segment *segment)
{
	struct proof *known, proof;

	if (!segment)
		return VERDICT_DROP;
	known = bpf_map_lookup_elem(&proofs, &segment->key);
	if (!(segment->flags & TCP_ACK) || !is_proof_of(known, segment))
		return drop(DROP_BAD_COOKIE);
	/* It has asked for nothing. */
	if (segment->seq == known->client_isn + 1)
		return drop(DROP_HANDSHAKE_ACK);
	proof = *known;
	return send_to_daemon(ctx, segment, &proof, META_REQUEST);
}

/*
 * No record, or an older connection's: is it somebody who has finished our
 * handshake? The first payload of a new connection ends the older one.
 */
static __always_inline int dispatch_unknown(context_t *ctx, const struct segment *segment,
					    const struct service *service, struct flow *older)
{
	struct proof proof;
	bool was_open;

	if (segment->flags & TCP_RST)
		return reset_unknown(ctx, segment);
	if (!(segment->flags & TCP_ACK))
		return drop(DROP_BAD_FLAGS);
	if (!prove(ctx, segment, service, &proof))
		return drop(DROP_BAD_COOKIE);
	if (segment->seq == proof.client_isn && segment->payload <= 1)
		return answer_keep_alive(ctx, segment, &proof);
	if (segment->payload || segment->flags & TCP_FIN) {
		proof.older_epoch = 0;
		if (older && older->state != FLOW_READING) {
			was_open = older->state == FLOW_ESTABLISHED;
			/* Its owner may have given it up just now, for a move that has become none: to the epoch behind that. */
			proof.older_epoch = bpf_ntohl(older->meta.epoch) + 1;
			end_flow(older, FLOW_RESET);
			forget_splice(older);
			/* Its reset may be at the daemon, which is to find whose it was (reset_unknown()). */
			if (was_open && has_daemon())
				return send_to_daemon(ctx, segment, &proof, META_REQUEST);
			bpf_map_delete_elem(&flows, &segment->key);
		}
		return start_flow(ctx, segment, service, &proof);
	}
	return drop(DROP_HANDSHAKE_ACK);
}

/* Is this the owner's latest request, whole, of a client that has had all answers before it and no more (handoff.md 9.8)? */
static __always_inline bool is_latest_unheard(const struct flow *flow, const struct segment *segment)
{
	return flow->idle_requests && flow->requests == flow->idle_requests + 1 &&
	       flow->idle_epoch == bpf_ntohl(flow->meta.epoch) && segment->ack == flow->idle_end &&
	       segment->seq == flow->idle_from && segment->seq + segment->payload == flow->next;
}

/*
 * The client sends its request once more, has not heard a word, and the backend
 * is silent, or the one by way of which it goes there: the daemon may know another way.
 */
static __always_inline bool is_unheard(const struct flow *flow, const struct segment *segment)
{
	bool is_first = segment->seq == bpf_ntohl(flow->meta.start) && segment->ack == flow->server_isn + 1;

	return segment->payload && (is_first || is_latest_unheard(flow, segment)) && is_way_silent(flow);
}

/* Its server has closed, and nothing is owed: as a connection that has proved itself. */
static __always_inline int dispatch_vacant(context_t *ctx, const struct segment *segment, struct flow *flow)
{
	struct proof proof = proof_of(flow);

	if (segment->flags & TCP_RST) {
		if (segment->seq == flow->last_seq)
			flow->state = FLOW_RESET;
		return drop(DROP_VACANT);
	}
	if (segment->seq == proof.client_isn && segment->payload <= 1)
		return answer_keep_alive(ctx, segment, &proof);
	if (segment->payload || segment->flags & TCP_FIN)
		return send_to_daemon(ctx, segment, &proof, META_REQUEST);
	return drop(DROP_VACANT);
}

/*
 * The client sends the first packet of its owner's part once more, and had not heard, when it did, all
 * that was said before the owner was to begin. One rebuilt from it would begin to send where its
 * predecessor has, or still does (docs/protocol/handoff.md 6.7).
 */
static __always_inline bool would_start_too_early(const struct flow *flow, const struct segment *segment)
{
	return segment->payload && segment->seq == bpf_ntohl(flow->meta.start) &&
	       (__s32)(segment->ack - (flow->server_isn + 1)) < 0;
}

/* What the daemon reads, or has read, as the first request of an owner. */
static __noinline int read_on(context_t *ctx, const struct segment *segment, struct flow *flow)
{
	struct proof proof;

	if (!segment || !flow)
		return VERDICT_DROP;
	proof = proof_of(flow);
	flow->last_seen_ns = bpf_ktime_get_coarse_ns();
	return send_to_daemon(ctx, segment, &proof, flow->state == FLOW_READING ? META_REQUEST : META_UNHEARD);
}

/*
 * The client has reset a connection of which the owner has not had all: the rest waits at the daemon. A FIN
 * right at the boundary is the owner's.
 */
static __always_inline bool resets_ahead(const struct flow *flow, const struct segment *segment)
{
	return segment->flags & TCP_RST && flow->state == FLOW_RESET && !segment->payload &&
	       segment->seq == flow->last_seq && !(flow->marks & MARK_TUNNEL) &&
	       segment->seq - flow->next - 2 < BOUNDARY_REACH;
}

/* To the owner it is exact where its part ends (RFC 5961 3.2; docs/protocol/handoff.md 5.1d). */
static __noinline bool reset_where_owner_is(context_t *ctx, const struct segment *segment, const struct flow *flow)
{
	const __u32 at = sizeof(struct ethhdr) + sizeof(struct iphdr) + offsetof(struct tcp_header, seq);
	__be32 before, after;
	__s64 difference;

	if (!segment || !flow)
		return false;
	before = bpf_htonl(segment->seq);
	after = bpf_htonl(flow->next);
	difference = bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), 0);
	return difference >= 0 && !context_store(ctx, at, &after, sizeof(after)) &&
	       !context_mend_tcp_checksum(ctx, 0, difference);
}

static __always_inline int dispatch_known(context_t *ctx, const struct segment *segment,
					  const struct service *service, struct flow *flow)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	if (flow->state == FLOW_READING || is_unheard(flow, segment))
		return read_on(ctx, segment, flow);
	if (flow->state == FLOW_VACANT) {
		flow->last_seen_ns = now;
		return dispatch_vacant(ctx, segment, flow);
	}
	/* Its owner has that, perhaps, and is not heard: the daemon tells the client. */
	if (would_start_too_early(flow, segment))
		return has_daemon() ? ask_daemon(ctx, segment, flow) : drop(DROP_REPEATED);
	if (flow->packets == 1 && !(flow->marks & MARK_SPENT))
		spend_proof(&segment->key, flow, now);
	/* Whoever it goes to: what the client has had is to be known where its server is asked whether it owes nothing. */
	age_flow(flow, segment, now);
	if (is_untold(flow))
		return ask_daemon(ctx, segment, flow);
	if ((flow->marks & MARK_TAKING || is_beyond_record(flow, segment)) && has_daemon())
		return ask_daemon(ctx, segment, flow);
	if (resets_ahead(flow, segment) && !reset_where_owner_is(ctx, segment, flow))
		return drop(DROP_REWRITE);
	if (flow->marks & MARK_REFUSED && !has_daemon() && is_alone(segment))
		take_back(flow);
	if (reaches_beyond(flow, segment)) {
		switch (next_request(ctx, segment, flow, service->id)) {
		case BOUNDARY_REPEATED:
			return drop(DROP_REPEATED);
		case BOUNDARY_ASK:
			/* Who keeps the flow next would know nothing of a request that had stayed. */
			if (has_daemon() || !is_alone(segment))
				return ask_daemon(ctx, segment, flow);
			stay(flow, segment);
		}
	}
	return forward(ctx, flow, segment);
}

/* What the daemon has held, for whoever has the flow by now. */
static __noinline int forward_held(context_t *ctx, const struct segment *segment)
{
	struct flow *flow;

	if (!segment)
		return VERDICT_DROP;
	flow = bpf_map_lookup_elem(&flows, &segment->key);
	if (!flow || (flow->state != FLOW_ESTABLISHED && flow->state != FLOW_CLIENT_FIN))
		return drop(DROP_STALE_EPOCH);
	return forward(ctx, flow, segment);
}

/* Another dispatcher keeps this flow, and its record explains the packet. */
static __noinline int forward_kept(context_t *ctx, const struct segment *segment, struct flow *flow)
{
	if (!segment || !flow)
		return VERDICT_DROP;
	if (would_start_too_early(flow, segment))
		return drop(DROP_REPEATED);
	age_flow(flow, segment, bpf_ktime_get_coarse_ns());
	return forward(ctx, flow, segment);
}

/* Its keeper has placed this flow, and entrusted it to us. */
__noinline int forward_in_trust(context_t *ctx, const struct segment *segment, const struct passage *how)
{
	enum drop_reason reason;
	struct flow *flow;

	if (!segment)
		return VERDICT_DROP;
	reason = take_in_trust(segment, how, this_workbench(), bpf_ktime_get_coarse_ns());
	if (reason)
		return drop(reason);
	flow = bpf_map_lookup_elem(&flows, &segment->key);
	if (!flow)
		return drop(DROP_STALE_EPOCH);
	count_event(EVENT_IN_TRUST);
	return forward(ctx, flow, segment);
}

static __always_inline int dispatch_tcp(context_t *ctx, const struct segment *segment,
					const struct service *service, const struct passage *how)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, &segment->key);
	struct workbench *bench;
	__u32 keeper, lot;

	if (segment->flags & TCP_SYN && segment->flags & (TCP_ACK | TCP_FIN | TCP_RST))
		return drop(DROP_BAD_FLAGS);
	if (how->in_trust)
		return forward_in_trust(ctx, segment, how);
	if (is_among_others() && (flow || !(segment->flags & TCP_SYN) || is_in_sub_cluster())) {
		lot = lot_of_segment(segment, flow);
		keeper = keeper_by_lot(lot);
		bench = this_workbench();
		if (bench)
			bench->lot = lot;
		/* Whether a SYN's 4-tuple is in use is known in its own sub-cluster alone. */
		if (keeper != NO_DISPATCHER && !is_left_to_us(how, keeper) &&
		    (flow || !(segment->flags & TCP_SYN) || is_elsewhere(keeper))) {
			if (explains(flow, segment) && (attended() || how->from))
				return forward_kept(ctx, segment, flow);
			if (segment->payload && is_unheard_of(flow, segment))
				return drop(DROP_UNHEARD_OF);
			return pass_to_keeper(ctx, segment, keeper, how);
		}
	}
	if (segment->flags & TCP_SYN) {
		/* What comes again may be of a connection before this one, and its request would follow. */
		if (flow && (!how->again || (__s32)(segment->seq - flow->client_isn) > 0)) {
			flow->syn_isn = segment->seq;
			flow->syn_seen_ns = bpf_ktime_get_coarse_ns();
		}
		return answer_syn(ctx, segment, service);
	}
	/* The client is asked where it is, and what is late would be taken for its answer (takeover.md 4.1). */
	if (flow && flow->marks & MARK_TAKING && how->again)
		return drop(DROP_CAME_AGAIN);
	if (flow && !is_another_connection(ctx, flow, segment))
		return dispatch_known(ctx, segment, service, flow);
	return dispatch_unknown(ctx, segment, service, flow);
}

/* Besides verdicts: a client's packet, which a spray had encapsulated, is in the packet's place. */
#define UNPACKED 0x100

static __always_inline int unpack(context_t *ctx, enum event event)
{
	if (context_shrink(ctx))
		return drop(DROP_REWRITE);
	count_event(event);
	return UNPACKED;
}

/* Other nodes' packets: heartbeats, what sprays send, and what is for our daemon; nothing forged gets there. */
static __noinline int receive(context_t *ctx, struct passage *how)
{
	const __u32 at = sizeof(struct ethhdr);
	struct workbench *bench = this_workbench();
	struct node *self = this_node();
	struct encapsulated *h;
	__be16 ports[2] = {};
	int verdict;

	if (!how || !bench || !self)
		return VERDICT_NEXT;
	h = &bench->arriving;
	if (context_load(ctx, at, &h->outer, sizeof(h->outer)) || h->outer.ip.daddr != self->address ||
	    (!is_ours(&h->outer) && !is_ours_at(&h->outer, PEERS_PORT)))
		return VERDICT_NEXT;
	if (context_load(ctx, at, h, sizeof(*h)) || !is_well_formed(h, context_length(ctx)))
		return drop(DROP_BAD_ENCAP);
	if (h->ip.protocol == IPPROTO_TCP && context_load(ctx, at + sizeof(*h), ports, sizeof(ports)))
		return drop(DROP_BAD_ENCAP);
	if (!is_proved(h, ports[0], ports[1]))
		return drop(DROP_BAD_TAG);
	switch (h->outer.meta.kind) {
	case META_SPRAYED:
		how->again = h->outer.meta.reason & CAME_AGAIN;
		return unpack(ctx, EVENT_UNPACKED);
	case META_PASSED:
		how->from = h->outer.ip.saddr;
		how->times = bpf_ntohl(h->outer.meta.value) + 1;
		how->by_joining = h->outer.meta.reason & PASSED_BY_JOINING;
		how->again = h->outer.meta.reason & CAME_AGAIN;
		return unpack(ctx, EVENT_ACCEPTED);
	case META_ENTRUSTED:
		verdict = note_and_send_on(ctx, h);
		if (verdict != NOT_NOTED)
			return verdict;
		how->from = h->outer.ip.saddr;
		how->in_trust = 1;
		bench->entrusted = h->outer.meta;
		return unpack(ctx, EVENT_ACCEPTED);
	case META_BEAT:
		return answer_beat(ctx, h);
	case META_HELD:
		note_refusal(h, ports[0], ports[1]);
		return VERDICT_NEXT;
	default:
		/* An agent may be on this host, too. */
		return VERDICT_NEXT;
	}
}

/* The IPv4 header, if there is one and nothing in front of it but Ethernet. */
static __always_inline struct iphdr *find_ip(context_t *ctx)
{
	struct ethhdr *ethernet;
	struct iphdr *ip;

	if (!context_pull(ctx, sizeof(*ethernet) + sizeof(*ip)))
		return NULL;
	ethernet = context_data(ctx);
	ip = (void *)(ethernet + 1);
	if ((void *)(ip + 1) > context_end(ctx) || ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4)
		return NULL;
	return ip;
}

SEC(HOOK_SECTION)
int dispatch(context_t *ctx)
{
	struct node *self = this_node();
	struct service *service;
	struct segment segment;
	struct passage how = { .again = context_came_again(ctx) };
	struct ethhdr *ethernet;
	struct tcp_header *tcp;
	struct iphdr *ip;
	int verdict;

	if (context_passes_by(ctx) || !context_pull(ctx, sizeof(*ethernet) + sizeof(*ip)) || !self ||
	    !context_is_for_us(ctx, self->mac) || !(ip = find_ip(ctx)))
		return VERDICT_NEXT;
	if (ip->protocol == IPPROTO_UDP) {
		verdict = receive(ctx, &how);
		if (verdict != UNPACKED)
			return verdict;
		if (!(ip = find_ip(ctx)))
			return drop(DROP_MALFORMED);
	}
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_ICMP)
		return VERDICT_NEXT;
	if (ip->ihl != 5 || ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK)) {
		if (!find_service(ip->daddr, 0))
			return VERDICT_NEXT;
		return drop(ip->ihl != 5 ? DROP_IP_OPTIONS : DROP_FRAGMENT);
	}
	if (ip->protocol == IPPROTO_ICMP) {
		verdict = how.from ? STAYS_HERE : pass_error(ctx);
		return verdict == STAYS_HERE ? dispatch_icmp(ctx) : verdict;
	}

	if (!context_pull(ctx, sizeof(*ethernet) + sizeof(*ip) + sizeof(*tcp)))
		return VERDICT_NEXT;
	ethernet = context_data(ctx);
	ip = (void *)(ethernet + 1);
	tcp = (void *)(ip + 1);
	if ((void *)(tcp + 1) > context_end(ctx))
		return VERDICT_NEXT;
	/* Port 0 is nobody's: under it stands that the address is a VIP. */
	service = tcp->dest ? find_service(ip->daddr, tcp->dest) : NULL;
	if (!service)
		return dispatch_answer(ctx, &how);
	if (!read_segment(ctx, ip, tcp, &segment))
		return drop(DROP_MALFORMED);
	if (context_was_held(ctx))
		return forward_held(ctx, &segment);
	return dispatch_tcp(ctx, &segment, service, &how);
}

char _license[] SEC("license") = "Dual BSD/GPL";
