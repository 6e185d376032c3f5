/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * abi.h: what the BPF programs and user space agree on: map keys and values,
 * the encapsulation's option, drop reasons. Its Rust mirror is
 * datapath/src/abi.rs; a test holds the two against each other by BTF.
 *
 * Numbers are in host byte order unless their type is __be16 or __be32.
 * Addresses are 16 bytes, IPv4 mapped (::ffff:a.b.c.d).
 */
#ifndef TRAPEZE_ABI_H
#define TRAPEZE_ABI_H

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
	META_ELSEWHERE = 31, /* owner of before -> dispatcher: who has the flow, since when */
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

/* `reason` of a PROBE: how many requests have been answered, if that is all? */
#define PROBE_RECKON 1

/* `reason` of a RELEASE and of a RELEASED. */
#define RELEASE_HALF_PIPE 1
#define RELEASE_FORSAKEN 2 /* another one goes on with its answer: whatever is owed */
#define RELEASE_UNPROTECTED 3 /* half-pipe, unless the answer is one that may outlive its backend */
#define RELEASED_DRAINED 1
#define RELEASED_HALF_PIPE 2

/* `reason` of a PASSED, if who passes keeps no flows yet; its `value`: how often it has been passed before. */
#define PASSED_BY_JOINING 1

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

/*
 * One service address; value of the services map. Under port 0 stands that the address is
 * one of services, or a dispatcher's splice address.
 */
struct service_key {
	__u8 addr[16];
	__be16 port;
	__u16 pad;
};

struct service {
	/*
	 * Of a splice address, on a dispatcher: the slot of whose it is; NO_DISPATCHER: this one's, or one's that has
	 * left. On a spray: the second of its monotonic clock when a packet last came to it.
	 */
	__u32 id;
	__u16 mss; /* the most that we tell clients, in bytes; 0: a splice address */
	__u8 window_scale; /* our shift, 0..14 */
	__u8 ecn; /* 1: agree to ECN when asked */
};

enum flow_state {
	FLOW_READING = 1, /* head incomplete: payload goes to the daemon */
	FLOW_ESTABLISHED = 2, /* assigned: everything is forwarded */
	FLOW_CLIENT_FIN = 3, /* as ESTABLISHED, and the client has said FIN */
	FLOW_RESET = 4, /* as ESTABLISHED, and the client has said RST */
	FLOW_VACANT = 5, /* its server has closed, and nothing is owed: as a proved connection */
};

/* What starts at a flow's boundary (core/src/head/framing.rs). */
enum expected {
	EXPECT_HEAD = 0,
	EXPECT_CHUNK = 1, /* the size of a chunked body's first chunk */
	EXPECT_CHUNK_AFTER = 2, /* the end of a chunk, and the size of the next */
	EXPECT_TRAILER = 3, /* a line behind the last chunk */
	EXPECT_UPGRADED = 4, /* a request, if the answer to the one before is no 101: the daemon asks the owner */
};

/* Of a flow, in `marks`. */
#define MARK_TUNNEL 1 /* no boundaries: TLS, HTTP/2, an upgrade, a pool that hands nothing over */
#define MARK_HELD 2 /* the daemon is at work at `next` */
#define MARK_MOVING 4 /* no word of the new owner: its packets go by way of `previous` */
#define MARK_PIPELINES 8 /* this client asks before it is answered: the daemon cuts */
#define MARK_SHORT 16 /* its owner has it by the short way: the one before may still refuse */
#define MARK_SHORT_BEFORE 32 /* so had the one before */
#define MARK_RELEASING 64 /* its owner has been asked to give it up, and may have */
#define MARK_TAKING 128 /* its owner has died, or its request is kept as it comes: what the client says is the daemon's to hear */
#define MARK_PROTECTED 256 /* an answer may outlive its owner: the daemon keeps what is asked ahead of its end */
#define MARK_ENDS 512 /* with PROTECTED: what is asked from `answer_end` on is not ahead of it */
#define MARK_LOST 1024 /* with TAKING: nobody will ever answer, and its client is to be reset where it is */
#define MARK_STAYED 2048 /* it has begun, or requests have stayed or moved: other dispatchers are not told yet */
#define MARK_UNSURE 4096 /* another dispatcher has told it, and requests may have stayed or moved since: its owner is to be asked */
#define MARK_ENTRUSTED 8192 /* placed by its keeper's data path: that one and its heir alone know it, so far */

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

/* Epochs of a flow that moves often run ahead of the clock by no more than this. */
#define EPOCH_LEAD_MAX (1 << 15)

