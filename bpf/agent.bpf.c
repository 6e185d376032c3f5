// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/*
 * agent: a backend's data path. At tc ingress encapsulated packets from
 * dispatchers are verified, unpacked and given to this host's TCP; the one
 * that starts a request is rebuilt into a connection of the server, at most
 * once. At tc egress the server's first word confirms that.
 *
 * A packet at ingress, by what is known of its flow (`setup`):
 *
 *                      none               older epoch   same epoch     same epoch     newer
 *                                                       tried          confirmed      epoch
 *   starts a request   socket that may    rebuild       socket? up     up (a ghost    drop
 *                      be its own? up     (remove       else rebuild   meets RST)
 *                      else rebuild       leftovers)
 *   anything else      socket? up         drop: early   socket? up     up             drop
 *                      else drop: early                 else drop
 *                      (old epoch: up, RST)
 */
#include "kernel.h"

#include "lib/address.bpf.h"
#include "lib/counters.bpf.h"
#include "lib/agent_maps.bpf.h"
#include "lib/packet.bpf.h"
#include "lib/checksum.bpf.h"
#include "lib/encapsulation.bpf.h"
#include "lib/rebuild.bpf.h"
#include "lib/reply.bpf.h"

/* An encapsulated packet's headers, where they lie; void after any change of the packet. */
struct headers {
	struct ethhdr *ethernet;
	struct encapsulated *encapsulated;
	struct encapsulation *outer;
	struct iphdr *ip;
	struct tcp_header *tcp;
};

#define PACKET_HOST 0

#define INNER_IP (sizeof(struct ethhdr) + ENCAP_LEN)
#define INNER_TCP (INNER_IP + sizeof(struct iphdr))

static __always_inline int drop(enum drop_reason reason)
{
	count_drop(reason);
	return TC_ACT_SHOT;
}

static __always_inline bool decapsulate(struct __sk_buff *skb)
{
	return bpf_skb_adjust_room(skb, -ENCAP_LEN, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) == 0;
}

