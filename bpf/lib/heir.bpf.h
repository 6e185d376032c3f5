/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * heir: the dispatcher that keeps a flow when its keeper dies. A connection that the
 * keeper's data path places goes to its backend by way of the heir, whose data path notes
 * what the packet says (docs/protocol/replication.md 4.7). So there are two that know
 * the connection before its backend does, and no daemon has said a word. Records are made of notes
 * when lots are dealt anew: most connections are over before. What the heir is not told of soon has ended.
 *
 * Who is whose heir is dealt as keepers are, among those that are left.
 */
#pragma once

#include "keeper.bpf.h"

/* In the order in which they come, round and round. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* its entries begin with a page, and each with a line of the cache */
	__uint(max_entries, TRUSTS);
	__type(key, __u32);
	__type(value, struct trust);
} trusts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trusts_turn);
} trusts_turn SEC(".maps");

/* Of the daemon's program: packets come in while it runs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct workbench);
} claiming SEC(".maps");

/* By lot; NO_DISPATCHER: there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lots);
} heirs SEC(".maps");

/* Of the flows of that lot: a slot of the dispatchers map, or NO_DISPATCHER. Not static, as the next: the verifier walks them once. */
__noinline int heir_of(__u32 lot)
{
	__u32 zero = 0;
	struct lots *table = bpf_map_lookup_elem(&heirs, &zero);
	struct dispatcher *heir;
	__u32 slot;

	if (!table || !is_fit() || is_leaving())
		return NO_DISPATCHER;
	slot = table->slots[lot & (LOTS - 1)];
	heir = bpf_map_lookup_elem(&dispatchers, &slot);
	return heir && heir->name[0] ? slot : NO_DISPATCHER;
}

/* The first packet of a flow that has been placed here, to its backend by way of the heir in that slot. */
__noinline int entrust(context_t *ctx, const struct segment *segment, const struct flow *flow, __u32 heir)
{
	struct dispatcher *to = bpf_map_lookup_elem(&dispatchers, &heir);
	struct new_head head = {};
	struct meta *meta = &head.encapsulation.meta;
	struct siphash_key *key;
	struct backend *backend;
	__u32 slot;

	if (!segment || !flow)
		return VERDICT_DROP;
	slot = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &slot);
	if (!backend || !to || !to->name[0] || segment->ip_length > 0xffff - ENCAP_LEN ||
	    !(key = tag_key(flow->meta.key_id))) {
		count_drop(DROP_NO_DISPATCHER);
		return VERDICT_DROP;
	}
	if (!knows_way_to(ctx, to))
		return VERDICT_DROP;
	keep_sent(ctx, segment->ip_length, heir);
	address_head(&head, to, entropy_port(segment), segment->ip_length);
	*meta = flow->meta;
	meta->kind = META_ENTRUSTED;
	meta->requests = bpf_htons(flow->pool);
	meta->value = mapped_ipv4(backend->addr);
	set_tag(meta, meta_tag(key, meta, mapped_ipv4(to->addr), segment->client, segment->vip,
			       segment->key.client_port, segment->key.vip_port));
	if (!encapsulate(ctx, &head))
		return VERDICT_DROP;
	count_event(EVENT_ENTRUSTED);
	return context_send(ctx, to->ifindex);
}

static __always_inline bool is_later_epoch(const struct meta *one, const struct meta *other)
{
	return (__s32)(bpf_ntohl(one->epoch) - bpf_ntohl(other->epoch)) > 0;
}

/*
 * The keeper at `how->from` has entrusted this connection to us: its record, unless a later one is here. Or why
 * there is none. Who keeps it next does not know what has been asked since, and asks the owner (4.6).
 */
