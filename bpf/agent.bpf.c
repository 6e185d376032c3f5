// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/*
 * agent: a backend's data path. At tc ingress encapsulated packets from
 * dispatchers are verified, unpacked and given to this host's TCP; the one
 * that starts a request is rebuilt into a connection of the server, at most
 * once. At tc egress the server's first word confirms that, and its answers are
 * followed, so that between two of them the connection can go to another backend
 * (lib/owner.bpf.h). Connections that dispatchers have opened to a server here, for flows that
 * are split, are rewritten there (lib/split.bpf.h).
 *
 * A FORWARD at ingress, by what is known of its flow (`setup`):
 *
 *                      none               older epoch   same epoch     same epoch     newer
 *                                                       tried          confirmed      epoch
 *   starts a request   socket that may    rebuild       socket? up     up (a ghost    drop
 *                      be its own? up     (remove       else rebuild   meets RST)
 *                      else rebuild       leftovers)
 *   anything else      socket? up         drop: early   socket? up     up             drop
 *                      else drop: early                 else drop
 *                      (old epoch: up, RST)
 *
 * Moved and older are what was given up, the latter with bytes on the way to the client:
 * its epoch is the next owner's, so that whatever is late of ours meets "newer epoch". The
 * same epoch is the next owner's own: dropped here. A newer epoch finds a moved one as
 * any older one (A, B, A is a new connection at A). Where it finds an older one, whose
 * socket is needed still, it takes a seat, a socket under another client port, or is
 * refused if there is none left; from then on the row is that of the setup on the seat of
 * the packet's epoch, or, for a GC, of the older owner that gave up at its start
 * (lib/seats.bpf.h). Vacant is what its server has closed: the request at its `start` is
 * rebuilt, in the same epoch or a newer one, and all else of its epoch dropped.
 *
 * A HANDOFF or RELEASE, by the same:
 *
 *                      none      older epoch,          older epoch,   same epoch,       newer
 *                                tried, confirmed,     others         given up at       epoch
 *                                vacant                               the same start
 *   HANDOFF, starts    HELD      may it leave?         HELD           on to `value`,    drop
 *                      (4)       on to `value`         (4)            if that is where
 *                                else HELD                            it went
 *   HANDOFF, else      drop:     up, if it lies        drop: early    the same          drop
 *                      early     before `start`
 *   RELEASE            HELD      may it leave?         HELD           RELEASED, if by   drop
 *                      (4)       RELEASED              (4)            that it went
 *                                else HELD
 *
 * Why nothing runs twice: a request is given up only while this host's socket expects
 * exactly its first byte, so it has not run here; from then on `setup` has the epoch of
 * the move, under which only `value`, or whom the dispatcher chose, is sent it; a HANDOFF
 * that was answered by HELD is answered so for ever, since its dispatcher may have sent
 * the request another way; and one that went by RELEASE goes by no HANDOFF.
 */
#include "kernel.h"

#include "lib/address.bpf.h"
#include "lib/counters.bpf.h"
#include "lib/context_tc.bpf.h"
#include "lib/agent_maps.bpf.h"
#include "lib/packet.bpf.h"
#include "lib/checksum.bpf.h"
#include "lib/encapsulation.bpf.h"
#include "lib/unpack.bpf.h"
#include "lib/own_host.bpf.h"
#include "lib/rebuild.bpf.h"
#include "lib/reply.bpf.h"
#include "lib/answers.bpf.h"
#include "lib/setup.bpf.h"
#include "lib/seats.bpf.h"
#include "lib/range.bpf.h"
#include "lib/socket.bpf.h"
#include "lib/shift.bpf.h"
#include "lib/park.bpf.h"
#include "lib/start.bpf.h"
#include "lib/told.bpf.h"
#include "lib/owner.bpf.h"
#include "lib/done.bpf.h"
#include "lib/closing.bpf.h"
#include "lib/unread.bpf.h"
#include "lib/adopt.bpf.h"
#include "lib/older.bpf.h"
#include "lib/rewrite.bpf.h"
#include "lib/split.bpf.h"

