// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/*
 * dispatch_tc: the dispatcher at tc ingress, for virtual interfaces and the lab. Here the daemon gives
 * what it has held of a request back to the data path, in segments as long as the kernel's own (GSO),
 * and what it had passed to a dispatcher that has died, by way of the loopback device: to the interface
 * where clients' packets come in.
 */
#include "kernel.h"
#include "lib/context_tc.bpf.h"
#include "dispatch.bpf.h"
#include "lib/own_interface.bpf.h"

/* At the loopback device's ingress. */
SEC("tcx/ingress")
int dispatch_loopback(struct __sk_buff *skb)
{
	__u32 zero = 0, *interface = bpf_map_lookup_elem(&own_interface, &zero);

	if ((skb->mark != HELD_MARK && skb->mark != AGAIN_MARK) || !interface)
		return VERDICT_NEXT;
	return bpf_redirect(*interface, BPF_F_INGRESS);
}