static __noinline enum drop_reason take_in_trust(const struct segment *segment, const struct passage *how, struct workbench *bench,
						 __u64 now)
{
	const struct meta *said;
	struct backend_load *load;
	struct proof proof = {};
	struct turn turn = {};
	struct flow *old;
	__be32 backend;
	__u32 *slot;

	if (!segment || !how || !bench)
		return DROP_MALFORMED;
	said = &bench->entrusted;
	proof.client_isn = bpf_ntohl(said->start) - 1;
	proof.server_isn = segment->ack - 1;
	old = bpf_map_lookup_elem(&flows, &segment->key);
	if (old && !is_later_epoch(said, &old->meta))
		return old->cookie == proof.server_isn ? DROP_NONE : DROP_STALE_EPOCH;
	backend = said->value;
	slot = bpf_map_lookup_elem(&slots, &backend);
	if (!slot)
		return DROP_NO_BACKEND;
	if (segment->seq != bpf_ntohl(said->start))
		return DROP_MALFORMED;
	proof.mss = bpf_ntohs(said->mss);
	proof.window_scales = said->window_scales;
	proof.tcp_options = said->tcp_options & TCP_OPTIONS_AGREED;
	turn.slot = *slot;
	turn.server_port = said->server_port;
	if (turn.slot >= BACKENDS_MAX ||
	    !fill_flow(&bench->flow, segment, &proof, &turn, bpf_ntohs(said->requests),
		       said->tcp_options & ~TCP_OPTIONS_AGREED, bpf_ntohl(said->epoch), now))
		return DROP_NO_BACKEND;
	begin_in_trust(&bench->flow, how->from);
	if (!(bench->flow.marks & MARK_TUNNEL))
		bench->flow.marks |= MARK_UNSURE;
	if (old) {
		end_flow(old, FLOW_RESET);
		forget_splice(old);
	}
	spend_proof(&segment->key, &bench->flow, now);
	if (bpf_map_update_elem(&flows, &segment->key, &bench->flow, BPF_ANY))
		return DROP_REWRITE;
	load = bpf_map_lookup_elem(&loads, slot);
	if (load) {
		__sync_fetch_and_add(&load->active, 1);
		__sync_fetch_and_add(&load->total, 1);
	}
	return DROP_NONE;
}

static __always_inline bool is_young(const struct trust *trust, __u64 now)
{
	return trust->at_ns && now - trust->at_ns < TRUST_NS;
}

/* The next place for a note, empty; NULL: as many have come lately. */
static __always_inline struct trust *next_trust(__u64 now)
{
	__u32 zero = 0, place;
	struct trusts_turn *turn = bpf_map_lookup_elem(&trusts_turn, &zero);
	struct trust *trust;

	if (!turn)
		return NULL;
	place = *(volatile __u32 *)&turn->next & (TRUSTS - 1);
	trust = bpf_map_lookup_elem(&trusts, &place);
	if (!trust || is_young(trust, now))
		return NULL;
	place = __sync_fetch_and_add(&turn->next, 1) & (TRUSTS - 1);
	trust = bpf_map_lookup_elem(&trusts, &place);
	if (trust)
		trust->at_ns = 0;
	return trust;
}

/* What its keeper has said becomes the option for its backend. False: it cannot be sealed. */
static __always_inline bool seal_entrusted(struct meta *meta, const struct encapsulated *h, const struct tcp_header *tcp)
{
	struct node *self = this_node();
	struct siphash_key *key;
	__be32 to = meta->value;

	if (!self || !(key = tag_key(self->signing_key)))
		return false;
	meta->kind = META_FORWARD;
	meta->key_id = self->signing_key;
	meta->requests = 0;
	meta->value = 0;
	set_tag(meta, meta_tag(key, meta, to, h->ip.saddr, h->ip.daddr, tcp->source, tcp->dest));
	meta->reason |= FORWARD_BEGINS;
	return true;
}

/* What is not as simple: it is unpacked, and a record is made at once. */
#define NOT_NOTED 0x200

