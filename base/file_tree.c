/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Names and folders: what is there, files that appear whole or not at all, making, renaming and removing.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

#define TEMP_TAIL ".tmp." /* and the process, behind the name of a file that is not whole yet */

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
    char *dir = parent_of(path), *temp = mem_printf("%s" TEMP_TAIL "%ld", path, (long)getpid());
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
        return file_fail("examine", path);
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

int file_has(const char *dir, const char *name)
{
    char path[PATH_MAX]; /* nothing has a longer one */
    int len = snprintf(path, sizeof(path), "%s/%s", dir, name);
    return len >= 0 && (size_t)len < sizeof(path) && file_exists(path);
}

/* Makes a folder that outlasts a power cut, unless there is one. */
static int make_dir(const char *path)
{
    if (file_is_dir(path))
        return SHERD_OK;
    if (!file_may("mkdir", path, NULL) || mkdir(path, 0777) != 0)
        return errno == EEXIST && file_is_dir(path) ? SHERD_OK : file_fail("make the folder", path);
    char *up = parent_of(path);
    int st = !up ? SHERD_ENOMEM : access(up, R_OK) == 0 ? file_sync_dir(up) : SHERD_OK;
    mem_free(up);
    return st;
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
        if (*part)
            SHERD_TRY_OUT(make_dir(part));
        *p = was;
        if (was == '\0')
            break;
    }
out:
    mem_free(part);
    return st;
}

int file_sync_dir(const char *path)
{
    int fd;
    do
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return file_fail("open the folder", path);
    int st = SHERD_OK;
    if ((!file_may("sync", path, NULL) || fsync(fd) != 0) &&
        errno != EINVAL) /* EINVAL: a file system that has nothing to sync for folders */
        st = file_fail("sync the folder", path);
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
        return file_fail("open the folder", path);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        st = file_fail("open the folder", path);
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
            st = file_fail("remove what is in", path);
            break;
        }
        char *below = mem_printf("%s/%s", path, child);
        st = below ? empty_dir(fd, child, below) : SHERD_ENOMEM;
        if (st == SHERD_OK && remove_at(fd, child, AT_REMOVEDIR, below) != 0 && errno != ENOENT)
            st = file_fail("remove the folder", below);
        mem_free(below);
    }
    if (st == SHERD_OK && errno != 0 && !entry)
        st = file_fail("list the folder", path);
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
            st = file_fail("examine", p);
    } else if (S_ISDIR(info.st_mode)) {
        st = empty_dir(AT_FDCWD, p, p);
        if (st == SHERD_OK && remove_at(AT_FDCWD, p, AT_REMOVEDIR, p) != 0 && errno != ENOENT)
            st = file_fail("remove the folder", p);
    } else if (remove_at(AT_FDCWD, p, 0, p) != 0 && errno != ENOENT) {
        st = file_fail("remove", p);
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
        return file_fail("list the folder", path);
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
        st = file_fail("list the folder", path);
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

static int is_temp_of(const char *file, const char *name)
{
    if (!text_starts(file, name) || !text_starts(file + strlen(name), TEMP_TAIL))
        return 0;
    const char *pid = file + strlen(name) + strlen(TEMP_TAIL);
    return *pid && !pid[strspn(pid, "0123456789")];
}

int file_clear_temps(const char *dir, const char *name)
{
    char **names;
    int n, st = SHERD_OK;
    SHERD_TRY(file_list(&names, &n, dir));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        if (!is_temp_of(names[i], name))
            continue;
        char *path = mem_printf("%s/%s", dir, names[i]);
        st = path ? file_remove_tree(path) : SHERD_ENOMEM;
        mem_free(path);
    }
    file_list_free(names, n);
    return st;
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
            int st = file_fail("examine the file system of", p);
            mem_free(p);
            return st;
        }
        char *up = parent_of(p);
        mem_free(p);
        if (!up)
            return SHERD_ENOMEM;
        p = up;
    }
    size_t bytes = (size_t)info.f_bavail * info.f_frsize;
    int st = file_may("space", p, &bytes) ? SHERD_OK : file_fail("examine the file system of", p);
    mem_free(p);
    *out = bytes;
    return st;
}
