/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * told: where a dispatcher has acknowledged what waits there, so does the owner, which has heard
 * nothing of it (docs/protocol/handoff.md 5.1a1). Of a segment that acknowledges less a client does not
 * take the clock: it would echo an old one for as long as the answer lasts, and the owner would take its
 * repetitions for needless, and wait ever longer for each.
 */
#pragma once

/* Up to `reach` the client has been told that its bytes have come. */
static __always_inline void note_told(__u32 *told, __u32 reach)
{
	if (!*told || (__s32)(*told - reach) < 0)
		*told = reach;
}

/* By how much more than `ack` the client has been told. A socket that has all of it by itself needs that no more. */
static __always_inline __u32 told_ahead(__u32 *told, __u32 ack)
{
	__u32 reach = *(volatile __u32 *)told; /* another CPU may be clearing it */

	if (!reach)
		return 0;
	if ((__s32)(ack - reach) < 0)
		return reach - ack;
	*told = 0;
	return 0;
}
