/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * POSIX files with failures turned into a status and a text that names the path. Transfers are retried
 * until whole; interrupted calls are repeated. Names and folders are in base/file_tree.c.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_plain.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

#define FIRST_READ_BYTES 4096 /* for files that do not know their size, as those of the system */
#define SYNC_BYTES ((off_t)64 << 20)

static _Thread_local struct file_watch watched;

struct file_watch file_watch(struct file_watch watch)
{
    struct file_watch before = watched;
    watched = watch;
    return before;
}

struct file_watch file_watched(void)
{
    return watched;
}

static void got_on(void)
{
    if (watched.fn)
        watched.fn(watched.ctx);
}

static _Atomic(file_hook_fn) hook;

void file_hook(file_hook_fn fn)
{
    atomic_store(&hook, fn);
}

int file_may(const char *call, const char *path, size_t *bytes)
{
    size_t any = 0;
    got_on();
    file_hook_fn fn = atomic_load_explicit(&hook, memory_order_acquire);
    int err = fn ? fn(call, path, bytes ? bytes : &any) : 0;
    if (err)
        errno = err;
    return err == 0;
}

const char *file_way_out(int err)
{
    if (err == ENOSPC || err == EDQUOT)
        return "; free some there, or write elsewhere";
    if (err == EACCES)
        return "; change its permissions or those of the folder it is in, or name another";
    if (err == EMFILE || err == ENFILE)
        return "; raise the limit of open files (ulimit -n)";
    if (err == EROFS)
        return "; write to another file system";
    return err == EFBIG ? "; raise the limit of file sizes (ulimit -f), or write to another file system" : "";
}

int file_fail(const char *verb, const char *path)
{
    int err = errno;
    int status = err == ENOENT || err == ENOTDIR ? SHERD_ENOTFOUND
                 : err == EEXIST                 ? SHERD_EEXISTS
                                                 : SHERD_EIO;
    return SHERD_FAIL(status, "cannot %s '%s': %s%s", verb, path, strerror(err), file_way_out(err));
}

int file_map(struct file_map *out, const char *path)
{
    int fd = -1, st = SHERD_OK;
    struct stat info;
    *out = (struct file_map){ 0 };
    SHERD_TRY(file_open_read(&fd, path));
    if (fstat(fd, &info) != 0) {
        st = file_fail("examine", path);
        goto out;
    }
    if (info.st_size > 0) {
        void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            st = file_fail("map", path);
            goto out;
        }
        out->data = p;
        out->bytes = (size_t)info.st_size;
    }
out:
    SHERD_KEEP(st, file_close(fd, path));
    if (st != SHERD_OK)
        file_unmap(out);
    return st;
}

void file_unmap(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (struct file_map){ 0 };
}

static int open_retry(int *fd, const char *verb, const char *path, int flags)
{
    const char *other = file_other(path);
    *fd = -1;
    if (other && !(flags & O_EXCL))
        return SHERD_FAIL(SHERD_EIO, "cannot %s '%s': it is %s", verb, path, other);
    do
        *fd = open(path, flags | O_CLOEXEC, 0666);
    while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? file_fail(verb, path) : SHERD_OK;
}

int file_open_read(int *fd, const char *path)
{
    return open_retry(fd, "open", path, O_RDONLY);
}

/* The same, unless the hook has an errno for it. */
static int open_to_write(int *fd, const char *verb, const char *path, int flags)
{
    *fd = -1;
    return file_may("create", path, NULL) ? open_retry(fd, verb, path, flags) : file_fail(verb, path);
}

int file_open_new(int *fd, const char *path)
{
    return open_to_write(fd, "create", path, O_RDWR | O_CREAT | O_EXCL);
}

int file_open_append(int *fd, const char *path)
{
    return open_to_write(fd, "open", path, O_WRONLY | O_CREAT | O_APPEND);
}

static void say_through(const char *path)
{
    static atomic_int told;
    if (atomic_exchange(&told, 1) == 0)
        log_info(
            "%s lies on a file system that refuses transfers past the page cache: they go through it", path);
}

/* Made first and asked for O_DIRECT after: a file system that refuses it may have made the file all the same.
 */
int file_open_direct(int *fd, int *direct, const char *path)
{
    SHERD_TRY(file_open_new(fd, path));
    *direct = file_may("direct", path, NULL) && fcntl(*fd, F_SETFL, O_DIRECT) == 0;
    if (!*direct)
        say_through(path);
    return SHERD_OK;
}

void file_set_direct(int fd, int direct)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0)
        (void)fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

int file_is_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
}

void file_leave_direct(int fd, const char *path)
{
    if (!file_is_direct(fd))
        return; /* another transfer of this file was first */
    file_set_direct(fd, 0);
    say_through(path);
}

int file_reserve(int fd, uint64_t bytes, const char *path)
{
    int r = -1;
    if (bytes == 0)
        return SHERD_OK;
    if (!file_may("reserve", path, NULL))
        return file_fail("reserve space for", path);
    do
        r = fallocate(fd, 0, 0, (off_t)bytes);
    while (r != 0 && errno == EINTR);
    if (r != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return file_fail("reserve space for", path);
    return SHERD_OK;
}

int file_cut(int fd, uint64_t bytes, const char *path)
{
    int r = -1;
    if (file_may("cut", path, NULL))
        do
            r = ftruncate(fd, (off_t)bytes);
        while (r != 0 && errno == EINTR);
    return r != 0 ? file_fail("set the size of", path) : SHERD_OK;
}

int file_pread(int fd, void *buf, size_t bytes, uint64_t offset, const char *path)
{
    size_t done = 0;
    int refused = 0;
    while (done < bytes) {
        size_t part = bytes - done;
        ssize_t n = -1;
        if (file_may("read", path, &part))
            n = pread(fd, (char *)buf + done, part, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && !refused++) {
            file_leave_direct(fd, path);
            continue;
        }
        if (n < 0)
            return file_fail("read", path);
        if (n == 0)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: the file ends early: %zu bytes wanted at offset %llu, %zu are there; it was cut off, so "
                "copy it again or use another",
                path, bytes, (unsigned long long)offset, done);
        done += (size_t)n;
    }
    return SHERD_OK;
}

