/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a communicator keeps for control values: see the host helpers in comm/ops.h. Made when first used, by
 * all ranks together; destroyed with the communicator.
 */
#ifndef SHERD_COMM_CONTROL_H
#define SHERD_COMM_CONTROL_H

#include "comm/ops.h"

struct verdict;

struct comm_control {
    struct sherd_comm twin; /* on the control channel */
    struct sherd_queue *queue;
    void *staging; /* device memory */
    size_t bytes;
    struct verdict *verdicts; /* of all ranks: agreeing must not fail for want of memory */
};

/* comm->control is there, unless a side serves in its place. Collective where it has to be made. */
int control_make(struct sherd_comm *comm);
void control_destroy(struct comm_control *control);

#endif
