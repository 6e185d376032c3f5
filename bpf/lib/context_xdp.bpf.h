/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* context_xdp: what the data path needs of its hook, at XDP (real network cards). */
#pragma once

typedef struct xdp_md context_t;

#define VERDICT_NEXT XDP_PASS
#define VERDICT_PASS XDP_PASS
#define VERDICT_DROP XDP_DROP
#define HOOK_SECTION "xdp"

static __always_inline void *context_data(const context_t *ctx)
{
	return (void *)(long)*(volatile const __u32 *)&ctx->data;
}

/* Read each time: a copy that the compiler keeps in 32 bits is no packet's end to the verifier. */
static __always_inline void *context_end(const context_t *ctx)
{
	return (void *)(long)*(volatile const __u32 *)&ctx->data_end;
}

static __always_inline __u32 context_length(const context_t *ctx)
{
	return bpf_xdp_get_buff_len((context_t *)ctx);
}

/* A switch floods frames for others, too; generic XDP sees them. */
static __always_inline bool context_is_for_us(const context_t *ctx, const __u8 *mac)
{
	const __u8 *destination = context_data(ctx);

	if ((void *)destination + ETH_ALEN > context_end(ctx))
		return false;
#pragma clang loop unroll(full)
	for (int i = 0; i < ETH_ALEN; i++)
		if (destination[i] != mac[i])
			return false;
	return true;
}

/* What a daemon holds it sends itself. */
static __always_inline bool context_was_held(const context_t *ctx)
{
	return false;
}

/* Nothing comes in once more at this hook but from others. */
static __always_inline bool context_came_again(const context_t *ctx)
{
	return false;
}

/* Makes the first bytes readable in place; false if there are not as many. */
static __always_inline bool context_pull(context_t *ctx, __u32 bytes)
{
	return context_data(ctx) + bytes <= context_end(ctx);
}

static __always_inline long context_load(context_t *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_xdp_load_bytes(ctx, offset, to, length);
}

static __always_inline long context_store(context_t *ctx, __u32 offset, void *from, __u32 length)
{
	return bpf_xdp_store_bytes(ctx, offset, from, length);
}

static __always_inline long context_resize(context_t *ctx, __u32 length)
{
	return bpf_xdp_adjust_tail(ctx, (int)length - (int)context_length(ctx));
}

static __always_inline long context_store_head(context_t *ctx, void *from, __u32 length)
{
	return context_store(ctx, 0, from, length);
}

/* What an agent makes for its own TCP comes in behind this hook. */
static __always_inline bool context_passes_by(const context_t *ctx)
{
	return false;
}

/* Makes room for ENCAP_LEN bytes behind the Ethernet header; its content is undefined. */
static __always_inline long context_grow(context_t *ctx)
{
	return bpf_xdp_adjust_head(ctx, -ENCAP_LEN);
}

static __always_inline int context_send_back(context_t *ctx)
{
	return XDP_TX;
}

static __always_inline int context_send(context_t *ctx, __u32 ifindex)
{
	return ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(ifindex, 0);
}

/* Takes ENCAP_LEN bytes behind the Ethernet header away. */
static __always_inline long context_shrink(context_t *ctx)
{
	struct ethhdr ethernet;

	if (context_load(ctx, 0, &ethernet, sizeof(ethernet)) || bpf_xdp_adjust_head(ctx, ENCAP_LEN))
		return -1;
	return context_store(ctx, 0, &ethernet, sizeof(ethernet));
}

/*
 * To where the kernel's routes say. It resolves no neighbour for us: without one the
 * packet goes to where it came from, a spray or a router, which knows the way.
 */
static __always_inline int context_send_routed(context_t *ctx, __be32 from, __be32 to)
{
	struct bpf_fib_lookup fib = {
		.family = 2, /* AF_INET */
		.l4_protocol = IPPROTO_TCP,
		.ifindex = ctx->ingress_ifindex,
		.ipv4_src = from,
		.ipv4_dst = to,
	};

	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS ||
	    context_store(ctx, 0, fib.dmac, ETH_ALEN) || context_store(ctx, ETH_ALEN, fib.smac, ETH_ALEN))
		return context_send_back(ctx);
	return context_send(ctx, fib.ifindex);
}

#define TCP_CHECK_AT (sizeof(struct ethhdr) + sizeof(struct iphdr) + offsetof(struct tcp_header, check))

/* Its addresses and its header have changed by so much (RFC 1624). Sums are whole here. */
static __always_inline long context_mend_tcp_checksum(context_t *ctx, __u32 addresses, __u32 header)
{
	__u64 sum;
	__u16 check;

	if (context_load(ctx, TCP_CHECK_AT, &check, sizeof(check)))
		return -1;
	sum = (__u64)(__u16)~check + addresses + header;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	check = ~sum;
	return context_store(ctx, TCP_CHECK_AT, &check, sizeof(check));
}
