// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/* dispatch_xdp: the dispatcher at XDP, native or generic. */
#include "kernel.h"
#include "lib/context_xdp.bpf.h"
#include "dispatch.bpf.h"