#define SECOND_NS 1000000000ll
#define LOST_AFTER_NS (60 * SECOND_NS)
/* Clocks of dispatchers and backends differ by no more. */
#define CLOCKS_DIFFER_NS (2 * SECOND_NS)

/*
 * A packet of a connection that was set up long ago, or before this host came
 * up, has not overtaken its start: the connection is lost, perhaps with power.
 */
static __always_inline bool is_lost(const struct meta *meta)
{
	__u64 now = cluster_time_ns();
	__s32 age = (__u32)(now >> EPOCH_SHIFT) - bpf_ntohl(meta->epoch);
	__s64 age_ns = (__s64)age * (1 << EPOCH_SHIFT);
	struct node *self = this_node();

	return age_ns > LOST_AFTER_NS ||
	       (self && self->since_ns && age_ns > (__s64)(now - self->since_ns) + CLOCKS_DIFFER_NS);
}

/*
 * Dispatchers see by then that another network stack answers them, and do for a client what can be
 * done (encapsulation.md 6.6b): it is not to hear an RST before.
 */
#define QUIET_NS (2 * SECOND_NS)

static __always_inline bool has_just_come_up(void)
{
	struct node *self = this_node();

	return self && self->since_ns && (__s64)(cluster_time_ns() - self->since_ns) < QUIET_NS;
}

/* What overtakes the start of a connection here concerns the owner before us all the same. */
static __always_inline int drop_early(struct __sk_buff *skb, const struct segment *segment, const struct setup *known,
				      const struct meta *meta)
{
	if (is_to_begin(segment, known, meta))
		send_gc(skb);
	return drop(DROP_EARLY);
}

/* Anything but the start: only where its connection stands, or has stood. */
static __always_inline int continue_flow(struct __sk_buff *skb, const struct headers *h,
					 const struct segment *segment, struct setup *known)
{
	struct meta meta = h->outer->meta;
	struct occupant occupant;

	if (known && known->epoch == bpf_ntohl(meta.epoch) && known->state == SETUP_CONFIRMED)
		return deliver_in_range(skb, segment, known);
	occupant = find_occupant(skb, segment);
	if (!occupant.state) {
		/* The client must hear an RST, as from the server alone. */
		if (!known && is_lost(&meta) && !has_just_come_up())
			return deliver(skb, segment);
		return drop_early(skb, segment, known, &meta);
	}
	if (known && known->epoch == bpf_ntohl(meta.epoch))
		known->state = SETUP_CONFIRMED;
	else if (!known && !is_stale(&occupant, bpf_ntohl(meta.start)))
		remember(segment, known, &meta, SETUP_CONFIRMED, h->outer->ip.saddr);
	else
		return drop_early(skb, segment, known, &meta); /* that socket is an older connection's */
	return known ? deliver_in_range(skb, segment, known) : deliver(skb, segment);
}

/* The answer to a PROBE: as answer_probe() wants it. */
struct probed {
	__u32 reached;
	__u32 next;
	__u32 clock;
	__u32 how;
};

/* The dispatcher that asks does not know how many the one before it has given us (replication.md 4.6). */
static __always_inline void reckon(const struct setup *known, struct probed *probed)
{
	probed->how = PROBE_RECKONED;
	probed->next = known->answers.finished;
}

/* Verdicts of look_probed(): there is an answer; or the dispatcher's record is of before the flow has moved. */
#define TO_ANSWER (-5)
#define TO_SAY_WHERE (-7)

/* It has moved, and the dispatcher that asks, which keeps it now, has not been told (replication.md 4.6d). */
static __always_inline bool has_moved_untold(const struct setup *known, const struct meta *meta)
{
	return meta->reason == PROBE_RECKON && is_before(bpf_ntohl(meta->epoch), known->epoch);
}

/* Calls, not inlined: each has the stack to itself. */
static __noinline int look_probed(struct __sk_buff *skb, const struct segment *segment, const struct setup *known,
				  struct probed *probed)
{
	struct own_socket own;
	struct occupant occupant;
	struct meta meta;

