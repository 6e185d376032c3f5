/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * handshake: SYN in, SYN-ACK with a cookie out; nothing is remembered until
 * the client has shown the cookie [LVSCAD07 4.1 fast handshaking, stateless].
 */
#pragma once

#include "answer.bpf.h"
#include "cookie.bpf.h"

#define INITIAL_WINDOW 65535
/* A proof serves a silent connection for this long. */
#define PROOF_LIFETIME_NS (3600ull * 1000000000ull)

/* 4 MSS, then [2 SACK permitted + 10 timestamps], then [NOP window scale]. */
static __always_inline void put_syn_options(struct answer *answer, const struct service *service,
					    const struct cookie_terms *terms, __u32 tsval, __u32 tsecr)
{
	__u8 *at = answer->options;

	at[0] = 2;
	at[1] = 4;
	at[2] = service->mss >> 8;
	at[3] = service->mss;
	answer->options_length = 4;
	if (terms->timestamps) {
		put_timestamps(at + 4, tsval, tsecr);
		if (terms->sack) {
			at[4] = 4;
			at[5] = 2;
		}
		if (terms->client_shift != WSCALE_NONE) {
			at[16] = 1;
			at[17] = 3;
			at[18] = 3;
			at[19] = service->window_scale;
			answer->options_length = 20;
		} else {
			answer->options_length = 16;
		}
		return;
	}
	/* NOP NOP SACK permitted, NOP window scale: NOPs where one is not agreed. */
	if (terms->sack || terms->client_shift != WSCALE_NONE) {
		__builtin_memset(at + 4, 1, 8);
		if (terms->sack) {
			at[6] = 4;
			at[7] = 2;
		}
		if (terms->client_shift != WSCALE_NONE) {
			at[9] = 3;
			at[10] = 3;
			at[11] = service->window_scale;
		}
		answer->options_length = 12;
	}
}

/*
 * An address that no client has (RFC 1122 3.2.1.3, RFC 9293 3.9.2.3): none, loopback,
 * groups, broadcast, and those of services, which stand on every backend's lo.
 */
static __always_inline bool is_martian(__be32 client)
{
	__u8 network = bpf_ntohl(client) >> 24;

	return network == 0 || network == 127 || network >= 224 || find_service(client, 0);
}

/* The host itself has not looked at it yet. */
static __always_inline bool has_good_ip_checksum(context_t *ctx)
{
	struct iphdr ip;

	return !context_load(ctx, sizeof(struct ethhdr), &ip, sizeof(ip)) &&
	       checksum_fold(ipv4_header_sum(&ip)) == 0xffff;
}

