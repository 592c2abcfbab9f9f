/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One rank as a child process.
 */
#include "tools/child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/out.h"

#define TAIL_BYTES 1500 /* of a log file that are shown */
#define TAIL_LINES 10

/* ---- in the rank ---- */

int launch_tell(const char *text)
{
    const char *value = getenv("SHERD_ERROR_FD");
    int fd = value ? atoi(value) : -1;
    size_t len = strlen(text);
    if (fd < 3 || len == 0)
        return 0;
    len = len < WORDS_BYTES ? len : WORDS_BYTES - 1;
    return write(fd, text, len) == (ssize_t)len;
}

int launch_restarts(void)
{
    const char *value = getenv("TORCHELASTIC_RESTART_COUNT");
    return value ? atoi(value) : 0;
}

static int set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return setenv(name, text, 1);
}

static int set_environment(
    const struct launch_desc *desc, const struct launch_place *place, int local, int words)
{
    char meet[160];
    int nodes = desc->nodes.count > 1 ? desc->nodes.count : 1, bad = 0;
    snprintf(meet, sizeof(meet), "%s:%d", place->host, place->meet_port);
    bad |= set_number("RANK", place->first + local) || set_number("WORLD_SIZE", place->world);
    bad |= set_number("LOCAL_RANK", local) || set_number("LOCAL_WORLD_SIZE", desc->ranks);
    bad |= set_number("GROUP_RANK", place->node) || set_number("GROUP_WORLD_SIZE", nodes);
    bad |= set_number("ROLE_RANK", place->first + local) || set_number("ROLE_WORLD_SIZE", place->world);
    bad |= setenv("ROLE_NAME", desc->role ? desc->role : "default", 1);
    bad |=
        setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1); /* rank 0 of a PyTorch program listens itself */
    bad |= set_number("NODE_RANK", place->node) || set_number("TORCHELASTIC_RESTART_COUNT", place->attempt);
    bad |= set_number("TORCHELASTIC_MAX_RESTARTS", desc->restarts);
    bad |=
        setenv("TORCHELASTIC_RUN_ID", desc->nodes.id && desc->nodes.id[0] ? desc->nodes.id : place->job, 1);
    bad |= setenv("MASTER_ADDR", place->host, 1) || set_number("MASTER_PORT", place->port);
    bad |= set_number("SHERD_ERROR_FD", words) || setenv("SHERD_JOB", place->job, 1);
    bad |= place->meet_port ? setenv("SHERD_MEET", meet, 1) : unsetenv("SHERD_MEET");
    if (place->meet_door >= 0 && place->first + local == 0)
        bad |= fcntl(place->meet_door, F_SETFD, 0) != 0 || set_number("SHERD_MEET_FD", place->meet_door);
    else
        bad |= unsetenv("SHERD_MEET_FD");
    return bad;
}

static int set_stream(const struct child_stream *stream, int pipe_end, int fd)
{
    int to = pipe_end >= 0 ? pipe_end : stream->file;
    return to >= 0 && dup2(to, fd) != fd;
}

struct ends {
    int words[2], streams[2][2]; /* pipes; -1 where there is none */
};

/* What people write who leave out the program: a command of sherd, or a config. */
static int is_of_sherd(const char *program)
{
    const char *dot = strrchr(program, '.');
    return strcmp(program, "train") == 0 || strcmp(program, "selftest") == 0 ||
           strcmp(program, "bench") == 0 || (dot && strcmp(dot, ".yaml") == 0);
}

#define LOCAL_RANK "${local_rank}"

/* The word with the rank's number wherever it asks for it; the word itself where it does not. */
static char *with_rank(char *word, int local)
{
    char number[16], *at = strstr(word, LOCAL_RANK), *out;
    size_t used = 0;
    if (!at)
        return word;
    snprintf(number, sizeof(number), "%d", local);
    out = malloc(strlen(word) + 1); /* a number is shorter than what it stands for */
    for (; out && at; word = at + strlen(LOCAL_RANK), at = strstr(word, LOCAL_RANK))
        used += (size_t)sprintf(out + used, "%.*s%s", (int)(at - word), word, number);
    if (out)
        strcpy(out + used, word);
    return out;
}

/* The arguments of one rank, after `name` where there is one; ended by NULL. */
static char **words_of(const struct launch_desc *desc, int local, char *name)
{
    int n = 0, at = 0;
    while (desc->argv[n])
        n++;
    char **all = calloc((size_t)n + 2, sizeof(*all));
    if (!all)
        return NULL;
    if (name)
        all[at++] = name;
    for (int i = 0; i < n; i++)
        if (!(all[at++] = with_rank(desc->argv[i], local)))
            return NULL; /* the process ends */
    return all;
}

