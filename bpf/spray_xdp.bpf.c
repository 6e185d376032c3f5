// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/* spray_xdp: the spray at XDP, native or generic. */
#include "kernel.h"
#include "lib/context_xdp.bpf.h"
#include "spray.bpf.h"