/* Calls, not inlined: each has the stack to itself. */
static __noinline int answer_syn(context_t *ctx, const struct segment *segment,
				      const struct service *service)
{
	struct tcp_options options;
	struct answer answer = {};
	struct cookie_terms terms = {};
	enum checksum_state checksum;
	struct siphash_key *key;
	__u64 period = cookie_period();
	__u32 tsval, cookie;

	if (is_martian(segment->client)) {
		count_drop(DROP_MARTIAN);
		return VERDICT_DROP;
	}
	checksum = read_options(ctx, segment, &options);
	if (checksum == CHECKSUM_WRONG || !has_good_ip_checksum(ctx))
		goto malformed;
	key = cookie_key(period, 0);
	if (!key) {
		count_drop(DROP_NO_COOKIE_KEY);
		return VERDICT_DROP;
	}
	terms.mss = options.mss ? options.mss : 536; /* RFC 9293 3.7.1 */
	terms.client_shift = options.shift;
	terms.sack = options.sack;
	terms.timestamps = options.timestamps;
	terms.ecn = service->ecn && (segment->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
	cookie = make_cookie(key, &segment->key, segment->seq, period, &terms);
	tsval = ((__u32)(cluster_time_ns() / 1000000) & ~TSVAL_OPTION_MASK) | tsval_bits(&terms);

	answer.tcp.seq = bpf_htonl(cookie);
	answer.tcp.ack = bpf_htonl(segment->seq + 1);
	answer.tcp.flags = TCP_SYN | TCP_ACK | (terms.ecn ? TCP_ECE : 0);
	answer.tcp.window = bpf_htons(INITIAL_WINDOW);
	put_syn_options(&answer, service, &terms, tsval, options.tsval);
	count_event(EVENT_SYN);
	return send_answer(ctx, segment, &answer, checksum);
malformed:
	count_drop(DROP_MALFORMED);
	return VERDICT_DROP;
}

/* Has somebody who knows these numbers finished our handshake a while ago, and has no record yet? */
static __always_inline bool is_proof_of(const struct proof *known, const struct segment *segment)
{
	return known && known->mss && segment->ack == known->server_isn + 1 &&
	       segment->seq - known->client_isn < 1 << 20 &&
	       bpf_ktime_get_coarse_ns() - known->created_ns < PROOF_LIFETIME_NS;
}

/*
 * Does this packet, of no flow we know, belong to a connection that has
 * proved itself: by its own cookie (it is the handshake's ACK or the first
 * payload), or by the proof that its handshake's ACK left?
 */
static __noinline bool prove(context_t *ctx, const struct segment *segment,
				  const struct service *service, struct proof *proof)
{
	struct proof *known = bpf_map_lookup_elem(&proofs, &segment->key);
	struct tcp_options options;
	struct cookie_terms terms = {};

	if (is_proof_of(known, segment)) {
		*proof = *known;
		return true;
	}
	if (read_options(ctx, segment, &options) == CHECKSUM_WRONG)
		return false;
	if (!check_cookie(segment, segment->seq - 1, options.timestamps, options.tsecr, &terms))
		return false;
	*proof = (struct proof){
		.client_isn = segment->seq - 1,
		.server_isn = segment->ack - 1,
		.mss = terms.mss,
		.tcp_options = (terms.sack ? TCP_OPTION_SACK : 0) |
			       (terms.timestamps ? TCP_OPTION_TIMESTAMPS : 0) |
			       (terms.ecn ? TCP_OPTION_ECN : 0),
		.created_ns = bpf_ktime_get_coarse_ns(),
	};
	if (terms.client_shift != WSCALE_NONE) {
		proof->tcp_options |= TCP_OPTION_WINDOW_SCALE;
		proof->window_scales = terms.client_shift << 4 | service->window_scale;
	}
	count_event(EVENT_COOKIE_OK);
	/* For what comes right behind, before there is a record: it carries no cookie of its own. */
	if (known) /* in place: an entry of an LRU map costs more to replace than to write */
		*known = *proof;
	else
		bpf_map_update_elem(&proofs, &segment->key, proof, BPF_ANY);
	return true;
}

/* What a proof was for is done; a late repetition must not be taken for a new connection. */
static __always_inline void spend_proof(const struct flow_key *key, struct flow *flow, __u64 now)
{
	struct proof *known = bpf_map_lookup_elem(&proofs, key);

	if (!known)
		return;
	/* The client has begun anew while the daemon decided: its SYN met no record. */
	if (known->mss && known->server_isn != flow->cookie && (__s32)(known->client_isn - flow->client_isn) > 0) {
		flow->syn_isn = known->client_isn;
		flow->syn_seen_ns = now;
		return;
	}
	known->mss = 0;
}

/* A client asks whether its silent connection still stands (RFC 9293 3.8.4): it does. */
static __noinline int answer_keep_alive(context_t *ctx, const struct segment *segment,
					     const struct proof *proof)
{
	struct tcp_options options;
	struct answer answer = {};
	enum checksum_state checksum;

	checksum = read_options(ctx, segment, &options);
	if (checksum == CHECKSUM_WRONG)
		goto malformed;
	answer.tcp.seq = bpf_htonl(proof->server_isn + 1);
	answer.tcp.ack = bpf_htonl(proof->client_isn + 1);
	answer.tcp.flags = TCP_ACK;
	answer.tcp.window = bpf_htons(INITIAL_WINDOW >> (proof->window_scales & 15));
	if (options.timestamps) {
		put_timestamps(answer.options, options.tsecr, options.tsval);
		answer.options_length = 12;
	}
	return send_answer(ctx, segment, &answer, checksum);
malformed:
	count_drop(DROP_MALFORMED);
	return VERDICT_DROP;
}
