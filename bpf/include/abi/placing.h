/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* placing: services, backends, and which of them requests go to. */
#pragma once

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
