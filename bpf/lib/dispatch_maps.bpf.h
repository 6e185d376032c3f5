/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* dispatch_maps: what a dispatcher's data path knows. Sizes are set at load. */
#pragma once

#include "services.bpf.h"

/* Written by the daemon after a decision, aged by the data path. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* The daemon's latest turn of which other dispatchers have been told (docs/protocol/replication.md 4.3). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} told SEC(".maps");

/* Handshakes proved by their bare ACK: the oldest makes room for the newest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(map_flags, BPF_F_NO_COMMON_LRU); /* a list for each CPU: no lock between them */
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct proof);
} proofs SEC(".maps");

#define BACKENDS_MAX 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BACKENDS_MAX);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* The slot of the backend that has that address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BACKENDS_MAX);
	__type(key, __be32);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BACKENDS_MAX);
	__type(key, __u32);
	__type(value, struct backend_load);
} loads SEC(".maps");

/* By slot: how often clients have repeated what nobody acknowledges, in vain for a while before. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BACKENDS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} stalls SEC(".maps");

/* For the daemon, which looks at every heartbeat. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} reports SEC(".maps");

/* Keys of flows that are marked MARK_STAYED. Where it is full the daemon's sweep finds them. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} stays SEC(".maps");

/* A word may be read from any place of a head. */
#define HEAD_ROOM (HEAD_MAX + 8)

/* Where the packets of a flow go, and with which option: as of one moment. */
struct way {
	struct meta meta;
	__u32 backend;
	__u32 previous;
	__u32 requests_before;
	__u32 server_isn;
	__u32 began;
	__u32 marks;
};

/* What does not fit the stack. */
struct workbench {
	__u8 head[HEAD_ROOM];
	struct flow flow;
	struct finished finished;
	struct way way;
	struct encapsulated arriving; /* another node's packet, as far as that has written it */
	struct meta entrusted; /* what a keeper says of a flow that it entrusts to us */
	__u32 lot; /* of the packet, among other dispatchers */
	__u8 care; /* CARE_* of the request on the bench */
	__u8 closes; /* that request is to be its connection's last */
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct workbench);
} workbench SEC(".maps");

static __always_inline struct workbench *this_workbench(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&workbench, &zero);
}
