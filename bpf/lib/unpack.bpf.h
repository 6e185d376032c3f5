/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * unpack: an encapsulated packet at a backend: where its headers are, the TCP
 * segment inside, and that one's way up to this host's TCP.
 */
#pragma once

/* An encapsulated packet's headers, where they lie; void after any change of the packet. */
struct headers {
	struct ethhdr *ethernet;
	struct encapsulated *encapsulated;
	struct encapsulation *outer;
	struct iphdr *ip;
	struct tcp_header *tcp;
};

#define PACKET_HOST 0

#define META_AT (sizeof(struct ethhdr) + ENCAP_LEN - sizeof(struct meta))
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

/* Of a segment without its encapsulation. */
#define UNPACKED_TCP (sizeof(struct ethhdr) + sizeof(struct iphdr))
#define UNPACKED_CHECK (UNPACKED_TCP + offsetof(struct tcp_header, check))

static __always_inline bool replace_half(struct __sk_buff *skb, __u32 field, __be16 before, __be16 after)
{
	return !bpf_l4_csum_replace(skb, UNPACKED_CHECK, before, after, 2) &&
	       !bpf_skb_store_bytes(skb, UNPACKED_TCP + field, &after, 2, 0);
}

static __always_inline bool replace_word(struct __sk_buff *skb, __u32 field, __u32 old, __u32 new)
{
	__be32 before = bpf_htonl(old), after = bpf_htonl(new);

	return !bpf_l4_csum_replace(skb, UNPACKED_CHECK, before, after, 4) &&
	       !bpf_skb_store_bytes(skb, UNPACKED_TCP + field, &after, 4, 0);
}

/* The segment as its socket here knows it. */
static __always_inline bool unpack(struct __sk_buff *skb, const struct segment *segment)
{
	return decapsulate(skb) && (segment->key.client_port == segment->client_port ||
				    replace_half(skb, offsetof(struct tcp_header, source), segment->client_port,
						 segment->key.client_port));
}

/* Up to this host's TCP, or to the socket that was just assigned. */
static __always_inline int deliver(struct __sk_buff *skb, const struct segment *segment)
{
	if (!unpack(skb, segment))
		return drop(DROP_REWRITE);
	count_event(EVENT_RECEIVED);
	return TC_ACT_OK;
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

static __always_inline bool read_inner(const struct headers *h, struct segment *segment)
{
	__u32 length = bpf_ntohs(h->ip->tot_len);
	__u32 header_length = h->tcp->offset >> 4 << 2;

	if (header_length < sizeof(struct tcp_header) || length < sizeof(struct iphdr) + header_length)
		return false;
	segment->client = h->ip->saddr;
	segment->vip = h->ip->daddr;
	segment->key = flow_key_v4(h->ip->saddr, h->ip->daddr, h->tcp->source, h->tcp->dest);
	segment->client_port = h->tcp->source;
	segment->window = bpf_ntohs(h->tcp->window);
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