/* In the child. Its own session keeps the terminal's signals with the launcher, who passes them on once; the
 * kernel ends it with the launcher even if that is killed. Never returns. */
static void become_rank(const struct child *child, const struct launch_desc *desc,
    const struct launch_place *place, int local, const struct ends *ends, const sigset_t *before,
    pid_t launcher)
{
    char self[] = "/proc/self/exe";
    setsid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher)
        _exit(EXIT_FAILED);
    sigprocmask(SIG_SETMASK, before, NULL);
    for (int i = 0; i < 2; i++)
        if (set_stream(&child->streams[i], ends->streams[i][1], STDOUT_FILENO + i))
            _exit(EXIT_FAILED);
    if (fcntl(ends->words[1], F_SETFD, 0) != 0 || set_environment(desc, place, local, ends->words[1]) != 0)
        _exit(EXIT_FAILED);
    char **words = words_of(desc, local, desc->own ? program_invocation_short_name : NULL);
    if (!words)
        _exit(EXIT_FAILED);
    if (desc->own)
        execv(self, words);
    else
        execvp(words[0], words);
    char text[512];
    const char *why = strerror(errno), *program = desc->own ? "this program" : words[0];
    snprintf(text, sizeof(text), "'%s' cannot be started: %s%s", program, why,
        is_of_sherd(program) ? "; put sherd before it: sherd launch [options] sherd train CONFIG" : "");
    launch_tell(text);
    _exit(EXIT_USAGE);
}

/* ---- in the launcher ---- */

/* Makes DIR/attempt-N/rank-R.out and .err. */
static int open_logs(struct child *child, const struct launch_desc *desc, int attempt, struct ends *ends)
{
    static const char *const names[] = { "out", "err" };
    char path[512];
    if (!desc->logs)
        return 0;
    snprintf(path, sizeof(path), "%s/attempt-%d", desc->logs, attempt);
    if ((mkdir(desc->logs, 0777) != 0 && errno != EEXIST) || (mkdir(path, 0777) != 0 && errno != EEXIST))
        return -1;
    for (int i = 0; i < 2; i++) {
        snprintf(child->log, sizeof(child->log), "%.400s/rank-%d.%s", path, child->rank, names[i]);
        child->streams[i].file = open(child->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
        if (child->streams[i].file < 0)
            return -1;
        if (!(desc->only_logged & (1 << i)) && pipe2(ends->streams[i], O_CLOEXEC) != 0)
            return -1;
        child->streams[i].from = ends->streams[i][0];
    }
    return 0;
}

int child_start(struct child *child, const struct launch_desc *desc, const struct launch_place *place,
    int local, const sigset_t *before)
{
    struct ends ends = { .words = { -1, -1 }, .streams = { { -1, -1 }, { -1, -1 } } };
    pid_t self = getpid(), pid = -1;
    *child = (struct child){
        .rank = place->first + local, .world = place->world, .fd = -1, .streams = { { -1, -1 }, { -1, -1 } }
    };
    if (open_logs(child, desc, place->attempt, &ends) == 0 && pipe2(ends.words, O_CLOEXEC) == 0) {
        pid = fork();
        if (pid == 0)
            become_rank(child, desc, place, local, &ends, before, self);
    }
    int error = errno;
    child->fd = ends.words[0];
    const int written[] = { ends.words[1], ends.streams[0][1], ends.streams[1][1] };
    const int read_by_us[] = { ends.words[0], ends.streams[0][0], ends.streams[1][0] };
    for (int i = 0; i < CHILD_FDS; i++) {
        if (written[i] >= 0)
            close(written[i]);
        if (read_by_us[i] >= 0)
            fcntl(read_by_us[i], F_SETFL, O_NONBLOCK);
    }
    if (pid < 0) {
        child_finish(child);
        errno = error;
        return -1;
    }
    child->pid = child->was = pid;
    return 0;
}

static void read_words(struct child *child)
{
    char rest[512];
    while (child->fd >= 0) {
        size_t room = WORDS_BYTES - 1 - child->len;
        ssize_t n = read(child->fd, room ? child->words + child->len : rest, room ? room : sizeof(rest));
        if (n > 0 && room)
            child->len += (size_t)n;
        if (n > 0 || (n < 0 && errno == EINTR))
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        close(child->fd);
        child->fd = -1;
    }
}

static void put(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno != EINTR)
            return; /* a full disk or a closed terminal must not end the job */
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
}

