/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* answers: how far the answers of servers have been followed. */
#pragma once

#include "wire.h"

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
