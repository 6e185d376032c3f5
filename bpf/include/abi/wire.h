/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* wire: what nodes say to each other: the option of their packets, and what is in the encapsulation. */
#pragma once

/* One client connection as the client's packets name it. */
struct flow_key {
	__u8 client_addr[16];
	__u8 vip_addr[16];
	__be16 client_port;
	__be16 vip_port;
};

/*
 * The option that our packets carry in their Geneve header
 * (docs/protocol/encapsulation.md). Same bytes in every packet of a flow
 * between two handoffs, so a flow record holds them ready-made.
 *
 *   0                   1                   2                   3
 *   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
 *  +---------------+---------------+---------------+---------------+
 *  |    version    |     kind      |    key id     |    reason     |
 *  +---------------+---------------+---------------+---------------+
 *  |                             epoch                             |
 *  +---------------------------------------------------------------+
 *  |         start: client sequence at which a request starts      |
 *  +-------------------------------+-------+-------+---------------+
 *  |              mss              |  snd  |  rcv  |  tcp options  |
 *  +-------------------------------+-------+-------+---------------+
 *  |          server port          |            requests           |
 *  +-------------------------------+-------------------------------+
 *  |                             value                             |
 *  +---------------------------------------------------------------+
 *  |                              tag                              |
 *  |                                                               |
 *  +---------------------------------------------------------------+
 *  All fields big-endian, but the tag (SipHash's own little-endian bytes).
 */
struct meta {
	__u8 version;
	__u8 kind; /* enum meta_kind */
	__u8 key_id;
	__u8 reason; /* enum refusal, in REFUSED; 1 in an ECHO_REPLY with feedback */
	__be32 epoch;
	__be32 start;
	__be16 mss;
	__u8 window_scales; /* client's shift << 4 | ours; 0 without the option */
	__u8 tcp_options; /* TCP_OPTION_*, CARE_* */
	__be16 server_port; /* where the server listens; 0: the VIP's port */
	__be16 requests; /* that an owner has had, or answers that it has given; docs/protocol/handoff.md */
	__be32 value; /* REQUEST: our ISN; PROBE_ANSWER: the server's rcv_nxt; ECHO_REPLY: feedback; ... */
	__u8 tag[8];
};

#define META_VERSION 1

/*
 * Of a packet that a dispatcher's data path or daemon sends, or an agent's to its own host's TCP:
 * where both are on one host, the other of them lets it by.
 */
#define PASS_BY_MARK 0x545a0007
/* Of a packet of an agent's daemon's, which comes in as from a connection's client (lib/unread.bpf.h). */
#define TURN_MARK 0x545a0009
/* Of a client's bytes that a dispatcher's daemon has held: to where they go now (dispatch_tc.bpf.c). */
#define HELD_MARK 0x545a000a
/* Of a client's packet that comes in once more: it was passed to a dispatcher that has died. */
#define AGAIN_MARK 0x545a000b

enum meta_kind {
	META_FORWARD = 1, /* dispatcher -> backend: a packet of a flow */
	META_REQUEST = 2, /* dispatcher's data path -> owner's daemon */
	META_PROBE = 3, /* dispatcher -> backend: how far did this flow get? */
	META_PROBE_ANSWER = 4, /* backend -> dispatcher */
	META_REFUSED = 5, /* backend -> dispatcher: not rebuilt, packet enclosed */
	META_ICMP = 6, /* dispatcher -> backend: an ICMP error about a flow */
	META_ECHO = 7, /* dispatcher -> backend: are you there? */
	META_ECHO_REPLY = 8, /* backend -> dispatcher: its data path is */
	META_UNHEARD = 9, /* as REQUEST: a request again, whose backend has fallen silent */
	/* docs/protocol/handoff.md */
	META_HANDOFF = 10, /* dispatcher's data path -> owner: its request goes to another */
	META_HELD = 11, /* owner -> dispatcher: not now, packet enclosed */
	META_RELEASE = 12, /* dispatcher -> owner: give the flow up */
	META_RELEASED = 13, /* owner -> dispatcher: given up */
	META_DONE = 14, /* owner's daemon -> dispatcher: what held you up has changed */
	META_VACATED = 15, /* owner -> dispatcher: the server has closed */
	META_GC = 16, /* owner -> the one before it: an acknowledgement for your range */
	META_RETIRED = 17, /* older owner -> the one after it: the client has had all of mine */
	META_NEXT = 18, /* as REQUEST: what starts at a boundary of a flow that has an owner */
	/* docs/protocol/spray.md */
	META_SPRAYED = 19, /* spray -> dispatcher: a client's packet, as it came */
	META_BEAT = 20, /* spray or dispatcher -> spray or dispatcher: are you there? */
	META_BEAT_REPLY = 21, /* dispatcher or spray -> who asked: its data path is */
	/* docs/protocol/replication.md */
	META_PASSED = 22, /* dispatcher -> the flow's keeper: a client's packet, as it came */
	META_RECORDS = 23, /* dispatcher's daemon -> another's: what has changed */
	/* docs/protocol/splice.md */
	META_SPLICE = 24, /* dispatcher's data path -> its daemon: a server's packet, as it came */
	META_SPLIT = 25, /* dispatcher's daemon -> backend: a connection is opened to you; your answers are that flow's */
	META_SPLIT_PROBE = 26, /* as PROBE, of such a connection */
	META_SPLIT_RELEASE = 27, /* as RELEASE, of such a connection */
	/* docs/protocol/takeover.md */
	META_SUPPORT = 28, /* backend's daemon -> dispatcher's: of an answer that may outlive the backend */
	/* docs/protocol/handoff.md 9.1a */
	META_ANSWERED = 29, /* owner's daemon -> dispatcher: so many requests are, up to there */
	/* docs/protocol/replication.md 4.7 */
	META_ENTRUSTED = 30, /* keeper -> its heir: a connection's first request, and what its record says */
	META_ELSEWHERE = 31, /* owner of before, or any backend -> dispatcher: who has the flow, since when */
};