static void read_stream(struct child_stream *stream, int show)
{
    char data[8192];
    while (stream->from >= 0) {
        ssize_t n = read(stream->from, data, sizeof(data));
        if (n > 0) {
            put(show, data, (size_t)n);
            put(stream->file, data, (size_t)n);
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else if (n == 0 || errno != EINTR) {
            close(stream->from);
            stream->from = -1;
        }
    }
}

void child_read(struct child *child)
{
    read_words(child);
    for (int i = 0; i < 2; i++)
        read_stream(&child->streams[i], STDOUT_FILENO + i);
}

void child_signal(const struct child *child, int sig)
{
    if (child->pid > 0)
        kill(child->pid, sig);
    if (sig == SIGKILL && child->was > 0)
        kill(-child->was, sig);
}

void child_finish(struct child *child)
{
    if (child->fd >= 0)
        close(child->fd);
    child->fd = -1;
    for (int i = 0; i < 2; i++) {
        struct child_stream *stream = &child->streams[i];
        if (stream->from >= 0)
            close(stream->from);
        if (stream->file >= 0)
            close(stream->file);
        *stream = (struct child_stream){ -1, -1 };
    }
}

/* ---- how it ended ---- */

int child_failed(const struct child *child)
{
    return !WIFEXITED(child->status) ||
           (WEXITSTATUS(child->status) != EXIT_OK && WEXITSTATUS(child->status) != EXIT_STOPPED);
}

int child_worth(const struct child *child)
{
    int sig = WIFSIGNALED(child->status) ? WTERMSIG(child->status) : 0;
    if (!child_failed(child))
        return 0;
    if (child->told && (sig == SIGTERM || sig == SIGKILL))
        return 1;
    return !sig && WEXITSTATUS(child->status) == EXIT_PEER ? 2 : 3;
}

int child_code(const struct child *child)
{
    return WIFSIGNALED(child->status) ? 128 + WTERMSIG(child->status) : WEXITSTATUS(child->status);
}

long child_oom_kills(void)
{
    char line[512], path[640] = "";
    long count = -1;
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0)
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.events", line + 3);
    }
    if (f)
        fclose(f);
    f = path[0] ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "oom_kill ", 9) == 0)
            count = atol(line + 9);
    if (f)
        fclose(f);
    return count;
}

/* The last lines of its standard error, indented, to out. */
static void add_tail(const struct child *child, char *out, size_t bytes)
{
    char text[TAIL_BYTES + 1];
    FILE *f = fopen(child->log, "r");
    size_t len = strlen(out);
    if (!f)
        return;
    fseek(f, 0, SEEK_END);
    long end = ftell(f);
    fseek(f, end > TAIL_BYTES ? end - TAIL_BYTES : 0, SEEK_SET);
    size_t n = fread(text, 1, TAIL_BYTES, f);
    fclose(f);
    text[n] = '\0';
    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    char *from = text;
    int lines = 0;
    for (char *p = text + n; p > text && lines < TAIL_LINES; p--)
        if (p[-1] == '\n' && ++lines == TAIL_LINES)
            from = p;
    for (char *save = NULL, *line = strtok_r(from, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        len += (size_t)snprintf(out + len, len < bytes ? bytes - len : 0, "\n  | %.200s", line);
}

/* What often is behind a signal. */
static const char *hint_of(int sig)
{
    return sig == SIGKILL ? " (often the host ran out of memory: see its kernel log)"
           : sig == SIGBUS
               ? " (often a file of the data was cut off or written anew while the job read it, or its disk failed)"
               : "";
}

void child_describe(const struct child *child, const char *who, const char *also, char *out, size_t bytes)
{
    int n = snprintf(out, bytes, "%s %s", who, also);
    if (n < 0 || (size_t)n >= bytes)
        return;
    char *at = out + n;
    bytes -= (size_t)n;
    if (WIFSIGNALED(child->status)) {
        int sig = WTERMSIG(child->status);
        const char *name = sigabbrev_np(sig);
        if (name)
            snprintf(at, bytes, "was killed by SIG%s%s", name, hint_of(sig));
        else /* of real time */
            snprintf(at, bytes, "was killed by signal %d", sig);
    } else if (child->len) {
        snprintf(at, bytes, "failed: %s", child->words);
        return;
    } else {
        snprintf(at, bytes, "failed with exit code %d and gave no reason%s", WEXITSTATUS(child->status),
            child->log[0] ? "" : "; see its messages above");
    }
    if (child->log[0]) {
        size_t len = strlen(out);
        snprintf(at + strlen(at), bytes - strlen(at), "; the end of %s:", child->log);
        add_tail(child, out, len + bytes);
    }
}
