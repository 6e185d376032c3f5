/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* node: the nodes of a cluster: presence, dispatchers, and how packets are sprayed over those. */
#pragma once

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

/*
 * A packet that has been sent to a dispatcher: its first bytes, from its IPv4 header on, and of
 * what is behind them its last ones. The latest packets are there, for a daemon that finds that
 * dispatcher dead.
 */
#define SENT_ENTRIES 4096 /* a power of two, for all dispatchers together */
#define SENT_START 1428 /* an MTU of 1500 less the encapsulation */
#define SENT_END 1376 /* the same less headers with timestamps */
struct sent {
	__u64 at_ns; /* CLOCK_MONOTONIC_COARSE; 0: it is being written, or there is none */
	__u32 turn; /* of the packets of its ring, in their order */
	__u16 slot; /* of the dispatcher */
	__u16 start_length;
	__u16 end_length;
	__u16 pad;
	__u8 start[SENT_START];
	__u8 end[SENT_END];
};

/* Where the packets to one dispatcher are among all of them, in turn. */
struct sent_ring {
	__u32 first;
	__u32 entries; /* a power of two; 0: none is kept */
	__u32 turn; /* the next one's */
};