/* A connection's first packet, entrusted to us: noted, and sent on. */
static __noinline int note_and_send_on(context_t *ctx, const struct encapsulated *h)
{
	struct workbench *bench = this_workbench();
	struct backend *backend;
	struct tcp_header tcp;
	struct trust *trust;
	struct meta *meta;
	struct flow_key key;
	__u32 *slot, headers;
	__u64 now;
	int verdict;

	if (!h || !bench || h->ip.protocol != IPPROTO_TCP ||
	    context_load(ctx, sizeof(struct ethhdr) + sizeof(*h), &tcp, sizeof(tcp)))
		return NOT_NOTED;
	meta = &bench->way.meta;
	*meta = h->outer.meta;
	headers = sizeof(struct iphdr) + (tcp.offset >> 4 << 2);
	key = flow_key_v4(h->ip.saddr, h->ip.daddr, tcp.source, tcp.dest);
	slot = bpf_map_lookup_elem(&slots, &meta->value);
	if (tcp.seq != meta->start || headers >= bpf_ntohs(h->ip.tot_len) || !slot || bpf_map_lookup_elem(&flows, &key))
		return NOT_NOTED;
	backend = bpf_map_lookup_elem(&backends, slot);
	if (!backend || !backend->name[0] || backend->silent)
		return NOT_NOTED;
	now = bpf_ktime_get_coarse_ns();
	trust = next_trust(now);
	if (!trust)
		return NOT_NOTED;
	trust->said = *meta;
	trust->client = h->ip.saddr;
	trust->vip = h->ip.daddr;
	trust->client_port = tcp.source;
	trust->vip_port = tcp.dest;
	trust->payload = bpf_ntohs(h->ip.tot_len) - headers;
	trust->window = bpf_ntohs(tcp.window);
	trust->ack = bpf_ntohl(tcp.ack);
	trust->from = h->outer.ip.saddr;
	barrier();
	trust->at_ns = now;
	if (!seal_entrusted(meta, h, &tcp)) {
		count_drop(DROP_BAD_TAG);
		return VERDICT_DROP;
	}
	count_event(EVENT_ACCEPTED);
	count_event(EVENT_IN_TRUST);
	verdict = send_on_to_backend(ctx, *slot, meta, h->outer.udp.source, bpf_ntohs(h->ip.tot_len));
	if (verdict != VERDICT_DROP)
		count_event(EVENT_FORWARDED);
	return verdict;
}

/* More than there are CPUs that write notes. */
#define TRUSTS_BEING_WRITTEN 1024

struct claim {
	__u64 now;
	__u32 first;
};

/* A note becomes a record, unless it is too old, or there is a later one. */
static long claim_trust(__u32 step, struct claim *claim)
{
	__u32 zero = 0, place = (claim->first + step) & (TRUSTS - 1);
	struct workbench *bench = bpf_map_lookup_elem(&claiming, &zero);
	struct trust *trust = bpf_map_lookup_elem(&trusts, &place);
	struct passage how = { .in_trust = 1 };
	struct segment segment = {};
	struct flow *old;

	if (!trust || !bench || !is_young(trust, claim->now))
		return 0;
	bench->entrusted = trust->said;
	how.from = trust->from;
	segment.client = trust->client;
	segment.vip = trust->vip;
	segment.key = flow_key_v4(trust->client, trust->vip, trust->client_port, trust->vip_port);
	segment.client_port = trust->client_port;
	segment.seq = bpf_ntohl(trust->said.start);
	segment.ack = trust->ack;
	segment.payload = trust->payload;
	segment.window = trust->window;
	trust->at_ns = 0;
	old = bpf_map_lookup_elem(&flows, &segment.key);
	if (old && is_later_epoch(&trust->said, &old->meta))
		old->report = 0; /* that is told by way of a bench that packets use */
	take_in_trust(&segment, &how, bench, claim->now);
	return 0;
}

/* For BPF_PROG_RUN: makes records of all that was entrusted to us lately. */
SEC("syscall")
int claim_trusts(void *unused)
{
	struct claim claim = { .now = bpf_ktime_get_ns() };
	__u32 zero = 0, count;
	struct trusts_turn *turn = bpf_map_lookup_elem(&trusts_turn, &zero);

	if (!turn)
		return 0;
	/* Other CPUs may have been writing the latest of those before. */
	claim.first = turn->claimed - TRUSTS_BEING_WRITTEN;
	count = turn->next - claim.first;
	if (count > TRUSTS) {
		claim.first += count - TRUSTS;
		count = TRUSTS;
	}
	bpf_loop(count, claim_trust, &claim, 0);
	turn->claimed = claim.first + count;
	return 0;
}
