/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What several ranks hold whole must be equal, bit for bit: weights in stages 0 to 2, masters and optimizer
 * states in stage 0. Nothing in a step would tell if it were not, so it is compared from time to time.
 */
#ifndef SHERD_RUNTIME_REPLICA_H
#define SHERD_RUNTIME_REPLICA_H

struct sherd_engine;

/* Collective. EDIVERGED on all ranks names the unit, what of it differs, and the ranks. The queues are idle.
 */
int replica_check(struct sherd_engine *engine);

#endif
