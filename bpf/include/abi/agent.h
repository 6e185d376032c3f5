/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* agent: what a backend's agent has of flows and of the servers there. */
#pragma once

#include "wire.h"
#include "answers.h"

/* Agent: what was rebuilt last for a 4-tuple (at most once). */
enum setup_state {
	SETUP_TRIED = 1, /* handed to the listener */
	SETUP_CONFIRMED = 2, /* its socket has spoken, or was seen */
	SETUP_REFUSED = 3, /* given back: another backend may have it by now */
	SETUP_MOVED = 4, /* given up: another backend has it from `start` on */
	SETUP_VACANT = 5, /* its server has closed, owing nothing; `start` is where the next request does */
	SETUP_OLDER = 6, /* as MOVED, but its socket repeats what lies before `end` till the client has it */
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
	__u32 edge; /* with `before`: the right edge of the client's window, as last heard; 0: not yet */
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
