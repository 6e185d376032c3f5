/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* context_tc: what the data path needs of its hook, at tc ingress (offloads kept). */
#pragma once

typedef struct __sk_buff context_t;

/* Not for us: whoever is next at this hook may look at it. */
#define VERDICT_NEXT TC_ACT_UNSPEC
#define VERDICT_PASS TC_ACT_OK
#define VERDICT_DROP TC_ACT_SHOT
#define HOOK_SECTION "tcx/ingress"

/* Volatile: a compiler that puts two loads together makes of what both give a number, no pointer. */
static __always_inline void *context_data(const context_t *ctx)
{
	return (void *)(long)*(volatile const __u32 *)&ctx->data;
}

static __always_inline void *context_end(const context_t *ctx)
{
	return (void *)(long)*(volatile const __u32 *)&ctx->data_end;
}

static __always_inline __u32 context_length(const context_t *ctx)
{
	return ctx->len;
}

/* A switch floods frames for others, too; they come by here before anybody has looked. */
static __always_inline bool context_is_for_us(const context_t *ctx, const __u8 *mac)
{
	return ctx->pkt_type == 0; /* PACKET_HOST */
}

/* Makes the first bytes readable in place; false if there are not as many. */
static __always_inline bool context_pull(context_t *ctx, __u32 bytes)
{
	return context_data(ctx) + bytes <= context_end(ctx) || bpf_skb_pull_data(ctx, bytes) == 0;
}

static __always_inline long context_load(context_t *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_skb_load_bytes(ctx, offset, to, length);
}

static __always_inline long context_store(context_t *ctx, __u32 offset, const void *from, __u32 length)
{
	return bpf_skb_store_bytes(ctx, offset, from, length, 0);
}

/* The frame's first bytes, of which the Ethernet header's count in no sum. */
static __always_inline long context_store_head(context_t *ctx, const void *from, __u32 length)
{
	return bpf_skb_store_bytes(ctx, 0, from, length, BPF_F_RECOMPUTE_CSUM);
}

/* What this host's agent has made for its own TCP. */
static __always_inline bool context_passes_by(const context_t *ctx)
{
	return ctx->mark == PASS_BY_MARK;
}

/* What our own daemon has held. */
static __always_inline bool context_was_held(const context_t *ctx)
{
	return ctx->mark == HELD_MARK;
}

/* What was passed to a dispatcher that has died. */
static __always_inline bool context_came_again(const context_t *ctx)
{
	return ctx->mark == AGAIN_MARK;
}

/*
 * All behind the IPv4 header is to be written anew. The kernel does not change the tail of
 * what came encapsulated from a virtual interface, which is marked as such still
 * (context_grow()): there bytes come, or go, behind that header.
 */
static __always_inline long context_resize(context_t *ctx, __u32 length)
{
	if (length == ctx->len || !bpf_skb_change_tail(ctx, length, 0))
		return 0;
	return bpf_skb_adjust_room(ctx, (__s32)(length - ctx->len), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/*
 * Makes room for ENCAP_LEN bytes behind the Ethernet header; its content is undefined.
 * A packet that came encapsulated from a virtual interface is still marked as such when
 * it is unpacked, with its inner headers where they were: the kernel refuses to mark it
 * again, and need not.
 */
static __always_inline long context_grow(context_t *ctx)
{
	if (!bpf_skb_adjust_room(ctx, ENCAP_LEN, BPF_ADJ_ROOM_MAC,
				 BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					 BPF_F_ADJ_ROOM_FIXED_GSO))
		return 0;
	return bpf_skb_adjust_room(ctx, ENCAP_LEN, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/* Takes ENCAP_LEN bytes behind the Ethernet header away. */
static __always_inline long context_shrink(context_t *ctx)
{
	return bpf_skb_adjust_room(ctx, -ENCAP_LEN, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/* To where the kernel's routes say, not to where the packet came from. */
static __always_inline int context_send_routed(context_t *ctx, __be32 from, __be32 to)
{
	ctx->mark = PASS_BY_MARK;
	return bpf_redirect_neigh(ctx->ifindex, NULL, 0, 0);
}

static __always_inline int context_send_back(context_t *ctx)
{
	ctx->mark = PASS_BY_MARK;
	return bpf_redirect(ctx->ifindex, 0);
}

static __always_inline int context_send(context_t *ctx, __u32 ifindex)
{
	ctx->mark = PASS_BY_MARK;
	return bpf_redirect(ifindex, 0);
}

#define TCP_CHECK_AT (sizeof(struct ethhdr) + sizeof(struct iphdr) + offsetof(struct tcp_header, check))

/* Its addresses and its header have changed by so much; who completes a sum later has the header's. */
static __always_inline long context_mend_tcp_checksum(context_t *ctx, __u32 addresses, __u32 header)
{
	return bpf_l4_csum_replace(ctx, TCP_CHECK_AT, 0, addresses, BPF_F_PSEUDO_HDR) ||
	       bpf_l4_csum_replace(ctx, TCP_CHECK_AT, 0, header, 0);
}
