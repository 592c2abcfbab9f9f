/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A process that outlives the launcher by a moment: when the launcher is gone, however that came, it ends
 * what the ranks had started themselves. The ranks are ended by the kernel then (tools/child.c), but not
 * those. Called by tools/attempt.c, for programs that are not sherd: its own ranks start nothing.
 */
#ifndef SHERD_TOOLS_GUARD_H
#define SHERD_TOOLS_GUARD_H

#include <sys/types.h>

struct guard {
    int fd; /* to the guard; -1 = there is none */
    pid_t pid;
};

/* Without a guard, which is told, the job goes on all the same: fd is -1 then. */
void guard_start(struct guard *guard);
/* The processes of this group are to go with the launcher. */
void guard_add(const struct guard *guard, pid_t group);
/* Nothing is left to watch over. */
void guard_end(struct guard *guard);

#endif
