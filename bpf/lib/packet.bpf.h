/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* packet: the parts of a client's packet, and its TCP options. */
#pragma once

/* A client's TCP segment, read once. */
struct segment {
	struct flow_key key; /* at a backend: with the port on which it sits there (seats.bpf.h) */
	__be32 client; /* the addresses of the key, as on the wire */
	__be32 vip;
	__u32 seq;
	__u32 ack;
	__u16 ip_length; /* the whole IP packet */
	__u16 payload;
	__u8 flags;
	__u8 header_length; /* TCP's, 20..60 */
	__be16 client_port; /* as on the wire */
	__u16 window;
};

#define WSCALE_NONE 15

struct tcp_options {
	__u16 mss; /* 0: absent */
	__u8 shift; /* WSCALE_NONE: absent */
	bool sack;
	bool timestamps;
	__u32 tsval;
	__u32 tsecr;
};

#define TCP_OPTIONS_MAX 40
/* Buffers of options are longer, so that any option may be read from any place. */
#define TCP_OPTIONS_ROOM (TCP_OPTIONS_MAX + 12)

/* A walk over the option bytes; the verifier sees one step of it (bpf_loop, 5.17). */
struct option_cursor {
	const __u8 *bytes;
	__u32 length;
	__u32 at;
	struct tcp_options found;
};

static __always_inline __u32 get_be32(const __u8 *from)
{
	return (__u32)from[0] << 24 | from[1] << 16 | from[2] << 8 | from[3];
}

/*
 * Timestamps of a packet that the client may have overtaken since: TCP does not know the
 * option, and does not refuse the packet for them (handoff.md 5.4d).
 */
#define AGED_TIMESTAMPS 253

static long parse_option(__u64 index, struct option_cursor *cursor)
{
	__u32 at = cursor->at;
	const __u8 *option;
	__u8 kind, size;

	if (at >= cursor->length || at >= TCP_OPTIONS_MAX)
		return 1;
	kind = cursor->bytes[at];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		cursor->at = at + 1;
		return 0;
	}
	size = cursor->bytes[at + 1];
	if (size < 2 || at + size > cursor->length || at + size > TCP_OPTIONS_MAX)
		return 1;
	option = cursor->bytes + at;
	if (kind == 2 && size == 4) {
		cursor->found.mss = option[2] << 8 | option[3];
	} else if (kind == 3 && size == 3) {
		/* RFC 7323 2.3: more than 14 counts as 14. */
		cursor->found.shift = option[2] > 14 ? 14 : option[2];
	} else if (kind == 4 && size == 2) {
		cursor->found.sack = true;
	} else if (kind == 8 && size == 10) {
		cursor->found.timestamps = true;
		cursor->found.tsval = get_be32(option + 2);
		cursor->found.tsecr = get_be32(option + 6);
	} else if (kind == AGED_TIMESTAMPS && size == 10 && !cursor->found.timestamps) {
		cursor->found.tsval = get_be32(option + 2);
		cursor->found.tsecr = get_be32(option + 6);
	}
	cursor->at = at + size;
	return 0;
}

/*
 * RFC 9293 3.1, RFC 7323, RFC 2018. `bytes` holds TCP_OPTIONS_ROOM bytes, of which
 * `length` (at most TCP_OPTIONS_MAX) count. What is cut short or senseless ends the list.
 */
static __always_inline int parse_tcp_options(const __u8 *bytes, __u32 length, struct tcp_options *options)
{
	struct option_cursor cursor = { .bytes = bytes, .length = length, .found.shift = WSCALE_NONE };

	/* By far the most: NOP NOP timestamps. */
	if (length == 12 && bytes[0] == 1 && bytes[1] == 1 && bytes[2] == 8 && bytes[3] == 10) {
		cursor.found.timestamps = true;
		cursor.found.tsval = get_be32(bytes + 4);
		cursor.found.tsecr = get_be32(bytes + 8);
	} else {
		bpf_loop(TCP_OPTIONS_MAX, parse_option, &cursor, 0);
	}
	*options = cursor.found;
	return 0;
}
