// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/* dispatch_tc: the dispatcher at tc ingress, for virtual interfaces and the lab. */
#include "kernel.h"
#include "lib/context_tc.bpf.h"
#include "dispatch.bpf.h"
