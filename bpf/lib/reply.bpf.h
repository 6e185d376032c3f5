/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * reply: a backend's word to the dispatcher that sent a packet, made of that
 * packet: that it is there, how far a flow got, or that it could not be rebuilt
 * here, with the packet enclosed for another backend to have. Works without the
 * daemon.
 */
#pragma once

#include "encapsulation.bpf.h"

static __always_inline int send_reply(struct __sk_buff *skb, const struct ethhdr *ethernet,
				      struct encapsulation *outer, const struct segment *segment)
{
	struct ethhdr back;
	struct siphash_key *key;
	struct node *self = this_node();
	__be32 dispatcher = outer->ip.saddr;

	if (!self || !(key = tag_key(self->signing_key))) {
		count_drop(DROP_BAD_TAG);
		return TC_ACT_SHOT;
	}
	__builtin_memcpy(back.h_dest, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(back.h_source, ethernet->h_dest, ETH_ALEN);
	back.h_proto = bpf_htons(ETH_P_IP);
	outer->meta.key_id = self->signing_key;
	/* The asker's source port will do for ours: entropy, and never 0. */
	fill_encapsulation(outer, self->address, dispatcher, outer->udp.source, segment->ip_length);
	set_tag(&outer->meta, meta_tag(key, &outer->meta, dispatcher, segment->client, segment->vip,
				       segment->client_port, segment->key.vip_port));
	if (bpf_skb_store_bytes(skb, 0, &back, sizeof(back), 0) ||
	    bpf_skb_store_bytes(skb, sizeof(back), outer, sizeof(*outer), 0)) {
		count_drop(DROP_REWRITE);
		return TC_ACT_SHOT;
	}
	/* Not back to where the frame is from: an owner may have handed the packet on. */
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/* The request could not be set up here: another backend may have it. */
static __always_inline int refuse(struct __sk_buff *skb, const struct ethhdr *ethernet,
				  const struct encapsulation *received, const struct segment *segment,
				  enum refusal refusal)
{
	struct encapsulation outer = *received;

	outer.meta.kind = META_REFUSED;
	outer.meta.reason = refusal;
	count_event(EVENT_REFUSED);
	return send_reply(skb, ethernet, &outer, segment);
}

/*
 * How far did this flow get: what its socket expects next, or, when that has
 * come and gone, all that the dispatcher asks about. `next` and `clock` are the
 * socket's own, if it `stands`.
 */
static __always_inline int answer_probe(struct __sk_buff *skb, const struct ethhdr *ethernet,
					const struct encapsulation *received, const struct segment *segment,
					__u32 reached, bool stands, __u32 next, __u32 clock)
{
	struct encapsulation outer = *received;
	__be32 words[2] = { bpf_htonl(clock), bpf_htonl(next) };

	outer.meta.kind = META_PROBE_ANSWER;
	outer.meta.reason = stands;
	outer.meta.value = bpf_htonl(reached);
	if (stands)
		__builtin_memcpy(&outer.meta.mss, words, sizeof(words));
	return send_reply(skb, ethernet, &outer, segment);
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

static __always_inline int answer_echo(struct __sk_buff *skb, const struct ethhdr *ethernet,
				       const struct encapsulation *received, const struct segment *segment)
{
	struct encapsulation outer = *received;
	__u32 packed = 0;

	outer.meta.kind = META_ECHO_REPLY;
	outer.meta.reason = read_feedback(&packed);
	outer.meta.value = bpf_htonl(packed);
	return send_reply(skb, ethernet, &outer, segment);
}
