/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* handshake: what is known of handshakes, and keys. */
#pragma once

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

/* Cookies: a time counter of this many seconds, keys change every 256 of them. */
#define COOKIE_PERIOD_S 16
#define COOKIE_ROTATION_SHIFT 8
#define COOKIE_ROTATIONS 4 /* whose keys are there at once */
#define COOKIE_KEY_SETS 2
/* Accepted: the next period and this many before it. */
#define COOKIE_MAX_AGE 3 /* so 32 to 48 s, and one period ahead for clocks that differ */
