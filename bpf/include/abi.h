/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * abi.h: what the BPF programs and user space agree on: map keys and values,
 * the encapsulation's option, drop reasons. The Rust mirror is datapath/src/abi/,
 * of the same parts; a test holds the two against each other by BTF.
 *
 * Numbers are in host byte order unless their type is __be16 or __be32.
 * Addresses are 16 bytes, IPv4 mapped (::ffff:a.b.c.d).
 */
#pragma once

#include "abi/wire.h"
#include "abi/splice.h"
#include "abi/flow.h"
#include "abi/placing.h"
#include "abi/handshake.h"
#include "abi/node.h"
#include "abi/answers.h"
#include "abi/agent.h"
#include "abi/counters.h"
