/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * reply: a backend's word to the dispatcher that sent a packet, made of that
 * packet: that it is there, how far a flow got, or that it could not be rebuilt
 * here, with the packet enclosed for another backend to have. Works without the
 * daemon.
 */
#pragma once

#include "encapsulation.bpf.h"
#include "own_host.bpf.h"

/* What a reply is put together in: too long for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct encapsulation);
} new_reply SEC(".maps");

/* What came, to be changed and sent back. */
static __always_inline struct encapsulation *begin_reply(const struct encapsulation *received)
{
	__u32 zero = 0;
	struct encapsulation *outer = bpf_map_lookup_elem(&new_reply, &zero);

	if (outer)
		*outer = *received;
	return outer;
}

/* Sends what begin_reply() has begun. Not static: the verifier walks it once, not for every reply. */
__noinline int send_reply(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 zero = 0;
	struct encapsulation *outer = bpf_map_lookup_elem(&new_reply, &zero);
	struct ethhdr came, back;
	struct siphash_key *key;
	struct node *self = this_node();
	__be32 dispatcher;
	bool to_us, to_its_daemon;

	if (!outer || !segment || bpf_skb_load_bytes(skb, 0, &came, sizeof(came)))
		return drop(DROP_MALFORMED);
	if (!self || !(key = tag_key(self->signing_key)))
		return drop(DROP_BAD_TAG);
	dispatcher = outer->ip.saddr;
	to_us = dispatcher == self->address;
	to_its_daemon = to_us && outer->meta.kind != META_RETIRED;
	__builtin_memcpy(back.h_dest, to_us ? came.h_dest : came.h_source, ETH_ALEN);
	__builtin_memcpy(back.h_source, to_us ? came.h_source : came.h_dest, ETH_ALEN);
	if (to_its_daemon)
		__builtin_memset(back.h_dest, 0, ETH_ALEN);
	back.h_proto = bpf_htons(ETH_P_IP);
	outer->meta.key_id = self->signing_key;
	/* The asker's source port will do for ours: entropy, and never 0. */
	fill_encapsulation(outer, self->address, dispatcher, outer->udp.source, segment->ip_length);
	set_tag(&outer->meta, meta_tag(key, &outer->meta, dispatcher, segment->client, segment->vip,
				       segment->client_port, segment->key.vip_port));
	if (bpf_skb_store_bytes(skb, 0, &back, sizeof(back), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(back), outer, sizeof(*outer), 0))
		return drop(DROP_REWRITE);
	if (to_its_daemon)
		return bpf_redirect(LOOPBACK_IFINDEX, BPF_F_INGRESS);
	if (to_us)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	/* Not back to where the frame is from: an owner may have handed the packet on. */
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/* The request could not be set up here: another backend may have it. */
static __always_inline int refuse(struct __sk_buff *skb, const struct encapsulation *received,
				  const struct segment *segment, enum refusal refusal)
{
	struct encapsulation *outer = begin_reply(received);

	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta.kind = META_REFUSED;
	outer->meta.reason = refusal;
	count_event(EVENT_REFUSED);
	return send_reply(skb, segment);
}

/*
 * How far did this flow get: what its socket expects next, or, when that has
 * come and gone, all that the dispatcher asks about. `next` and `clock` are the
 * socket's own, if `how` says that it stands; of one that is reckoned `next` is how
 * many requests it has answered.
 */
static __always_inline int answer_probe(struct __sk_buff *skb, const struct encapsulation *received,
					const struct segment *segment, __u32 reached, __u8 how, __u32 next,
					__u32 clock)
{
	struct encapsulation *outer = begin_reply(received);
	__be32 words[2] = { bpf_htonl(clock), bpf_htonl(next) };

	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta.kind = META_PROBE_ANSWER;
	outer->meta.reason = how;
	outer->meta.value = bpf_htonl(reached);
	if (how == PROBE_RECKONED)
		outer->meta.requests = bpf_htons(next);
	else if (how != PROBE_GONE)
		__builtin_memcpy(&outer->meta.mss, words, sizeof(words));
	return send_reply(skb, segment);
}

/*
 * The flow has gone on to the backend at `owner`, or has come here, and whoever asks has not been told.
 * `known` is NULL: it is not here.
 */
static __always_inline int answer_elsewhere(struct __sk_buff *skb, const struct encapsulation *received,
					    const struct segment *segment, const struct setup *known, __be32 owner)
{
	struct encapsulation *outer = begin_reply(received);
	__be32 end = 0;

	if (!outer)
		return drop(DROP_REWRITE);
	outer->meta.kind = META_ELSEWHERE;
	outer->meta.reason = 0;
	outer->meta.value = owner;
	if (known) {
		outer->meta.epoch = bpf_htonl(known->epoch);
		outer->meta.start = bpf_htonl(known->start);
		end = bpf_htonl(known->end);
	}
	__builtin_memcpy(&outer->meta.mss, &end, sizeof(end));
	return send_reply(skb, segment);
}

/* What the daemon sampled lasts this long, in case that it does not any more. */
#define SAMPLE_LIFETIME_NS 2000000000ull
/* Without a new connection for this long, the queue has been emptied. */
#define QUEUE_LIFETIME_NS 500000000ull

/* How busy this host is; 0: not known. */
static __always_inline bool read_feedback(__u32 *packed)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 zero = 0, queue = 0;
	struct feedback *known = bpf_map_lookup_elem(&feedback, &zero);
	struct accept_queue *last = bpf_map_lookup_elem(&accept_queue, &zero);

	/* The coarse clock may be behind that of the sample. */
	if (!known || !known->sampled_ns || (__s64)(now - known->sampled_ns) > (__s64)SAMPLE_LIFETIME_NS)
		return false;
	if (last && now - last->seen_ns < QUEUE_LIFETIME_NS)
		queue = last->length;
	if (queue > FEEDBACK_QUEUE_MAX)
		queue = FEEDBACK_QUEUE_MAX;
	*packed = known->cpu_permille << FEEDBACK_CPU_SHIFT | known->memory_permille << FEEDBACK_MEMORY_SHIFT |
		  queue;
	return true;
}

/* Puts what the daemon holds of its servers in the place of the padding, if there is so much of that. */
static __always_inline bool say_health(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 zero = 0;
	struct health_word *word = bpf_map_lookup_elem(&health_word, &zero);

	if (segment->ip_length < sizeof(struct iphdr) + HEALTH_WORD_BYTES || !word || !word->said_ns ||
	    (__s64)(bpf_ktime_get_coarse_ns() - word->said_ns) > (__s64)SAMPLE_LIFETIME_NS)
		return true;
	return !bpf_skb_store_bytes(skb, sizeof(struct ethhdr) + sizeof(struct encapsulation) + sizeof(struct iphdr),
				    word->bytes, HEALTH_WORD_BYTES, 0);
}

static __always_inline int answer_echo(struct __sk_buff *skb, const struct encapsulation *received,
				       const struct segment *segment)
{
	struct encapsulation *outer = begin_reply(received);
	struct node *self = this_node();
	__u32 packed = 0;

	if (!outer || !self)
		return drop(DROP_REWRITE);
	outer->meta.kind = META_ECHO_REPLY;
	outer->meta.start = bpf_htonl(self->incarnation);
	outer->meta.reason = read_feedback(&packed);
	outer->meta.value = bpf_htonl(packed);
	if (!say_health(skb, segment))
		return drop(DROP_REWRITE);
	return send_reply(skb, segment);
}
