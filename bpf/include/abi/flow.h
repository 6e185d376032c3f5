/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* flow: flow records. */
#pragma once

#include "wire.h"
#include "splice.h"

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
	EXPECT_CHUNK = 1, /* the size of a chunk */
	EXPECT_CHUNK_AFTER = 2, /* the end of a chunk */
	EXPECT_TRAILER = 3, /* a line behind the last chunk */
	EXPECT_UPGRADED = 4, /* a request, if the answer to the one before is no 101: the daemon asks the owner */
	EXPECT_INVITED = 5, /* the same, if the one before has had its body, for which its client waited to be asked */
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
#define MARK_SPENT 16384 /* its proof was spent when it was placed: no later one can have come in between */
#define MARK_REFUSED 32768 /* the owner before has said that it keeps it: its packets go by way of that one, whatever the client acknowledges */

/* Epochs: the cluster's clock in units of 2^20 ns, about 954 to a second. */
#define EPOCH_SHIFT 20
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
	__u32 lot; /* of its 4-tuple, and 1: who keeps it is dealt by that (lib/keeper.bpf.h); 0: not drawn yet */
};

/*
 * A connection that another dispatcher has placed, and entrusted to this one: of what a record is
 * made, should that one die before it has told of it. A line of the cache.
 */
#define TRUSTS 131072 /* a power of two */
#define TRUST_NS 3000000000 /* what has not been told by then has ended */
struct trust {
	__u64 at_ns; /* CLOCK_MONOTONIC_COARSE; 0: it is being written, or there is none */
	struct meta said; /* by its keeper, in ENTRUSTED */
	__be32 client;
	__be32 vip;
	__be16 client_port;
	__be16 vip_port;
	__u16 payload; /* of its first packet, as all that follows */
	__u16 window;
	__u32 ack;
	__be32 from; /* the keeper */
};

/* Where they are, in turn. */
struct trusts_turn {
	__u32 next;
	__u32 claimed; /* those before it are records, or were too old to be */
};

/* In the map `sieving`: which of the flows at `keys` the daemon may have to tell of (lib/sieve.bpf.h). */
#define SIEVE_KEYS 256
#define CLOSES_WITHIN_NS 1000000000 /* who says FIN, and something more after so long, waits for an answer */
struct sieve {
	__u32 count;
	__u32 pad;
	__u8 keep[SIEVE_KEYS]; /* 1: this one */
	struct flow_key keys[SIEVE_KEYS];
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
