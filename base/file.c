/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * POSIX files with failures turned into a status and a text that names the path. Transfers are retried
 * until whole; interrupted calls are repeated.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

#define FIRST_READ_BYTES 4096 /* for files that do not know their size, as pipes */
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
    return err == EFBIG ? "; raise the limit of file sizes (ulimit -f), or write to another file system" : "";
}

/* "cannot VERB 'path': reason", from errno. */
static int io_fail(const char *verb, const char *path)
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
        st = io_fail("examine", path);
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        st = SHERD_FAIL(SHERD_EIO, "cannot map '%s': Not a regular file", path);
        goto out;
    }
    if (info.st_size > 0) {
        void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            st = io_fail("map", path);
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

static int open_retry(const char *path, int flags)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int file_open_read(int *fd, const char *path)
{
    *fd = open_retry(path, O_RDONLY);
    return *fd < 0 ? io_fail("open", path) : SHERD_OK;
}

int file_open_new(int *fd, const char *path)
{
    *fd = file_may("create", path, NULL) ? open_retry(path, O_RDWR | O_CREAT | O_EXCL) : -1;
    return *fd < 0 ? io_fail("create", path) : SHERD_OK;
}

int file_open_append(int *fd, const char *path)
{
    *fd = file_may("create", path, NULL) ? open_retry(path, O_WRONLY | O_CREAT | O_APPEND) : -1;
    return *fd < 0 ? io_fail("open", path) : SHERD_OK;
}

/* Made first and asked for O_DIRECT after: a file system that refuses it may have made the file all the same.
 */
int file_open_direct(int *fd, int *direct, const char *path)
{
    SHERD_TRY(file_open_new(fd, path));
    *direct = fcntl(*fd, F_SETFL, O_DIRECT) == 0;
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
    static atomic_int told;
    if (!file_is_direct(fd))
        return; /* another transfer of this file was first */
    file_set_direct(fd, 0);
    if (atomic_exchange(&told, 1) == 0)
        log_info(
            "%s lies on a file system that refuses transfers past the page cache: they go through it", path);
}

int file_reserve(int fd, uint64_t bytes, const char *path)
{
    int r = -1;
    if (bytes == 0)
        return SHERD_OK;
    if (!file_may("reserve", path, NULL))
        return io_fail("reserve space for", path);
    do
        r = fallocate(fd, 0, 0, (off_t)bytes);
    while (r != 0 && errno == EINTR);
    if (r != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return io_fail("reserve space for", path);
    return SHERD_OK;
}

int file_cut(int fd, uint64_t bytes, const char *path)
{
    int r = -1;
    if (file_may("cut", path, NULL))
        do
            r = ftruncate(fd, (off_t)bytes);
        while (r != 0 && errno == EINTR);
    return r != 0 ? io_fail("set the size of", path) : SHERD_OK;
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
            return io_fail("read", path);
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
    if (n >= 0 && (size_t)n < bytes)
        errno = ENOSPC; /* what there was room for went in */
    return n == (ssize_t)bytes ? SHERD_OK : io_fail("write", path);
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
            return io_fail("write", path);
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
    return r != 0 ? io_fail("sync", path) : SHERD_OK;
}

int file_close(int fd, const char *path)
{
    if (fd < 0)
        return SHERD_OK;
    /* An interrupted close has closed the file on Linux; it must not be repeated. */
    int r = close(fd);
    return r != 0 && errno != EINTR ? io_fail("close", path) : SHERD_OK;
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
                return io_fail("read", path);
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

/* The folder that `path` lies in; mem_free it. */
static char *parent_of(const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    while (len > 0 && path[len - 1] != '/')
        len--;
    while (len > 1 && path[len - 1] == '/')
        len--;
    return len ? mem_printf("%.*s", (int)len, path) : mem_strdup(".");
}

int file_write_atomic(const char *path, const void *data, size_t bytes)
{
    int st = SHERD_ENOMEM, fd = -1;
    char *dir = parent_of(path), *temp = mem_printf("%s.tmp.%ld", path, (long)getpid());
    if (!dir || !temp)
        goto out;
    unlink(temp); /* of a dead process with our number */
    SHERD_TRY_OUT(file_open_new(&fd, temp));
    st = file_pwrite(fd, data, bytes, 0, temp);
    if (st == SHERD_OK)
        st = file_sync(fd, temp);
    SHERD_KEEP(st, file_close(fd, temp));
    if (st == SHERD_OK)
        st = file_rename(temp, path);
    if (st != SHERD_OK)
        unlink(temp);
    else
        st = file_sync_dir(dir);
out:
    mem_free(temp);
    mem_free(dir);
    return st;
}

int file_size(uint64_t *out, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return io_fail("examine", path);
    *out = (uint64_t)info.st_size;
    return SHERD_OK;
}

int file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int file_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int make_dir(const char *path)
{
    return file_may("mkdir", path, NULL) ? mkdir(path, 0777) : -1;
}

int file_mkdirs(const char *path)
{
    char *part = mem_strdup(path);
    int st = SHERD_OK;
    if (!part)
        return SHERD_ENOMEM;
    for (char *p = part + (*part == '/');; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char was = *p;
        *p = '\0';
        if (*part && !file_is_dir(part) && make_dir(part) != 0 && !(errno == EEXIST && file_is_dir(part))) {
            st = io_fail("make the folder", part);
            break;
        }
        *p = was;
        if (was == '\0')
            break;
    }
    mem_free(part);
    return st;
}

int file_sync_dir(const char *path)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return io_fail("open the folder", path);
    int st = SHERD_OK;
    if ((!file_may("sync", path, NULL) || fsync(fd) != 0) &&
        errno != EINVAL) /* EINVAL: a file system that has nothing to sync for folders */
        st = io_fail("sync the folder", path);
    SHERD_KEEP(st, file_close(fd, path));
    return st;
}

int file_rename(const char *from, const char *to)
{
    if (file_may("rename", to, NULL) && rename(from, to) == 0)
        return SHERD_OK;
    int err = errno;
    int status = err == ENOENT                       ? SHERD_ENOTFOUND
                 : err == EEXIST || err == ENOTEMPTY ? SHERD_EEXISTS
                                                     : SHERD_EIO;
    return SHERD_FAIL(status, "cannot rename '%s' to '%s': %s", from, to, strerror(err));
}

static int remove_at(int at, const char *name, int flags, const char *path)
{
    return file_may("remove", path, NULL) ? unlinkat(at, name, flags) : -1;
}

/* Everything below the folder `name` of `at`; `path` is for messages. Links are removed, never followed. */
static int empty_dir(int at, const char *name, const char *path)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), st = SHERD_OK;
    if (fd < 0)
        return io_fail("open the folder", path);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        st = io_fail("open the folder", path);
        close(fd);
        return st;
    }
    const struct dirent *entry;
    while (st == SHERD_OK && (errno = 0, entry = readdir(dir))) {
        const char *child = entry->d_name;
        if (strcmp(child, ".") == 0 || strcmp(child, "..") == 0)
            continue;
        if (remove_at(fd, child, 0, path) == 0 || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM) {
            st = io_fail("remove what is in", path);
            break;
        }
        char *below = mem_printf("%s/%s", path, child);
        st = below ? empty_dir(fd, child, below) : SHERD_ENOMEM;
        if (st == SHERD_OK && remove_at(fd, child, AT_REMOVEDIR, below) != 0 && errno != ENOENT)
            st = io_fail("remove the folder", below);
        mem_free(below);
    }
    if (st == SHERD_OK && errno != 0 && !entry)
        st = io_fail("list the folder", path);
    closedir(dir);
    return st;
}

