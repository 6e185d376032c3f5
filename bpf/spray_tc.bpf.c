// SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause)
/* spray_tc: the spray at tc ingress, for virtual interfaces and the lab. */
#include "kernel.h"
#include "lib/context_tc.bpf.h"
#include "spray.bpf.h"
