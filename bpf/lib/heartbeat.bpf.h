/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * heartbeat: the answer to a BEAT, without the daemon: what works without it is there
 * without it (docs/protocol/spray.md). Who asked is remembered for people to see.
 */
#pragma once

#include "outer.bpf.h"

/* What this node says of itself. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct presence);
} presence SEC(".maps");

/* By address, as in keys. Only who has a key gets in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct server);
	__type(value, struct peer);
} peers SEC(".maps");

/* After so long what a peer said last does not shut out a lower number: its clock was set. */
#define PEER_FORGOTTEN_NS 10000000000ull

static __always_inline void note_peer(const struct encapsulated *beat)
{
	struct peer heard = {
		.heard_ns = bpf_ktime_get_coarse_ns(),
		.beat = bpf_ntohl(beat->outer.meta.epoch),
		.role = beat->outer.meta.reason,
		.said = bpf_ntohl(beat->outer.meta.value),
	};
	struct server asker = {};
	struct peer *known;

	map_ipv4(asker.addr, beat->ip.saddr);
	known = bpf_map_lookup_elem(&peers, &asker);
	if (!known)
		bpf_map_update_elem(&peers, &asker, &heard, BPF_ANY);
	else if ((__s32)(heard.beat - known->beat) > 0 || heard.heard_ns - known->heard_ns > PEER_FORGOTTEN_NS)
		*known = heard;
}

/* The beat was verified; its answer goes to whom the tag names as the asker. */
static __noinline int answer_beat(context_t *ctx, const struct encapsulated *beat)
{
	struct node *self = this_node();
	struct new_head head = {};
	struct meta *meta = &head.encapsulation.meta;
	struct presence *presence_of_us;
	struct siphash_key *key;
	__u8 mac[ETH_ALEN];
	__u32 zero = 0;

	if (!beat || !self || !(key = tag_key(self->signing_key)) ||
	    !(presence_of_us = bpf_map_lookup_elem(&presence, &zero)) || !presence_of_us->role)
		return VERDICT_NEXT;
	if (beat->ip.protocol == IPPROTO_TCP || beat->ip.daddr != self->address) {
		count_drop(DROP_BAD_ENCAP);
		return VERDICT_DROP;
	}
	note_peer(beat);
	if (context_load(ctx, 0, &head.ethernet, sizeof(head.ethernet))) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	__builtin_memcpy(mac, head.ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(head.ethernet.h_dest, head.ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(head.ethernet.h_source, mac, ETH_ALEN);
	fill_encapsulation(&head.encapsulation, self->address, beat->ip.saddr, beat->outer.udp.source,
			   bpf_ntohs(beat->ip.tot_len));
	*meta = beat->outer.meta;
	meta->kind = META_BEAT_REPLY;
	meta->key_id = self->signing_key;
	meta->reason = presence_of_us->role;
	meta->value = bpf_htonl(bpf_ktime_get_coarse_ns() < presence_of_us->until_ns ?
					presence_of_us->says :
					presence_of_us->afterwards);
	/* Dispatchers' daemons ask from another port. */
	if (beat->outer.udp.source == bpf_htons(PEERS_PORT))
		head.encapsulation.udp.dest = bpf_htons(PEERS_PORT);
	set_tag(meta, meta_tag(key, meta, beat->ip.saddr, beat->ip.saddr, beat->ip.daddr, 0, 0));
	if (context_store(ctx, 0, &head.ethernet, sizeof(struct ethhdr) + sizeof(struct encapsulation))) {
		count_drop(DROP_REWRITE);
		return VERDICT_DROP;
	}
	count_event(EVENT_BEAT);
	return context_send_back(ctx);
}
