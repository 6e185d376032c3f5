/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* own_interface: where what a daemon here says by way of the loopback device is to come in. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} own_interface SEC(".maps");
