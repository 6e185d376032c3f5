/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* splice: connections to servers that dispatchers open, and what is rewritten between them and clients. */
#pragma once

#include "wire.h"

/* How a flow's segments change between client and server, besides their numbers. */
#define SPLICE_NO_TIMESTAMPS 1 /* the client has agreed to them, the server has not */
#define SPLICE_NO_ECN 2 /* the same */
#define SPLICE_SPLIT 4 /* the server's host has an agent, which was told: it rewrites what the server says */

/*
 * A flow's connection to a server without an agent (docs/protocol/splice.md). It begins at
 * the client's own number, so only the server's differ.
 */
struct splice {
	__be32 address; /* ours, from which it is: a dispatcher's splice address */
	__be16 port; /* 0: this flow is not spliced */
	__be16 server_port;
	__u32 ahead; /* the server's numbers that the client knows, less the server's own */
	__u32 clock_ahead; /* the same of its timestamps */
	__u8 to_server_shift; /* left, of the client's window field */
	__s8 to_client_shift; /* left if positive, of the server's */
	__u8 changes; /* SPLICE_* */
	__u8 pad;
};

enum spliced_state {
	SPLICED_CONNECTING = 1, /* the server's packets are the daemon's */
	SPLICED_OPEN = 2,
	SPLICED_FOLLOWED = 3, /* as OPEN, and its answers are followed (struct overheard) */
};

/*
 * A spliced flow as its server's packets name it: in their key the server is the client,
 * and the splice address the VIP.
 */
struct spliced {
	struct flow_key flow;
	__u32 state; /* enum spliced_state */
	struct splice splice; /* as in its record */
	__u32 server_ack; /* the latest of the server's, of the client's numbers */
	__u32 clock; /* of its SYN-ACK, where that came here; else 0 */
	__u32 pad;
	/* next hop towards the client, as the data path last looked it up */
	__u64 resolved_ns;
	__u32 ifindex;
	__u8 destination_mac[6];
	__u8 source_mac[6];
};

/*
 * Agent: a connection that a dispatcher opens to a server here for a client's flow, and what
 * becomes of what the server says on it (docs/protocol/splice.md 8). It is found as its
 * packets name it, the splice address being the client, until its socket has spoken; then
 * the socket has it.
 */
struct split {
	__be32 client; /* the flow's ends */
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
	__u32 client_isn; /* of its SYN */
	__u32 known_isn; /* as which the client knows the server's */
	__u32 echo; /* the client's latest; 0 without timestamps */
	__u32 server_isn; /* this and the next three: of its SYN-ACK, once `answered` */
	__u32 clock;
	__u32 ahead; /* as in struct splice */
	__u32 clock_ahead;
	__s8 to_client_shift;
	__u8 answered;
	__u8 window_scales; /* as in the option */
	__u8 tcp_options;
	__u32 pad;
	__u64 told_ns; /* CLOCK_MONOTONIC_COARSE */
};