/*
 * The flow record of DESIGN 3, as far as the data path needs it. One that has moved
 * looks as if its connection had begun there: docs/protocol/handoff.md 1.1.
 */
struct flow {
	struct meta meta; /* put in front of every packet, tag included */
	__u32 client_isn;
	__u32 server_isn;
	__u32 backend; /* slot in the backends map */
	__u32 state; /* enum flow_state */
	__u32 last_seq; /* the client's latest segment */
	__u32 last_ack;
	__u32 pool; /* where its backend was chosen from, by the number that the daemon gives it */
	__u32 syn_isn; /* of the SYN that syn_seen_ns tells of */
	__u64 created_ns; /* CLOCK_MONOTONIC */
	__u64 last_seen_ns; /* CLOCK_MONOTONIC_COARSE */
	__u64 syn_seen_ns; /* a SYN of the same 4-tuple came by: look twice */
	__u64 packets; /* client -> backend; what the daemon forwarded counts as one */
	__u64 bytes;
	__u64 object; /* what its latest request asks for, as far as it was placed: the policy's */
	__u64 acked_ns; /* CLOCK_MONOTONIC, when the client last acknowledged more; kept while `report` */
	__u32 charge_us; /* what that request adds to its backend's cost until it is finished */
	__u32 shared; /* how many the backend had when it was placed, this one included */
	__u16 kind; /* the policy's */
	__u8 class; /* the policy's */
	__u8 report; /* 1: tell the daemon when that request is finished */
	__u32 marks; /* MARK_* */
	__u64 asked_ns; /* CLOCK_MONOTONIC, when its latest request was placed */
	__u32 next; /* the client's sequence number at which the next request can start */
	__u32 expect; /* enum expected: what is there */
	__u32 asked_ack; /* what the client had acknowledged when its latest request began */
	__u32 requests; /* given to this owner since its setup */
	__u32 cookie; /* our SYN-ACK's number; server_isn moves with the owners */
	__u32 busy; /* 1: it is being changed; a copy of the packet that does it has to wait */
	/* The owner before, as long as it may take the flow back (MARK_MOVING and after). */
	struct meta before; /* its option; version 0: nothing to take back */
	__u32 previous; /* its slot */
	__u32 server_isn_before;
	__u32 requests_before;
	__u32 window; /* the field of the packet that last_ack is from, or of a later one */
	/* docs/protocol/replication.md */
	__u32 version; /* of the record, within its epoch; 0: no other dispatcher has had it */
	__be32 maker; /* the dispatcher that made this version */
	__u32 told; /* the state that others know it in */
	__u32 idle_end; /* its owner has said what it has answered: where its answers ended, */
	__u64 refreshed_ns; /* CLOCK_MONOTONIC, when others last told us that it lives, or we them */
	__u32 idle_epoch; /* in which epoch, */
	__u32 idle_requests; /* and of how many requests; 0: it has not */
	struct splice splice;
	__u32 turn; /* of the daemon's, at whose end others have been told of this version; 0: they have */
	__u32 answer_end; /* the server's number behind a protected answer (MARK_ENDS) */
	__u32 idle_from; /* with idle_end: where the request after those starts, */
	__u32 idle_heard; /* and 1: the owner has heard that the client has all */
	__u32 began; /* the client's sequence number at which its latest request starts, as far as is known */
	__u32 pad;
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

/* What the daemon makes of a record that it has read (lib/change.bpf.h). */
struct flow_change {
	struct flow_key key;
	__u32 pad;
	struct flow before;
	struct flow after;
};

enum flow_changed {
	FLOW_CHANGED = 0,
	FLOW_STALE = 1, /* it has changed since it was read: read it again */
	FLOW_GONE = 2,
};

/* A request of a flow is finished; sent to the daemon by the ring `reports`. */
struct finished {
	__u64 object;
	__u64 bytes; /* of the answer, as acknowledged; modulo 2^32 */
	__u64 elapsed_ns; /* from placing to the last byte's acknowledgement */
	__u64 ended_ns; /* CLOCK_MONOTONIC, when that came; 0: none has */
	__u32 charge_us;
	__u32 shared;
	__u32 pool;
	__u32 slot;
	__u16 kind;
	__u8 class;
	__u8 lost; /* 1: the client gave up before it had a byte */
	__u32 stood; /* its backend's count of these now, modulo 2^32 */
};

/* Where a backend is; value of the backends map (slot = index). */
struct backend {
	__u8 addr[16];
	__u8 name[32]; /* NUL-padded; empty: free slot */
	__be32 source; /* our address towards it */
	__u32 silent; /* 1: it does not answer heartbeats (the daemon says) */
	/* next hop, as the data path last looked it up */
	__u64 resolved_ns;
	__u32 ifindex;
	__u8 destination_mac[6];
	__u8 source_mac[6];
};

/* Connections that have been decided and that no client has closed yet. */
struct backend_load {
	__s64 active;
	__u64 total;
	__s64 cost_us; /* of requests that are not finished, as estimated */
	__u64 stood; /* requests placed by decisions that a policy has let stand for a while */
};

/* The longest head that is placed in the data path, in bytes. */
#define HEAD_MAX 2048
/* Pools that can have turns, and how many. */
#define POOLS_MAX 256
#define TURNS_MAX 512

/* What holds of all standing decisions; the one value of its map. */
struct standing {
	__u64 valid_until_ns; /* CLOCK_MONOTONIC: the daemon's lease; 0: none stands */
	__u64 k0; /* of the SipHash by which requests are alike */
	__u64 k1;
	__u32 generation; /* decisions of another one do not stand */
	__u32 epoch_floor; /* new records' epochs are no lower; 0: none */
};

/* A request that the daemon has placed, and where the like of it go. */
struct decision_key {
	__u64 likeness; /* of request line and Host line */
	__u32 service; /* id */
	__u32 pad;
};

#define SLOT_BY_TURNS 0xffffffffu

/* Whom a request goes to. */
struct turn {
	__u32 slot;
	__be16 server_port; /* where the server listens; 0: the VIP's port */
	__u16 pad;
};

/* Backends that are as good as `slot`, at most. */
#define OTHERS_MAX 3

struct decision {
	__u32 generation;
	__u32 pool; /* its number, as in a flow's record */
	__u32 slot; /* or SLOT_BY_TURNS */
	__be16 server_port; /* where the server listens; 0: the VIP's port */
	__u8 care; /* CARE_*: of the pool */
	__u8 stays; /* 1: for a connection that its owner keeps by it alone; a daemon opens the others */
	/* Of a policy that looks at loads; all 0 with others. */
	__u64 since_ns; /* CLOCK_MONOTONIC: `placed` counts from then */
	__u64 until_ns; /* the same: then the daemon is asked again; 0: never */
	__s64 most_us; /* so is it where everybody has more work than that (backend_load's cost_us) */
	__u32 charge_us; /* what a request adds to that */
	__u32 placed; /* requests so far */
	__u16 others_count;
	__u16 row; /* of `turns`, where the slot is SLOT_BY_TURNS */
	__u32 move_us; /* so much more than others its owner may have to do, and keep a connection */
	struct turn others[OTHERS_MAX];
};

/* A pool's backends in the order in which they are chosen, over and over. */
struct turns {
	__u64 next; /* counts on; daemon and data path both take turns */
	__u64 count; /* 0: this pool's policy wants to be asked each time */
	struct turn turns[TURNS_MAX];
};

/* Epochs: the cluster's clock in units of 2^20 ns, about 954 to a second. */
#define EPOCH_SHIFT 20

/* A bare handshake ACK with a valid cookie leaves this (LRU, bounded). */
struct proof {
	__u32 client_isn;
	__u32 server_isn;
	__u16 mss; /* 0: spent, its connection has a backend */
	__u8 window_scales;
	__u8 tcp_options;
	__u32 older_epoch; /* of the connection that this one takes the 4-tuple from; 0: none */
	__u64 created_ns;
};

/* SipHash keys. Slot of cookie_keys: rotation & 3, in the set of the cluster's first key or, 4 on, its second one. Slot of tag_keys: key id. */
struct siphash_key {
	__u64 k0;
	__u64 k1;
	__u64 generation; /* cookie: rotation number; tag: 1 when in use */
};

/* In a node's `among`: and they are in several sub-clusters. */
#define AMONG_SUB_CLUSTERS 2

/* The node that runs the program. */
struct node {
	__be32 address; /* its own, where its daemon listens */
	__u32 signing_key; /* id */
	__u8 mac[6]; /* of its interface, where a hook cannot tell for whom a frame is */
	__u8 behind; /* 1: clients' packets come by way of a spray or a router's choice, answers do not go back there */
	__u8 among; /* 1: there are other dispatchers; AMONG_SUB_CLUSTERS */
	__u64 since_ns; /* of the cluster's clock, when its data path came up: it knows nothing of before; 0: always there */
	__u64 clock_offset_ns; /* the cluster's clock less CLOCK_MONOTONIC */
	__u32 incarnation; /* of its network stack: another one has none of this one's connections; 0: it is not said */
	__u32 pad;
};

/* What a dispatcher says in the place of its workload factor. */
#define PRESENCE_LEAVING 1001 /* it is about to stop */
#define PRESENCE_JOINING 1002 /* it is about to keep its share of flows */

/*
 * What a node says when it is asked whether it is there: `says` as long as its daemon
 * renews it, `afterwards` without one. A dispatcher says its workload factor, 1 to 1000
 * (0: not known) [SPLICE06 §4.2] or one of those; a spray its enum spray_state.
 */
struct presence {
	__u32 role; /* enum member_role; 0: it answers nobody */
	__u32 says;
	__u32 afterwards;
	__u32 pad;
	__u64 until_ns; /* CLOCK_MONOTONIC */
};

enum spray_state {
	SPRAY_STANDBY = 1,
	SPRAY_ACTIVE = 2, /* it has the service addresses */
	SPRAY_YIELDING = 3, /* another one may have them: it goes, has no daemon, or hears no dispatcher */
};

/* Who has asked this node whether it is there. */
struct peer {
	__u64 heard_ns; /* CLOCK_MONOTONIC_COARSE */
	__u32 beat; /* the latest one's number */
	__u32 role; /* enum member_role */
	__u32 said;
	__u32 pad;
};

#define DISPATCHERS_MAX 256

/* Spray: where a dispatcher is; value of the dispatchers map (slot = index). */
struct dispatcher {
	__u8 addr[16];
	__u8 name[32]; /* NUL-padded; empty: free slot */
	__be32 source; /* our address towards it */
	__u32 live; /* 1: it answers heartbeats (the daemon says) */
	/* next hop, as the data path last looked it up */
	__u64 resolved_ns;
	__u32 ifindex;
	__u8 destination_mac[6];
	__u8 source_mac[6];
	__u32 far; /* 1: behind a router, where a link address does not reach */
	__u32 elsewhere; /* 1: of another sub-cluster, whose records are not here */
};

/* How a packet draws its lot. */
enum spray_mode {
	SPRAY_BATCH = 1, /* in turn, so many packets the same [SPLICE06 §6.2] */
	SPRAY_WORKLOAD = 2, /* by chance; who has more capacity to spare has more lots [SPLICE06 §4.2] */
	SPRAY_FLOW_HASH = 3, /* by its 4-tuple */
};

struct spraying {
	__u32 mode; /* enum spray_mode */
	__u32 batch; /* packets, at least 1 */
	__u64 k0; /* of the SipHash over 4-tuples: the same on every node, and no secret */
	__u64 k1;
};

/* Which dispatcher (slot) each lot stands for; the modes fill it in different ways. */
#define LOTS 65536
#define NO_DISPATCHER 0xffff
struct lots {
	__u16 slots[LOTS];
};

/* Agent: what was rebuilt last for a 4-tuple (at most once). */
enum setup_state {
	SETUP_TRIED = 1, /* handed to the listener */
	SETUP_CONFIRMED = 2, /* its socket has spoken, or was seen */
	SETUP_REFUSED = 3, /* given back: another backend may have it by now */
	SETUP_MOVED = 4, /* given up: another backend has it from `start` on */
	SETUP_VACANT = 5, /* its server has closed, owing nothing; `start` is where the next request does */
	SETUP_OLDER = 6, /* as MOVED, but its socket repeats what lies before `end` till the client has it */
};

/* Where in an answer the server is. The first five are made of lines. */
enum answer_phase {
	ANSWER_STATUS = 0, /* its first line; without a byte of that: between answers */
	ANSWER_FIELDS = 1,
	ANSWER_CHUNK_SIZE = 2,
	ANSWER_CHUNK_END = 3, /* the line end behind a chunk's data */
	ANSWER_TRAILER = 4,
	ANSWER_BODY = 5, /* these two are counted */
	ANSWER_CHUNK_DATA = 6,
	ANSWER_ENDLESS = 7, /* until the server closes, and counted; or for ever: a tunnel, of which nothing remains */
	ANSWER_LOST = 8, /* nobody knows: not HTTP/1, or a gap */
};

/* Of the connection, from the moment on: */
#define ANSWER_CLOSING 1 /* the server closes behind this answer */
#define ANSWER_ENDED 2 /* at least one has */
#define ANSWER_TO_HEAD 4 /* the next is one to a HEAD */
#define ANSWER_AHEAD 4096 /* its client may ask before it is answered: how many it has asked is not known */
/* Of the answer whose head is being read: */
#define ANSWER_INTERIM 8 /* 1xx: the answer proper follows */
#define ANSWER_TUNNEL 16 /* 101 */
#define ANSWER_BODILESS 32
#define ANSWER_LENGTH 64 /* Content-Length was there */
#define ANSWER_CHUNKED 128
#define ANSWER_OLD 256 /* HTTP/1.0 */
#define ANSWER_KEEP 512 /* "Connection: keep-alive" */
#define ANSWER_OF_HEAD 0x03f8
/* Between two answers: */
#define ANSWER_GONE 2048 /* it has closed, and the client has been told; or the client has reset */
#define ANSWER_HUNG_UP 1024 /* the server has closed, and its FIN waits until the client has all */
/* Of the next answer: */
#define ANSWER_MIDWAY 8192 /* an interim one has been said: what the server has taken is not answered, and may not be whole */

/* So much of a line is kept when it is cut by the end of a packet: more than all of those that count have. */
#define LINE_ROOM 64

/* What remains of an answer that ends when its server closes: more than ever comes. It is counted as
 * a body is, so that it is known where in it the server is. */
#define ANSWER_UNTIL_CLOSE 0x4000000000000000ull

/* How far a server's answers have been followed (lib/answers.bpf.h). */
struct answers {
	__u64 remaining; /* of the counted bytes; in a head: its Content-Length */
	__u32 next; /* the server's sequence number up to which it was looked at */
	__u32 taken; /* what the socket had had of the client when its latest answer began */
	__u16 finished; /* answers, since the setup; modulo 2^16 */
	__u16 flags; /* ANSWER_* */
	__u8 phase; /* enum answer_phase */
	__u8 line_length; /* of what is kept */
	__u8 unread; /* times that the request after the last answer was closed on without being read */
	__u8 busy; /* 1: a packet of the server's is being looked at; what else is here is of two moments */
	__u8 line[LINE_ROOM];
};

/*
 * Dispatcher: the answers of a server without an agent, as far as they came by here
 * (lib/overheard.bpf.h); by the key of its struct spliced.
 */
struct overheard {
	struct answers answers;
	__u32 busy; /* 1: a packet is being looked at, or the flow leaves */
	__u32 clock; /* the server's latest, as the client knows it; 0: none */
	__u32 told; /* the client has been told that its bytes have come up to here; 0: as the server says */
	__u32 start; /* with `parted`: before which request the flow has left, */
	__u32 end; /* and where the last answer ended, as the client knows it */
	__u8 closes; /* 1: the server has said FIN or RST */
	__u8 parted; /* 1: the flow has left: what the server says is nobody's */
	__u8 window_scale; /* the server's */
	__u8 pad;
	__u32 edge; /* the server's window's right one, as far as it has said; 0: nothing yet */
	__u32 pad2;
};

/* May a flow leave a server without an agent? What the daemon asks, and what it is told (lib/parting.bpf.h). */
struct parting {
	struct flow_key key; /* of its struct spliced */
	__u32 start; /* where the request starts that another one is to have */
	__u32 requests; /* that the server has been given */
	__u32 heard; /* what the client has acknowledged */
	__u32 told; /* up to where it has been told that its bytes have come */
	__u32 end; /* the answer: where the server's last one ended, as the client knows it, */
	__u32 clock; /* and its clock; 0: it has none */
};

/* Of a setup whose answer may outlive its backend (docs/protocol/takeover.md). */
#define SAVED_TOLD 1 /* the daemon has been told of it */
#define SAVED_ADOPTED 2 /* it was another backend's, and the client may have had more than this one has said */

struct setup {
	struct meta meta; /* the option last verified for this flow */
	__u32 epoch;
	__u32 start;
	__u32 state; /* enum setup_state */
	__be32 dispatcher; /* from which it hears */
	__u64 created_ns;
	struct answers answers; /* with CARE_FOLLOW */
	__u32 refused_epoch; /* of a HANDOFF that was answered by HELD: so are its copies */
	__be32 next; /* MOVED: to this backend; 0: to whom the dispatcher likes */
	__u32 clock_offset; /* the socket's timestamps less the host's milliseconds */
	__u32 wanted; /* the start before which it was asked for last, in vain */
	__u32 end; /* OLDER: where the range ends; MOVED: where it ended; before that: where it begins */
	__u16 wanted_after; /* how many requests the owner had been given before `wanted` */
	__u8 was_wanted; /* 1: `wanted` and `wanted_after` count */
	__u8 saved; /* SAVED_* */
	__u64 heard_ns; /* OLDER: CLOCK_MONOTONIC_COARSE, when the last GC came */
	__be32 before; /* the owner before, as long as that is an older owner; 0: none */
	__u32 first; /* where the range here starts, and the answers of the socket if nothing is `before`; 0: nobody knows */
	__u32 before_epoch; /* and under what that one gave the flow up */
	__u32 before_start;
	__u8 refused; /* 1: refused_epoch counts */
	__u8 waiting; /* enum held: a DONE is owed when that has changed */
	__u8 reason; /* OLDER, MOVED: RELEASED_* */
	__u8 seated; /* 1: the flow has other seats here (lib/seats.bpf.h) */
	__be16 origin; /* of a seat: the flow's own port; 0: this is it */
	__u8 parked; /* MOVED: 1: its socket waits for the flow to come back (lib/park.bpf.h) */
	__u8 shifted; /* 1: it has come back: these count (lib/shift.bpf.h) */
	__u32 client_shift; /* by how much the wire's numbers are ahead of the socket's, 0 without: the client's, */
	__u32 server_shift; /* the server's, */
	__u32 clock_shift; /* and the server's clock */
	__u32 reach; /* OLDER: up to where the client's bytes have come to the owners after it */
	__u32 last_clock; /* OLDER: what it says is no later, by its timestamps */
	__u32 told; /* up to where the client has been told that its bytes have come; 0: no further than to here */
	__u32 begun; /* where the latest request starts, as its dispatcher has said */
	__u16 asked; /* how many have begun; `answers.finished` of them are answered */
	__u16 ahead; /* 1: one began before the one before it was answered */
	__u32 replacing; /* VACANT: 1: a copy of its next request removes the old socket, and goes round (lib/start.bpf.h) */
	__u32 met; /* where the latest request starts whose beginning its socket has had, */
	__u64 met_ns; /* CLOCK_MONOTONIC_COARSE, and when that was seen last (lib/unread.bpf.h) */
	__u32 withheld; /* 1: its socket has acknowledged more than has left; its daemon knows */
	__u32 pad;
};

/*
 * Agent: an acknowledgement that does not leave as long as its request is not being read; to its daemon, by the ring
 * `withheld`. Numbers are the socket's.
 */
struct withheld {
	struct flow_key key;
	__u32 seq;
	__u32 ack;
};

/* Agent: what held a flow up has changed, or an answer is over; to its daemon, by the ring `dones`. */
struct done {
	struct flow_key key;
	__be32 dispatcher;
	struct meta meta; /* META_DONE or META_ANSWERED, of the setup, not sealed */
	__u32 end; /* where the latest answer ends */
};

/* Bytes of a head, at most; none is longer that is protected. */
#define BEGUN_ROOM 8192
/* Bytes of a client's packet of which a copy is kept, from IPv4 on. */
#define UNREAD_MAX 1580
/* No packet is kept that begins further behind its request's start: no socket takes more unread. */
#define UNREAD_REACH 65536

/* Agent: which packet of which request, of those that may come in again. */
struct unread_key {
	__be32 client;
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
	__u32 behind; /* the request's start */
};

struct unread {
	struct unread_key key; /* again: its memory may be given to another flow's while it is read */
	__u32 busy;
	__u32 length;
	__u32 seq;
	__u8 packet[UNREAD_MAX];
};

/*
 * Agent: an answer that may outlive its backend has begun; to its daemon, by the ring `begun`,
 * with the head as it was sent and the first packet of the request behind it.
 */
struct begun_answer {
	struct flow_key key;
	__be32 dispatcher;
	__u64 length; /* of the whole answer, head included, as the data path has followed it */
	__u32 epoch;
	__u32 at; /* the server's number of the first byte of the head */
	__u32 clock_offset; /* of its socket, as in struct setup */
	__u16 answer; /* which of those since the setup, from 1 */
	__u16 head_length;
	__u16 request_length; /* 0: there is no copy */
	__u16 pad;
	__u32 taken; /* what the server's socket had had of the client */
};

/* Agent: which answers its daemon is to be told of, and what its pools say of requests without one. */
struct protection {
	__u64 from; /* bytes of body; 0: none */
	__u64 once; /* 1: a request that has perhaps been read never runs again here */
};

/* Agent: its daemon goes on with another backend's answer on a connection that was set up for that. */
struct adoption {
	struct flow_key key;
	__u32 epoch;
	__u64 remaining; /* bytes */
	__u32 command; /* bytes of the client's stream that were no client's */
	__u32 end; /* enum adopted_end */
};

enum adopted_end {
	ADOPTED_STAYS = 0,
	ADOPTED_CLOSES = 1, /* the connection closes behind the answer */
	ADOPTED_UNTIL_CLOSE = 2, /* where the daemon closes, the answer ends */
};

enum adopted {
	ADOPTED = 0,
	ADOPTED_LATE = 1, /* that connection is another's, or nobody's by now */
};

/* Agent: how busy its host is; told to dispatchers with every heartbeat. */
struct feedback {
	__u64 sampled_ns; /* CLOCK_MONOTONIC: by the daemon */
	__u32 cpu_permille;
	__u32 memory_permille;
};

/* Agent: how many connections the listener had not accepted when it was last given one. */
struct accept_queue {
	__u64 seen_ns;
	__u32 length;
	__u32 pad;
};

/* As the value of an ECHO_REPLY, whose reason is 1 then: 10 bits, 10 bits, 12 bits. */
#define FEEDBACK_CPU_SHIFT 22
#define FEEDBACK_MEMORY_SHIFT 12
#define FEEDBACK_QUEUE_MAX 4095

/* Agent: what its daemon holds of the servers there (core/src/health/word.rs), for dispatchers that ask. */
#define HEALTH_WORD_BYTES 512

struct health_word {
	__u64 said_ns; /* CLOCK_MONOTONIC */
	__u8 bytes[HEALTH_WORD_BYTES];
};

/* Agent: the address on which a server listens, by its port. */
struct server_key {
	__be16 port;
	__u16 pad;
};

struct server {
	__u8 addr[16]; /* unspecified: ask for the VIP, wildcards match */
};

/*
 * Why a packet was dropped: return value, counter and name at once.
 * X(NAME, "name", "what it means, and what to do")
 */
#define DROP_REASONS(X)                                                                        \
	X(NONE, "none", "not a drop")                                                          \
	X(MALFORMED, "malformed", "headers that contradict the packet's length")               \
	X(FRAGMENT, "fragment", "an IP fragment: look for a small MTU on the path")            \
	X(IP_OPTIONS, "ip-options", "an IP header with options")                               \
	X(BAD_FLAGS, "bad-flags", "a combination of TCP flags that no stack sends")            \
	X(BAD_COOKIE, "bad-cookie", "no flow, and its cookie is forged or too old")            \
	X(NO_COOKIE_KEY, "no-cookie-key", "the daemon has not set this hour's cookie key")     \
	X(HANDSHAKE_ACK, "handshake-ack", "the bare ACK of a handshake: expected")             \
	X(REPEATED, "repeated", "a copy of a packet that is being handed over")                \
	X(NO_BACKEND, "no-backend", "its record names a backend that is not there")            \
	X(NO_ROUTE, "no-route", "no route to the backend: check routes and forwarding")        \
	X(NO_NEIGHBOUR, "no-neighbour", "the backend's link address is not known (yet)")       \
	X(TOO_BIG, "too-big", "no room for the encapsulation: lower gro_max_size or the MTU")  \
	X(REWRITE, "rewrite", "the kernel refused to change the packet (out of memory)")       \
	X(ICMP_NO_FLOW, "icmp-no-flow", "an ICMP error about a flow that we do not know")      \
	X(BAD_ENCAP, "bad-encapsulation", "to our port, but not our encapsulation")            \
	X(BAD_TAG, "bad-tag", "encapsulated without a valid tag: forged, or another key")      \
	X(STALE_EPOCH, "stale-epoch", "late news of a connection that has moved or ended")     \
	X(EARLY, "early", "overtook the packet that sets its connection up; it comes again")   \
	X(NO_LISTENER, "no-listener", "no server listens here: start it")                      \
	X(ACCEPT_QUEUE_FULL, "accept-queue-full", "the server accepts too slowly")             \
	X(NOT_REBUILT, "not-rebuilt", "the kernel refused to rebuild: see trapeze doctor")     \
	X(MOVED, "moved", "from a socket whose connection another backend has now: expected")    \
	X(SERVER_CLOSE, "server-close", "a server closed while it owed nothing, and its client need not hear of it: expected") \
	X(OLDER, "older-range", "a request for a backend that still sends an earlier answer") \
	X(VACANT, "vacant", "for a connection that its server has closed, and is no request: expected") \
	X(MARTIAN, "martian", "a SYN from an address that no client has: forged") \
	X(NO_DISPATCHER, "no-dispatcher", "no dispatcher is there to have it: see trapeze status") \
	X(NO_SPLICE, "no-splice", "from a server, of no connection that is known here") \
	X(UNHEARD_OF, "unheard-of", "its keeper has yet to hear of its connection; it comes again: expected") \
	X(UNREAD, "unread", "an acknowledgement of more than could be given again, were its server to close unread: expected")

enum drop_reason {
#define X(NAME, name, text) DROP_##NAME,
	DROP_REASONS(X)
#undef X
	DROP_REASON_COUNT
};

/* What else is counted, per CPU. */
#define EVENTS(X)                                                       \
	X(SYN, "syn-answered", "SYNs answered with a cookie")           \
	X(COOKIE_OK, "cookie-valid", "handshakes proved by their cookie") \
	X(DECIDED, "decided", "connections placed by a decision that the daemon made before") \
	X(STAYED, "stayed", "later requests decided in the data path: the owner has them") \
	X(MOVED, "moved", "later requests decided in the data path: another backend has them") \
	X(TO_DAEMON, "to-daemon", "packets given to the daemon")        \
	X(FORWARDED, "forwarded", "packets forwarded to backends")      \
	X(ICMP_FORWARDED, "icmp-forwarded", "ICMP errors forwarded")    \
	X(RECEIVED, "received", "encapsulated packets accepted")        \
	X(REBUILT, "rebuilt", "connections given to a listener")        \
	X(REPLACED, "replaced", "leftover sockets removed for a new connection") \
	X(REFUSED, "refused", "connections given back to the dispatcher") \
	X(CONFIRMED, "confirmed", "rebuilt connections that have answered") \
	X(GHOST, "ghost", "requests that the network repeated after their connection had ended") \
	X(GIVEN_UP, "given-up", "connections that left for another backend") \
	X(RESUMED, "resumed", "connections taken up again, whose flow had come back") \
	X(HANDED_ON, "handed-on", "packets sent on to the next backend") \
	X(HELD, "held", "connections asked for that could not leave yet") \
	X(HALF_PIPE, "half-pipe", "of these, with bytes on the way to their client") \
	X(GC, "gc", "acknowledgements sent on to older owners") \
	X(SEATED, "seated", "flows that came back while their older socket here was needed still") \
	X(RETIRED, "retired", "older owners whose client has had all of theirs") \
	X(UNREAD, "unread", "requests that a server closed on without reading them, given to it or another again") \
	X(RETRIED, "retried", "idempotent requests that a server closed on without a word, given to it or another again") \
	X(VACATED, "vacated", "connections that their server closed, and their client keeps") \
	X(BEGUN, "begun", "answers begun that may outlive this backend") \
	X(BEGUN_UNSEEN, "begun-unseen", "answers that may not, for their heads came in several packets") \
	X(ADOPTED, "taken-over", "answers of other backends gone on with here") \
	X(ASKED_ANEW, "asked-anew", "of these, those whose server here was asked once more for what was left")         \
	X(NOT_SAME, "not-same", "answers of other backends of which the rest was not provably the same here: reset") \
	X(FORSAKEN, "forsaken", "answers begun here that another backend goes on with") \
	X(UNFOLLOWED, "unfollowed", "connections whose answers cannot be followed any more") \
	X(SPRAYED, "sprayed", "packets sent on to dispatchers") \
	X(ENCAPSULATED, "encapsulated", "of these, to dispatchers behind a router") \
	X(UNPACKED, "unpacked", "packets that a spray has encapsulated") \
	X(PASSED, "passed", "packets passed to the dispatcher that keeps their flow") \
	X(ACCEPTED, "accepted", "packets that other dispatchers have passed here") \
	X(ENTRUSTED, "entrusted", "of the connections decided in the data path, those whose record went to another dispatcher with the first packet") \
	X(IN_TRUST, "in-trust", "first packets with records of connections that other dispatchers keep, sent on") \
	X(BEAT, "beat-answered", "heartbeats answered") \
	X(TO_SERVER, "spliced-to-server", "clients' packets rewritten for spliced servers") \
	X(TO_CLIENT, "spliced-to-client", "packets of spliced servers rewritten for clients") \
	X(SPLIT, "split", "spliced connections whose server's host has them rewritten from here on") \
	X(SET_AGAIN, "set-again", "addresses and sysctls that somebody had taken away, set again by the daemon") \
	X(TO_OWN_HOST, "to-own-host", "packets for a backend on the dispatcher's own host")

enum event {
#define X(NAME, name, text) EVENT_##NAME,
	EVENTS(X)
#undef X
	EVENT_COUNT
};

/* Cookies: a time counter of this many seconds, keys change every 256 of them. */
#define COOKIE_PERIOD_S 16
#define COOKIE_ROTATION_SHIFT 8
#define COOKIE_ROTATIONS 4 /* whose keys are there at once */
#define COOKIE_KEY_SETS 2
/* Accepted: the next period and this many before it. */
#define COOKIE_MAX_AGE 3 /* so 32 to 48 s, and one period ahead for clocks that differ */

#endif