/* Why an owner does not give a flow up. */
enum held {
	HELD_ANSWERING = 1, /* unfinished, or nobody knows where the answer ends */
	HELD_UNACKED = 2,
	HELD_CLOSING = 3, /* the server closes behind it */
	HELD_STRANGER = 4, /* no such connection here */
};

/* `reason` of a FORWARD: the dispatcher keeps the flow's first request, and gives it to another one if this one's server closes */
#define FORWARD_KEPT 1
/* and, a bit beside that, which its tag does not cover: a request begins with this packet's payload */
#define FORWARD_BEGINS 2
/* The `reason` of a VACATED: its server has said nothing but interim answers, up to `value`, to such a request. */
#define VACATED_KEPT 1
/* Said again, because something has come that nobody here can read; enclosed as it came. */
#define VACATED_ANEW 2

/* `reason` of a PROBE_ANSWER: does the socket stand? */
#define PROBE_GONE 0
#define PROBE_STANDS 1
#define PROBE_IDLE 2 /* and has said all that it owes to so many requests, and the client has all */
#define PROBE_NOT_BEGUN 3 /* and has said nothing to its first request but interim answers (1xx) */
#define PROBE_RECKONED 4 /* has answered all that it was given: `requests` of them. Only to who asks how many */

/* `reason` of a PROBE, to the owner: how many requests have been answered, if that is all? */
#define PROBE_RECKON 1
/* To one that is not known to have the flow: has it, under a later epoch? */
#define PROBE_WHOSE 2

/* `reason` of a RELEASE and of a RELEASED. */
#define RELEASE_HALF_PIPE 1
#define RELEASE_FORSAKEN 2 /* another one goes on with its answer: whatever is owed */
#define RELEASE_UNPROTECTED 3 /* half-pipe, unless the answer is one that may outlive its backend */
#define RELEASED_DRAINED 1
#define RELEASED_HALF_PIPE 2

/* Bits of a PASSED's `reason`: who passes keeps no flows yet; its `value`: how often it has been passed before. */
#define PASSED_BY_JOINING 1
/* And of a SPRAYED's, too: it was sent to another one before, that has died, and may be late. */
#define CAME_AGAIN 2

/* `reason` of a BEAT and of a BEAT_REPLY: what the sender is. */
enum member_role {
	MEMBER_SPRAY = 1,
	MEMBER_DISPATCHER = 2,
};

enum refusal {
	REFUSAL_NONE = 0,
	REFUSAL_NO_LISTENER = 1,
	REFUSAL_ACCEPT_QUEUE_FULL = 2,
	REFUSAL_BEHIND = 3, /* where the packet before it goes, it goes too */
	REFUSAL_NO_SEAT = 4, /* of this flow alone: its older answers, or another's, have its place */
};

#define TCP_OPTION_WINDOW_SCALE 1
#define TCP_OPTION_SACK 2
#define TCP_OPTION_TIMESTAMPS 4
#define TCP_OPTION_ECN 8
#define TCP_OPTIONS_AGREED 15
/* What a backend is to do about the answers, beside these. */
#define CARE_FOLLOW 16 /* know where each ends */
#define CARE_HEAD 32 /* the first request is a HEAD */
#define CARE_OUTLIVE 64 /* a server's closing is not the client's, while nothing is owed */
#define CARE_PARK 128 /* its socket may wait for the flow to come back */

#define GENEVE_PORT 6081
#define PEERS_PORT 6082 /* the same, between dispatchers' daemons */
#define GENEVE_VNI 0x54505au /* "TPZ" */
#define GENEVE_OPTION_CLASS 0xff54 /* experimental range */
#define GENEVE_OPTION_TYPE 0x81 /* critical */

/* IPv4 20, UDP 8, Geneve 8, option header 4, option 32. */
#define ENCAP_LEN 72

/* As the value of an ECHO_REPLY, whose reason is 1 then: 10 bits, 10 bits, 12 bits. */
#define FEEDBACK_CPU_SHIFT 22
#define FEEDBACK_MEMORY_SHIFT 12
#define FEEDBACK_QUEUE_MAX 4095