int file_append(int fd, const void *record, size_t bytes, const char *path)
{
    size_t part = bytes;
    ssize_t n;
    do
        n = file_may("write", path, &part) ? write(fd, record, part) : -1;
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)bytes)
        return SHERD_OK;
    if (n >= 0) { /* what there was room for went in, and is no record */
        off_t end = lseek(fd, 0, SEEK_CUR);
        (void)!ftruncate(fd, end - n);
        errno = ENOSPC;
    }
    return file_fail("write", path);
}

int file_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset, const char *path)
{
    size_t done = 0;
    int refused = 0;
    while (done < bytes) {
        size_t part = bytes - done;
        ssize_t n = -1;
        if (file_may("write", path, &part))
            n = pwrite(fd, (const char *)buf + done, part, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && !refused++) {
            file_leave_direct(fd, path);
            continue;
        }
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return file_fail("write", path);
        done += (size_t)n;
    }
    return SHERD_OK;
}

/* One call for a large file would stand still as long as the disk takes for all of it. A failure is told here
 * or not at all: the system tells it once. */
static int sync_pieces(int fd)
{
    const unsigned whole = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_size <= SYNC_BYTES)
        return 0;
    for (off_t at = 0; at < info.st_size; at += SYNC_BYTES) {
        (void)sync_file_range(
            fd, at + SYNC_BYTES, SYNC_BYTES, SYNC_FILE_RANGE_WRITE); /* the next one begins */
        if (sync_file_range(fd, at, SYNC_BYTES, whole) != 0 && (errno == EIO || errno == ENOSPC))
            return -1;
        got_on();
    }
    return 0;
}

int file_sync(int fd, const char *path)
{
    int r = -1;
    if (file_may("sync", path, NULL) && sync_pieces(fd) == 0)
        do
            r = fsync(fd);
        while (r != 0 && errno == EINTR);
    return r != 0 ? file_fail("sync", path) : SHERD_OK;
}

int file_close(int fd, const char *path)
{
    if (fd < 0)
        return SHERD_OK;
    /* An interrupted close has closed the file on Linux; it must not be repeated. */
    int r = close(fd);
    return r != 0 && errno != EINTR ? file_fail("close", path) : SHERD_OK;
}

/* Reads to the end; the size that the file states is only a first guess. */
static int read_all(int fd, char **data, size_t *len, const char *path, size_t max_bytes)
{
    struct stat info;
    size_t cap = FIRST_READ_BYTES;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        cap = MIN((size_t)info.st_size, max_bytes) + 2; /* one to see the end, one for the NUL */
    for (;;) {
        char *grown = mem_realloc(*data, cap, 1);
        if (!grown)
            return status_context(SHERD_ENOMEM, "%s", path);
        *data = grown;
        while (*len < cap - 1) {
            ssize_t n = read(fd, *data + *len, cap - 1 - *len);
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                return file_fail("read", path);
            if (n == 0)
                return SHERD_OK;
            *len += (size_t)n;
            if (*len > max_bytes)
                return SHERD_FAIL(SHERD_EFORMAT,
                    "%s: the file is larger than the %zu bytes that are read here", path, max_bytes);
        }
        cap *= 2;
    }
}

int file_read_text(char **out, size_t *bytes, const char *path, size_t max_bytes)
{
    int fd;
    char *data = NULL;
    size_t len = 0;
    SHERD_TRY(file_open_read(&fd, path));
    int st = read_all(fd, &data, &len, path, max_bytes);
    SHERD_KEEP(st, file_close(fd, path));
    if (st != SHERD_OK) {
        mem_free(data);
        return st;
    }
    data[len] = '\0';
    *out = data;
    if (bytes)
        *bytes = len;
    return SHERD_OK;
}

/* What a holder wrote about itself; "" if nothing can be read. */
static void read_holder(int fd, char *out, size_t bytes)
{
    ssize_t n = pread(fd, out, bytes - 1, 0);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

int file_lock(int *fd, const char *path)
{
    char text[256], host[128] = "?";
    SHERD_TRY(open_retry(fd, "create", path, O_RDWR | O_CREAT));
    int r, st = SHERD_OK;
    do
        r = flock(*fd, LOCK_EX | LOCK_NB);
    while (r != 0 && errno == EINTR);
    if (r != 0 && errno == EWOULDBLOCK) {
        read_holder(*fd, text, sizeof(text));
        st = SHERD_FAIL(SHERD_EEXISTS, "%s is held by %s", path, text[0] ? text : "another process");
    } else if (r != 0) {
        int none = errno == EOPNOTSUPP || errno == ENOLCK || errno == ENOSYS;
        st = none ? SHERD_FAIL(SHERD_EUNSUPPORTED, "%s: this file system has no locks", path)
                  : file_fail("lock", path);
    } else {
        (void)gethostname(host, sizeof(host) - 1);
        int n = snprintf(text, sizeof(text), "process %ld on %s\n", (long)getpid(), host);
        st = file_cut(*fd, 0, path);
        if (st == SHERD_OK)
            st = file_pwrite(*fd, text, (size_t)n, 0, path);
    }
    if (st != SHERD_OK) {
        (void)close(*fd);
        *fd = -1;
    }
    return st;
}