/* Up to this host's TCP, or to the socket that was just assigned. */
static __always_inline int deliver(struct __sk_buff *skb)
{
	if (!decapsulate(skb))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

static __always_inline bool read_inner(const struct headers *h, struct segment *segment)
{
	__u32 length = bpf_ntohs(h->ip->tot_len);
	__u32 header_length = h->tcp->offset >> 4 << 2;

	if (header_length < sizeof(struct tcp_header) || length < sizeof(struct iphdr) + header_length)
		return false;
	segment->client = h->ip->saddr;
	segment->vip = h->ip->daddr;
	segment->key = flow_key_v4(h->ip->saddr, h->ip->daddr, h->tcp->source, h->tcp->dest);
	segment->seq = bpf_ntohl(h->tcp->seq);
	segment->ack = bpf_ntohl(h->tcp->ack);
	segment->flags = h->tcp->flags;
	segment->ip_length = length;
	segment->header_length = header_length;
	segment->payload = length - sizeof(struct iphdr) - header_length;
	return true;
}

static __always_inline bool read_inner_options(struct __sk_buff *skb, const struct segment *segment,
					       struct tcp_options *options)
{
	__u8 bytes[TCP_OPTIONS_ROOM] = {};
	__u32 length = segment->header_length - sizeof(struct tcp_header);

	if (length > TCP_OPTIONS_MAX)
		return false;
	if (length && bpf_skb_load_bytes(skb, INNER_TCP + sizeof(struct tcp_header), bytes, length))
		return false;
	parse_tcp_options(bytes, length, options);
	return true;
}

/* A connection that ended long ago stands where a new one must be built. */
static __always_inline int remove_occupant(struct __sk_buff *skb, const struct segment *segment, __u32 rcv_nxt)
{
	/* Only once: what survives its RST would go round for ever. */
	if (skb->mark == SECOND_PASS_MARK)
		return drop(DROP_NOT_REBUILT);
	skb->mark = SECOND_PASS_MARK;
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		return drop(DROP_REWRITE);
	skb->mark = 0;
	if (!decapsulate(skb) || !become_reset(skb, segment, rcv_nxt))
		return drop(DROP_REWRITE);
	count_event(EVENT_REPLACED);
	return TC_ACT_OK;
}

/* In place when there is one: an entry of an LRU map costs more to replace than to write. */
static __always_inline void remember(const struct flow_key *key, struct setup *known, const struct setup *setup)
{
	if (known)
		*known = *setup;
	else
		bpf_map_update_elem(&setups, key, setup, BPF_ANY);
}

static __always_inline int start_request(struct __sk_buff *skb, const struct headers *h,
					 const struct segment *segment, struct setup *known)
{
	struct meta meta = h->outer->meta;
	struct setup setup = {
		.meta = meta,
		.epoch = bpf_ntohl(meta.epoch),
		.start = bpf_ntohl(meta.start),
		.state = SETUP_TRIED,
		.created_ns = bpf_ktime_get_coarse_ns(),
	};
	bool same = known && known->epoch == setup.epoch && known->start == setup.start;
	struct occupant occupant;
	struct tcp_options options;
	struct bpf_sock *listener;
	enum refusal refusal;
	bool rebuilt;

	occupant = find_occupant(skb, segment);
	if (same && known->state == SETUP_CONFIRMED) {
		/* Without its socket it meets an RST, as with the server alone: it must not run twice. */
		if (!occupant.state)
			count_event(EVENT_GHOST);
		return deliver(skb);
	}
	if (occupant.state) {
		/* Without a record it is ours if it stands where this request could have left it. */
		if (same || (!known && occupant.state != TCP_STATE_TIME_WAIT &&
			     occupant.rcv_nxt - setup.start < 1 << 30)) {
			setup.state = SETUP_CONFIRMED;
			remember(&segment->key, known, &setup);
			return deliver(skb);
		}
		return remove_occupant(skb, segment, occupant.rcv_nxt);
	}
	if (!read_inner_options(skb, segment, &options))
		return drop(DROP_MALFORMED);
	/* A late copy of what was given back must not run here as well. */
	if (same && known->state == SETUP_REFUSED)
		return refuse(skb, h->ethernet, h->outer, segment, REFUSAL_NO_LISTENER);
	listener = find_listener(skb, segment, &meta, &refusal);
	if (!listener) {
		if (refusal == REFUSAL_NO_LISTENER) {
			setup.state = SETUP_REFUSED;
			remember(&segment->key, known, &setup);
		}
		return refuse(skb, h->ethernet, h->outer, segment, refusal);
	}
	rebuilt = decapsulate(skb) && rebuild(skb, listener, &meta, &options);
	bpf_sk_release(listener);
	if (!rebuilt)
		return drop(DROP_NOT_REBUILT);
	skb->mark = 0;
	remember(&segment->key, known, &setup);
	count_event(EVENT_REBUILT);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

#define LOST_AFTER_NS (60ull * 1000000000ull)
/* Clocks of dispatchers and backends differ by no more. */
#define CLOCKS_DIFFER_NS (2ull * 1000000000ull)

/*
 * A packet of a connection that was set up long ago, or before this host came
 * up, has not overtaken its start: the connection is lost, perhaps with power.
 */
static __always_inline bool is_lost(const struct meta *meta)
{
	__u32 now = cluster_time_ns() >> EPOCH_SHIFT;
	__u32 epoch = bpf_ntohl(meta->epoch);
	struct node *self = this_node();

	return (__s32)(now - epoch) > (__s32)(LOST_AFTER_NS >> EPOCH_SHIFT) ||
	       (self && self->since &&
		(__s32)(self->since - epoch) > (__s32)(CLOCKS_DIFFER_NS >> EPOCH_SHIFT));
}

/* Anything but the start: only where its connection stands, or has stood. */
static __always_inline int continue_flow(struct __sk_buff *skb, const struct headers *h,
					 const struct segment *segment, struct setup *known)
{
	struct meta meta = h->outer->meta;

	if (known && known->epoch == bpf_ntohl(meta.epoch) && known->state == SETUP_CONFIRMED)
		return deliver(skb);
	if (!find_occupant(skb, segment).state) {
		/* The client must hear an RST, as from the server alone. */
		if (!known && is_lost(&meta))
			return deliver(skb);
		return drop(DROP_EARLY);
	}
	if (known && known->epoch == bpf_ntohl(meta.epoch)) {
		known->state = SETUP_CONFIRMED;
	} else if (!known) {
		struct setup setup = {
			.meta = meta,
			.epoch = bpf_ntohl(meta.epoch),
			.start = bpf_ntohl(meta.start),
			.state = SETUP_CONFIRMED,
			.created_ns = bpf_ktime_get_coarse_ns(),
		};

		bpf_map_update_elem(&setups, &segment->key, &setup, BPF_ANY);
	} else {
		return drop(DROP_EARLY); /* that socket is an older connection's */
	}
	return deliver(skb);
}

static __always_inline int receive_probe(struct __sk_buff *skb, const struct headers *h,
					 const struct segment *segment, const struct setup *known)
{
	struct meta meta = h->outer->meta;
	struct occupant occupant = find_occupant(skb, segment);
	bool set_up = known && known->epoch == bpf_ntohl(meta.epoch);

	if (set_up && occupant.state)
		return answer_probe(skb, h->ethernet, h->outer, segment, occupant.rcv_nxt);
	if (set_up && known->state == SETUP_CONFIRMED)
		return answer_probe(skb, h->ethernet, h->outer, segment, segment->seq);
	return drop(DROP_EARLY);
}

static __always_inline int receive_segment(struct __sk_buff *skb, const struct headers *h)
{
	struct segment segment;
	struct setup *known;
	struct meta meta = h->outer->meta;

	if (!read_inner(h, &segment))
		return drop(DROP_MALFORMED);
	known = bpf_map_lookup_elem(&setups, &segment.key);
	/* The very option that was verified before, for the same flow (and this address). */
	if (!(known && same_meta(&known->meta, &meta)) &&
	    !is_authentic(h->encapsulated, h->tcp->source, h->tcp->dest))
		return drop(DROP_BAD_TAG);
	if (meta.kind == META_PROBE)
		return receive_probe(skb, h, &segment, known);
	/* RFC 1982: epochs are compared as serial numbers. */
	if (known && (__s32)(bpf_ntohl(meta.epoch) - known->epoch) < 0)
		return drop(DROP_STALE_EPOCH);
	if (segment.seq == bpf_ntohl(meta.start) && segment.payload && !(segment.flags & TCP_RST))
		return start_request(skb, h, &segment, known);
	return continue_flow(skb, h, &segment, known);
}

/* The answer comes from here, not from the daemon: what works without it is alive without it. */
static __always_inline int receive_echo(struct __sk_buff *skb, const struct headers *h)
{
	struct segment segment = {
		.client = h->ip->saddr,
		.vip = h->ip->daddr,
		.ip_length = bpf_ntohs(h->ip->tot_len),
	};

	if (h->ip->protocol == IPPROTO_TCP || !is_authentic(h->encapsulated, 0, 0))
		return drop(DROP_BAD_TAG);
	return answer_echo(skb, h->ethernet, h->outer, &segment);
}

static __always_inline bool find_headers(struct __sk_buff *skb, struct headers *h, __u32 needed)
{
	if ((void *)(long)skb->data + needed > (void *)(long)skb->data_end && bpf_skb_pull_data(skb, needed))
		return false;
	h->ethernet = (void *)(long)skb->data;
	h->encapsulated = (void *)(h->ethernet + 1);
	h->outer = &h->encapsulated->outer;
	h->ip = &h->encapsulated->ip;
	h->tcp = (void *)(h->ip + 1);
	return (void *)(long)skb->data + needed <= (void *)(long)skb->data_end;
}

SEC("tcx/ingress")
int agent_ingress(struct __sk_buff *skb)
{
	struct node *self = this_node();
	struct headers h;

	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->pkt_type != PACKET_HOST ||
	    !find_headers(skb, &h, INNER_IP) || h.outer->ip.protocol != IPPROTO_UDP || !is_ours(h.outer))
		return TC_ACT_UNSPEC;
	/* A switch floods frames for others, too. */
	if (!self || h.outer->ip.daddr != self->address)
		return TC_ACT_UNSPEC;
	if (!find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)) ||
	    !is_well_formed(h.encapsulated, skb->len) ||
	    bpf_ntohs(h.ip->tot_len) < sizeof(struct iphdr) + sizeof(struct tcp_header))
		return drop(DROP_BAD_ENCAP);
	switch (h.outer->meta.kind) {
	case META_FORWARD:
	case META_PROBE:
		return h.ip->protocol == IPPROTO_TCP ? receive_segment(skb, &h) : drop(DROP_BAD_ENCAP);
	case META_ECHO:
		return receive_echo(skb, &h);
	case META_ICMP:
		if (h.ip->protocol != IPPROTO_ICMP)
			return drop(DROP_BAD_ENCAP);
		return is_authentic(h.encapsulated, 0, 0) ? deliver(skb) : drop(DROP_BAD_TAG);
	case META_REQUEST:
	case META_PROBE_ANSWER:
	case META_REFUSED:
	case META_ECHO_REPLY:
		return TC_ACT_UNSPEC; /* for a dispatcher's daemon on this host */
	default:
		return drop(DROP_BAD_ENCAP);
	}
}

/* Whatever leaves on a rebuilt connection shows that its socket came to be. */
SEC("tcx/egress")
int agent_egress(struct __sk_buff *skb)
{
	struct {
		struct iphdr ip;
		__be16 source;
		__be16 dest;
	} h;
	struct flow_key key;
	struct setup *setup;

	if (skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &h, sizeof(h)) || h.ip.protocol != IPPROTO_TCP ||
	    h.ip.ihl != 5)
		return TC_ACT_UNSPEC;
	key = flow_key_v4(h.ip.daddr, h.ip.saddr, h.dest, h.source);
	setup = bpf_map_lookup_elem(&setups, &key);
	if (setup && setup->state == SETUP_TRIED) {
		setup->state = SETUP_CONFIRMED;
		count_event(EVENT_CONFIRMED);
	}
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