int file_remove_tree(const char *path)
{
    char *p = mem_strdup(path);
    if (!p)
        return SHERD_ENOMEM;
    for (size_t len = strlen(p); len > 1 && p[len - 1] == '/'; len--)
        p[len - 1] = '\0'; /* a link with a slash behind it would be followed */
    int st = SHERD_OK;
    struct stat info;
    if (lstat(p, &info) != 0) {
        if (errno != ENOENT)
            st = io_fail("examine", p);
    } else if (S_ISDIR(info.st_mode)) {
        st = empty_dir(AT_FDCWD, p, p);
        if (st == SHERD_OK && remove_at(AT_FDCWD, p, AT_REMOVEDIR, p) != 0 && errno != ENOENT)
            st = io_fail("remove the folder", p);
    } else if (remove_at(AT_FDCWD, p, 0, p) != 0 && errno != ENOENT) {
        st = io_fail("remove", p);
    }
    mem_free(p);
    return st;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int file_list(char ***names, int *n, const char *path)
{
    char **list = NULL;
    int count = 0, cap = 0, st = SHERD_OK;
    DIR *dir = opendir(path);
    if (!dir)
        return io_fail("list the folder", path);
    const struct dirent *entry;
    while ((errno = 0, entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        SHERD_TRY_OUT(mem_grow(&list, &cap, count + 1, sizeof(*list)));
        list[count] = mem_strdup(entry->d_name);
        if (!list[count]) {
            st = SHERD_ENOMEM;
            goto out;
        }
        count++;
    }
    if (errno != 0)
        st = io_fail("list the folder", path);
out:
    closedir(dir);
    if (st != SHERD_OK) {
        file_list_free(list, count);
        return st;
    }
    if (count > 0)
        qsort(list, (size_t)count, sizeof(*list), by_bytes);
    *names = list;
    *n = count;
    return SHERD_OK;
}

void file_list_free(char **names, int n)
{
    for (int i = 0; i < n; i++)
        mem_free(names[i]);
    mem_free(names);
}

int file_free_space(uint64_t *out, const char *path)
{
    struct statvfs info;
    char *p = mem_strdup(path);
    if (!p)
        return SHERD_ENOMEM;
    /* What does not exist yet will lie where its nearest folder lies. */
    while (statvfs(p, &info) != 0) {
        if (errno != ENOENT || strcmp(p, ".") == 0 || strcmp(p, "/") == 0) {
            int st = io_fail("examine the file system of", p);
            mem_free(p);
            return st;
        }
        char *up = parent_of(p);
        mem_free(p);
        if (!up)
            return SHERD_ENOMEM;
        p = up;
    }
    mem_free(p);
    *out = (uint64_t)info.f_bavail * info.f_frsize;
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
    *fd = open_retry(path, O_RDWR | O_CREAT);
    if (*fd < 0)
        return io_fail("create", path);
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
                  : io_fail("lock", path);
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
