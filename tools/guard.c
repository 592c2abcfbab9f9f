/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The guard: waits at a pipe for the numbers of groups, and for its end.
 */
#include "tools/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAREWELL 0 /* instead of a group: all went well */

/* Never returns. It holds nothing of the launcher's open but the pipe. */
static void watch_over(int from)
{
    pid_t *groups = NULL, group;
    size_t n = 0;
    int null = open("/dev/null", O_RDWR);
    sigset_t all;
    setsid();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
    if (dup2(from, 3) != 3 || close_range(4, ~0u, 0) != 0)
        _exit(1);
    for (;;) {
        ssize_t bytes = read(3, &group, sizeof(group));
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes != (ssize_t)sizeof(group))
            break;
        if (group == FAREWELL)
            _exit(0);
        pid_t *more = realloc(groups, (n + 1) * sizeof(*groups));
        if (more) {
            groups = more;
            groups[n++] = group;
        }
    }
    for (size_t i = 0; i < n; i++)
        kill(-groups[i], SIGKILL);
    _exit(0);
}

static void say_without(void)
{
    fprintf(stderr,
        "sherd: no guard can be started, so what ranks start themselves may outlive a launcher that is killed: %s\n",
        strerror(errno));
}

void guard_start(struct guard *guard)
{
    int ends[2];
    *guard = (struct guard){ .fd = -1 };
    if (pipe2(ends, O_CLOEXEC) != 0) {
        say_without();
        return;
    }
    guard->pid = fork();
    if (guard->pid == 0)
        watch_over(ends[0]);
    if (guard->pid > 0) {
        guard->fd = ends[1];
    } else {
        say_without();
        close(ends[1]);
    }
    close(ends[0]);
}

void guard_add(const struct guard *guard, pid_t group)
{
    if (guard->fd >= 0 && write(guard->fd, &group, sizeof(group)) < 0)
        return; /* the guard is gone: nothing more can be done */
}

void guard_end(struct guard *guard)
{
    if (guard->fd < 0)
        return;
    guard_add(guard, FAREWELL);
    close(guard->fd);
    waitpid(guard->pid, NULL, 0);
    guard->fd = -1;
}