	if (!segment || !probed || bpf_skb_load_bytes(skb, META_AT, &meta, sizeof(meta)))
		return drop(DROP_MALFORMED);
	*probed = (struct probed){ .reached = segment->seq, .how = PROBE_GONE };
	/* Of a connection that this host has lost there is neither setup nor socket, but for one that it left here. */
	if (!known && is_lost(&meta)) {
		occupant = find_occupant(skb, segment);
		if (!occupant.state || is_stale(&occupant, bpf_ntohl(meta.start)))
			return has_just_come_up() ? drop(DROP_EARLY) : TO_ANSWER;
	}
	if (known && has_moved_untold(known, &meta))
		return TO_SAY_WHERE;
	if (!known || known->epoch != bpf_ntohl(meta.epoch) || is_given_up(known))
		return drop(DROP_EARLY);
	own = find_own_socket(skb, segment, known);
	if (own.state) {
		probed->clock = own_clock(known, own.clock_offset);
		probed->reached = own.rcv_nxt;
		probed->next = own.snd_nxt;
		if (meta.reason == PROBE_RECKON && has_answered_all(known, &own))
			reckon(known, probed);
		else if (owes_nothing(known, &own, bpf_ntohs(meta.requests)))
			probed->how = PROBE_IDLE;
		else
			probed->how = has_not_begun(known, &own) ? PROBE_NOT_BEGUN : PROBE_STANDS;
		return TO_ANSWER;
	}
	occupant = find_occupant(skb, segment);
	if (!occupant.state && has_given_back(known, segment))
		return ASKED_BACK;
	if (occupant.state)
		probed->reached = occupant.rcv_nxt + (known->shifted ? known->client_shift : 0);
	else if (known->state == SETUP_VACANT)
		probed->reached = known->start;
	else if (known->state != SETUP_CONFIRMED)
		return drop(DROP_EARLY);
	if (known->state == SETUP_VACANT && meta.reason == PROBE_RECKON)
		reckon(known, probed);
	return TO_ANSWER;
}

