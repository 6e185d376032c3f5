/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* agent_maps: what a backend's programs know. */
#pragma once

/* What was rebuilt last, by 4-tuple; the least used makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(map_flags, BPF_F_NO_COMMON_LRU); /* a list for each CPU: no lock between them */
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, struct setup);
} setups SEC(".maps");

#define SEATS_MAX 7

struct seat {
	__u32 from; /* the epoch from which on the flow's packets are this one's */
	__be16 port;
	__u16 pad;
};

struct seats {
	__u32 count;
	struct seat seats[SEATS_MAX];
};

/* Of flows that have had several connections here, by their own 4-tuple (seats.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct seats);
} seats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct feedback);
} feedback SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct accept_queue);
} accept_queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct health_word);
} health_word SEC(".maps");

/* Flows of which this is an older owner, and the epoch of the one after it: for the daemon to look after. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u32);
} older SEC(".maps");

/* Flows that another backend has, whose sockets wait here, and since when (CLOCK_MONOTONIC_COARSE). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u64);
} parked SEC(".maps");

/* Acknowledgements of what is not being read yet, for the daemon to have said again (lib/unread.bpf.h). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} withheld SEC(".maps");

/* For the daemon to tell dispatchers of. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} dones SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct done);
} new_done SEC(".maps");

/* How many ends of answers may be told of (lib/done.bpf.h), as of when. Processors that count at once count one. */
struct allowance {
	__u64 at_ns; /* CLOCK_MONOTONIC_COARSE */
	__u32 left;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

/* Servers that do not listen on the VIP itself, by port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct server_key);
	__type(value, struct server);
} servers SEC(".maps");