static __noinline int tell_probed(struct __sk_buff *skb, const struct segment *segment, const struct probed *probed)
{
	struct headers h;

	if (!segment || !probed || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	return answer_probe(skb, h.outer, segment, probed->reached, probed->how, probed->next, probed->clock);
}

/* To whom a daemon has moved it nobody has told us. `known` is NULL: it is not here. */
static __noinline int tell_where(struct __sk_buff *skb, const struct segment *segment, const struct setup *known)
{
	struct node *self = this_node();
	struct headers h;
	__be32 owner = 0;

	if (!segment || !self || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	if (known)
		owner = is_given_up(known) ? known->next : self->address;
	return answer_elsewhere(skb, h.outer, segment, known, owner);
}

/* Far ahead of all epochs of a flow's. */
#define ANY_EPOCH (1u << 30)

/* The owner before does not know to whom it has gone, so all are asked (replication.md 4.6f). */
static __noinline int tell_whose(struct __sk_buff *skb, struct segment *segment)
{
	const struct setup *known;
	struct meta meta;

	if (!segment || bpf_skb_load_bytes(skb, META_AT, &meta, sizeof(meta)))
		return drop(DROP_MALFORMED);
	find_seat(segment, bpf_ntohl(meta.epoch) + ANY_EPOCH);
	known = bpf_map_lookup_elem(&setups, &segment->key);
	if (known && (!is_flows(known, segment) || !is_before(bpf_ntohl(meta.epoch), known->epoch)))
		known = NULL;
	if (!known && has_just_come_up())
		return drop(DROP_EARLY);
	return tell_where(skb, segment, known);
}

/* Two calls, one behind the other: neither has the other's stack above it. */
static __always_inline int receive_probe(struct __sk_buff *skb, const struct segment *segment, struct setup *known)
{
	struct probed probed;
	int verdict = look_probed(skb, segment, known, &probed);

	if (verdict == TO_ANSWER)
		return tell_probed(skb, segment, &probed);
	if (verdict == TO_SAY_WHERE)
		return tell_where(skb, segment, known);
	return verdict == ASKED_BACK ? return_again(skb, segment, known) : verdict;
}

/* A client whose own port is another flow's seat, or whose seat has become one. */
static __noinline int receive_strange(struct __sk_buff *skb, const struct segment *segment)
{
	struct headers h;

	if (!segment || !find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	if (h.outer->meta.kind != META_FORWARD || !starts_request(segment, bpf_ntohl(h.outer->meta.start)))
		return drop(DROP_EARLY);
	count_drop(DROP_OLDER);
	return refuse(skb, h.outer, segment, REFUSAL_NO_SEAT);
}

static __always_inline int receive_segment(struct __sk_buff *skb, struct headers *h)
{
	struct segment segment;
	struct setup *known;
	struct meta meta = h->outer->meta;
	__u32 from;
	bool strange, unseated = false;
	bool begins = take_begins(&meta);
	int verdict, behind = take_behind(skb);

	if (!read_inner(h, &segment))
		return drop(DROP_MALFORMED);
	if (meta.kind == META_PROBE && meta.reason == PROBE_WHOSE)
		return is_proved(h->encapsulated, h->tcp->source, h->tcp->dest) ? tell_whose(skb, &segment) :
										  drop(DROP_BAD_TAG);
	known = bpf_map_lookup_elem(&setups, &segment.key);
	strange = known && !is_flows(known, &segment);
	if (!known || known->seated) {
		if (meta.kind == META_GC)
			from = find_older(&segment, bpf_ntohl(meta.epoch), bpf_ntohl(meta.start));
		else
			from = find_seat(&segment, bpf_ntohl(meta.epoch));
		known = bpf_map_lookup_elem(&setups, &segment.key);
		strange = known && !is_flows(known, &segment);
		/* Another flow has the seat by now: what is new begins at its own port. */
		if (strange && from != bpf_ntohl(meta.epoch) && starts_request(&segment, bpf_ntohl(meta.start))) {
			segment.key.client_port = segment.client_port;
			known = bpf_map_lookup_elem(&setups, &segment.key);
			strange = known && !is_flows(known, &segment);
			unseated = true;
		}
	}
	/* The very option that was verified before, for the same flow (and this address). */
	if (!(known && !strange && same_meta(&known->meta, &meta)) &&
	    !is_proved(h->encapsulated, h->tcp->source, h->tcp->dest))
		return drop(DROP_BAD_TAG);
	/* To an older owner whose seat is another's it is as to one that is not known here any more. */
	if (strange && meta.kind == META_GC && skb->mark != GC_MARK)
		return receive_gc(skb, &segment, NULL);
	if (strange)
		return receive_strange(skb, &segment);
	if (known && meta.kind == META_FORWARD)
		stop_outliving(known, &meta);
	if (skb->mark == GC_MARK) {
		skb->mark = 0;
		return become_gc(skb, &segment, known);
	}
	if (meta.kind == META_GC)
		return receive_gc(skb, &segment, known);
	if (meta.kind == META_RETIRED)
		return receive_retired(known, &meta, h->outer->ip.saddr);
	if (meta.kind == META_PROBE)
		return receive_probe(skb, &segment, known);
	if (skb->mark == RESET_MARK && (meta.kind == META_RELEASE || meta.kind == META_HANDOFF))
		return receive_last(skb, &segment, known);
	if (meta.kind == META_RELEASE) {
		verdict = NOBODY_THERE;
		if (!known && meta.reason == RELEASE_FORSAKEN)
			verdict = end_unknown(skb, &segment);
		return verdict == NOBODY_THERE ? receive_release(skb, &segment, known) : verdict;
	}
	/*
	 * What the client says concerns the owner before us, too; but for the FORWARD that
	 * starts the request, whose acknowledgement is where we begin, not what it has heard.
	 */
	if (known && known->before && !skb->mark &&
	    (meta.kind == META_HANDOFF || (known->epoch == bpf_ntohl(meta.epoch) &&
					   !starts_request(&segment, bpf_ntohl(meta.start))))) {
		note_edge(&segment, known);
		send_gc(skb);
		if (!find_headers(skb, h, INNER_TCP + sizeof(struct tcp_header)))
			return drop(DROP_REWRITE);
	}
	if (meta.kind == META_HANDOFF) {
		verdict = receive_handoff(skb, &segment, known);
		if (verdict == TO_HAND_ON)
			return hand_on(skb, &segment);
		if (verdict != HANDED_TO_US)
			return verdict;
		if (!find_headers(skb, h, INNER_TCP + sizeof(struct tcp_header)) ||
		    !seal_forward(&meta, meta.value, &segment))
			return drop(DROP_REWRITE);
	} else if (known && known->epoch == bpf_ntohl(meta.epoch) && is_given_up(known)) {
		/* What was given up is run by the next owner, if at all. */
		return drop(DROP_STALE_EPOCH);
	}
	if (known && is_before(bpf_ntohl(meta.epoch), known->epoch))
		return drop(DROP_STALE_EPOCH);
	begins = begins && segment.payload && known && known->epoch == bpf_ntohl(meta.epoch);
	if (begins && known)
		note_begun(known, segment.seq);
	if (begins && known && meets_closed(known, &segment)) {
		/* Its socket has bytes to repeat: the request comes again. */
		if (segment.ack != known->answers.next)
			return drop(DROP_VACANT);
		become_vacant(known);
	}
	/* Overtaken by what the client has said since: it comes again. */
	if (known && is_reborn(known, &meta) && known->state == SETUP_VACANT && segment.ack != known->answers.next)
		return drop(DROP_VACANT);
	if (known && known->epoch == bpf_ntohl(meta.epoch) && overtakes_beginning(skb, &segment, known))
		return drop(DROP_VACANT);
	if (known && is_nobodys(known, &segment, &meta)) {
		/* The first one may go round to take its old socket's place (start.bpf.h): this one goes behind it. */
		if (behind == BEHIND_MARK) {
			skb->mark = STILL_BEHIND_MARK;
			return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
		}
		if (behind)
			return refuse_here(skb, &segment, REFUSAL_BEHIND);
		return segment.payload ? tell_vacated_anew(skb, &segment, known) : drop(DROP_VACANT);
	}
	if (starts_request(&segment, start_of(known, &meta))) {
		if ((unseated || is_on_seat(&segment) || (known && is_older(known))) &&
		    (!known || is_before(known->epoch, bpf_ntohl(meta.epoch)))) {
			take_seat(skb, &segment, bpf_ntohl(meta.epoch), !meta.value);
			known = bpf_map_lookup_elem(&setups, &segment.key);
		}
		keep_unread(skb, &segment, segment.seq);
		if (known && may_resume(&segment, known, &meta) &&
		    resume(skb, &segment, known, &meta, h->outer->ip.saddr))
			return deliver_in_range(skb, &segment, known);
		verdict = start_request(skb, &segment, known, &meta);
		if (verdict <= TO_REFUSE)
			return refuse_here(skb, &segment, TO_REFUSE - verdict);
		return verdict == IT_STANDS && known ? deliver_in_range(skb, &segment, known) : verdict;
	}
	/*
	 * What its first packet has found here, in vain, these look for elsewhere. Their client has been
	 * told that they have arrived, and will not send them again.
	 */
	if (behind && known && known->state == SETUP_REFUSED)
		return refuse_here(skb, &segment, REFUSAL_BEHIND);
	if (known && known->state == SETUP_VACANT)
		return drop(DROP_VACANT);
	if (known && meta.tcp_options & CARE_FOLLOW) {
		if (known->dispatcher != h->outer->ip.saddr)
			known->dispatcher = h->outer->ip.saddr;
		if (known->waiting)
			tell_if_acknowledged(&segment, known);
	}
	if (known && brings_request(known, &segment)) {
		note_met(skb, &segment, known);
		keep_unread(skb, &segment, next_start(known));
	}
	/* Its socket goes without a word, whatever has been read there. */
	if (known && segment.flags & TCP_RST && known->meta.tcp_options & CARE_OUTLIVE)
		known->answers.flags |= ANSWER_GONE;
	return continue_flow(skb, h, &segment, known);
}

/* The answer comes from here, not from the daemon: what works without it is alive without it. */
static __noinline int receive_echo(struct __sk_buff *skb)
{
	struct segment segment = {};
	struct headers h;

	if (!find_headers(skb, &h, INNER_TCP + sizeof(struct tcp_header)))
		return drop(DROP_MALFORMED);
	segment.client = h.ip->saddr;
	segment.vip = h.ip->daddr;
	segment.ip_length = bpf_ntohs(h.ip->tot_len);
	return answer_echo(skb, h.outer, &segment);
}

static __always_inline int receive_icmp(struct __sk_buff *skb, const struct headers *h)
{
	if (!is_proved(h->encapsulated, 0, 0))
		return drop(DROP_BAD_TAG);
	if (!decapsulate(skb))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
}

SEC("tcx/ingress")
int agent_ingress(struct __sk_buff *skb)
{
	struct node *self = this_node();
	struct headers h;

	if (skb->mark == PASS_BY_MARK) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->pkt_type != PACKET_HOST ||
	    !find_headers(skb, &h, UNPACKED_TCP))
		return TC_ACT_UNSPEC;
	if (h.outer->ip.protocol == IPPROTO_TCP)
		return hear_client(skb);
	if (h.outer->ip.protocol != IPPROTO_UDP || !find_headers(skb, &h, INNER_IP) || !is_ours(h.outer))
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
	case META_HANDOFF:
	case META_RELEASE:
	case META_GC:
	case META_RETIRED:
		return h.ip->protocol == IPPROTO_TCP ? receive_segment(skb, &h) : drop(DROP_BAD_ENCAP);
	case META_SPLIT:
	case META_SPLIT_PROBE:
	case META_SPLIT_RELEASE:
		return h.ip->protocol == IPPROTO_TCP ? receive_split(skb, &h) : drop(DROP_BAD_ENCAP);
	case META_ECHO:
		if (h.ip->protocol == IPPROTO_TCP || !is_proved(h.encapsulated, 0, 0))
			return drop(DROP_BAD_TAG);
		return receive_echo(skb);
	case META_ICMP:
		return h.ip->protocol == IPPROTO_ICMP ? receive_icmp(skb, &h) : drop(DROP_BAD_ENCAP);
	case META_REQUEST:
	case META_UNHEARD:
	case META_NEXT:
	case META_SPLICE:
	case META_PROBE_ANSWER:
	case META_REFUSED:
	case META_ECHO_REPLY:
	case META_HELD:
	case META_RELEASED:
	case META_DONE:
	case META_VACATED:
	case META_SUPPORT:
	case META_ANSWERED:
	case META_ELSEWHERE:
	case META_BEAT_REPLY:
		return TC_ACT_UNSPEC; /* for a dispatcher's daemon on this host */
	default:
		return drop(DROP_BAD_ENCAP);
	}
}

/* Whatever leaves on a rebuilt connection shows that its socket came to be. */
static __always_inline int leave(struct __sk_buff *skb, const struct leaving *h, const struct flow_key *key,
				 struct setup *setup)
{
	__u32 payload_at = sizeof(struct ethhdr) + sizeof(struct iphdr) + (h->tcp.offset >> 4 << 2);
	__u32 payload = skb->len > payload_at ? skb->len - payload_at : 0;
	__u16 finished = setup->answers.finished;
	__u32 head_at;
	bool begins;
	int verdict;

	if (h->tcp.flags & TCP_RST && is_late_reset(skb, h, setup))
		return drop(DROP_SERVER_CLOSE);
	if (setup->state == SETUP_TRIED) {
		setup->state = SETUP_CONFIRMED;
		note_clock(setup, sending_socket(skb));
		count_event(EVENT_CONFIRMED);
	}
	/* What its socket says until it is removed, or never was one; or while it is parked. */
	if (setup->state == SETUP_MOVED)
		return setup->parked && h->tcp.flags & TCP_FIN ? end_parked(skb, h, key, setup) : drop(DROP_MOVED);
	if (!(setup->meta.tcp_options & CARE_FOLLOW))
		return TC_ACT_UNSPEC;
	if (setup->state == SETUP_OLDER)
		return leave_older(skb, h, setup, payload);
	begins = payload && is_between_answers(&setup->answers) && setup->answers.next == bpf_ntohl(h->tcp.seq);
	if (payload)
		follow_leaving(skb, &setup->answers, h, payload_at);
	/* Where a client has asked ahead, it may begin behind the end of the one before. */
	head_at = payload ? head_of_begun(&setup->answers, finished, begins ? payload_at : 0) : 0;
	if (head_at)
		tell_begun(skb, h, key, setup, head_at);
	else if (begins)
		count_unseen(&setup->answers);
	if (setup->waiting)
		tell_if_answered(key, setup);
	if (setup->answers.finished != finished && is_between_answers(&setup->answers) &&
	    !(setup->answers.flags & ANSWER_CLOSING))
		tell_answered(key, setup);
	if (h->tcp.flags & TCP_FIN) {
		note_all_taken(setup, h);
		note_rest_taken(skb, setup, h);
	}
	if (closes_idle(setup, h, payload))
		return vacate(skb, h, setup);
	if (closes_with_answer(setup, h, payload)) {
		keep_fin_back(skb, h, setup);
		return TC_ACT_UNSPEC;
	}
	if (closes_in_midst(setup, h) || closes_on_kept(skb, setup, h, payload))
		return tell_cut_off(skb, h, setup, payload);
	if (is_gone_in_midst(setup, h))
		return drop(DROP_SERVER_CLOSE);
	if (closes_unanswered(setup, h, payload)) {
		if (is_ahead_of_own_word(setup, h))
			return drop(DROP_SERVER_CLOSE);
		verdict = return_unread(skb, h, setup);
		if (verdict != TC_ACT_UNSPEC)
			return verdict;
	}
	if (setup->state == SETUP_VACANT)
		return drop(DROP_SERVER_CLOSE);
	if (acknowledges_unread(skb, setup, h, payload))
		return withhold(key, h, setup);
	if (setup->withheld)
		setup->withheld = 0;
	if (h->tcp.flags & (TCP_FIN | TCP_RST))
		setup->answers.flags |= ANSWER_GONE;
	return TC_ACT_UNSPEC;
}

static __always_inline bool acknowledge_told(struct __sk_buff *skb, const struct leaving *h, struct setup *setup)
{
	__u32 own = bpf_ntohl(h->own_ack), ahead = told_ahead(&setup->told, bpf_ntohl(h->tcp.ack));

	return !ahead || replace_word(skb, offsetof(struct tcp_header, ack), own, own + ahead);
}

SEC("tcx/egress")
int agent_egress(struct __sk_buff *skb)
{
	struct leaving h;
	struct flow_key key;
	struct setup *setup;
	int verdict;

	if (skb->mark == PASS_BY_MARK) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (skb->mark == TURN_MARK)
		return ask_socket(skb);
	if (skb->protocol != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &h, LEAVING_HEADERS) || h.ip.protocol != IPPROTO_TCP ||
	    h.ip.ihl != 5)
		return TC_ACT_UNSPEC;
	if (skb->mark == SPLIT_MARK) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	key = flow_key_v4(h.ip.daddr, h.ip.saddr, h.tcp.dest, h.tcp.source);
	setup = bpf_map_lookup_elem(&setups, &key);
	if (!setup)
		return leave_split(skb, &h, &key);
	h.own_seq = h.tcp.seq;
	h.own_ack = h.tcp.ack;
	if (setup->shifted) {
		h.tcp.seq = bpf_htonl(bpf_ntohl(h.tcp.seq) + setup->server_shift);
		h.tcp.ack = bpf_htonl(bpf_ntohl(h.tcp.ack) + setup->client_shift);
	}
	verdict = leave(skb, &h, &key, setup);
	if (verdict == TC_ACT_UNSPEC && is_set_up(setup) &&
	    (!acknowledge_told(skb, &h, setup) || !keep_in_clients_window(skb, &h, setup)))
		return drop(DROP_REWRITE);
	if (verdict == TC_ACT_UNSPEC && !shift_out(skb, h.tcp.offset >> 4 << 2, setup))
		return drop(DROP_REWRITE);
	if (verdict == TC_ACT_UNSPEC && setup->origin &&
	    !replace_half(skb, offsetof(struct tcp_header, dest), h.tcp.dest, setup->origin))
		return drop(DROP_REWRITE);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
