/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Files: whole reads and writes that name the path on failure, mapping, and writes that appear whole or not
 * at all. EIO texts end in strerror.
 */
#ifndef SHERD_BASE_FILE_H
#define SHERD_BASE_FILE_H

#include <sherd/base.h>

struct file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
};
/* Maps a file for reading; ENOTFOUND or EIO. What is no file (a pipe, a device) is EIO here and in all that
 * opens one: see base/file_plain.h. */
int file_map(struct file_map *out, const char *path);
void file_unmap(struct file_map *map);

int file_open_read(int *fd, const char *path);
/* New file (must not exist) for writing, mode 0666 & ~umask. */
int file_open_new(int *fd, const char *path);
/* The same past the page cache, where the file system can do that: *direct is 1, and every transfer must then
 * have buffer, offset and size at multiples of FILE_DIRECT_ALIGN. Elsewhere an ordinary file, *direct 0, and
 * the process says so once. */
#define FILE_DIRECT_ALIGN ((size_t)4096)
int file_open_direct(int *fd, int *direct, const char *path);
/* For file_append; made if it is not there. */
int file_open_append(int *fd, const char *path);
/* From now on past the page cache, or through it again. Where the file system has no such thing nothing
 * happens. */
void file_set_direct(int fd, int direct);
int file_is_direct(int fd);
/* A transfer was refused (EINVAL), as some file systems do that take O_DIRECT at first: the file goes through
 * the page cache from now on, which is said as above. The transfer may be tried again. */
void file_leave_direct(int fd, const char *path);
/* Takes the blocks of a file of this size from the file system, which may then be written without running
 * out of space. Where the file system has no such thing nothing happens. */
int file_reserve(int fd, uint64_t bytes, const char *path);
int file_cut(int fd, uint64_t bytes, const char *path); /* to this size */
/* Exactly `bytes` bytes at offset, retrying short transfers, and refused ones through the page cache; reading
 * past the end is EFORMAT "ends early". */
int file_pread(int fd, void *buf, size_t bytes, uint64_t offset, const char *path);
int file_pwrite(int fd, const void *buf, size_t bytes, uint64_t offset, const char *path);
/* A whole record to the end of a file, in one call of the system: none is torn apart by another writer's. One
 * that there is no room for leaves nothing. */
int file_append(int fd, const void *record, size_t bytes, const char *path);
int file_sync(int fd, const char *path); /* piece by piece, see file_watch */
/* Closes and reports errors that close brings; fd -1 is fine. */
int file_close(int fd, const char *path);

/* Whole file as a NUL-terminated string (mem_free), at most max_bytes. */
int file_read_text(char **out, size_t *bytes, const char *path, size_t max_bytes);
/* Writes path.tmp.PID, syncs, renames over path, syncs the folder. */
int file_write_atomic(const char *path, const void *data, size_t bytes);
/* Removes what processes that died in file_write_atomic left of `name` in `dir`; nobody is writing it now. */
int file_clear_temps(const char *dir, const char *name);

int file_size(uint64_t *out, const char *path);  /* ENOTFOUND or EIO */
int file_exists(const char *path);               /* 1 or 0 */
int file_is_dir(const char *path);               /* 1 or 0 */
int file_has(const char *dir, const char *name); /* 1 if the folder has that name, or 0 */
int file_mkdirs(const char *path);               /* as mkdir -p, and syncs what holds a new one */
int file_sync_dir(const char *path);
int file_rename(const char *from, const char *to);
/* Removes a file, or a folder and all below it; missing is fine. Never follows links. */
int file_remove_tree(const char *path);
/* Names in a folder but . and .., sorted by byte; free with file_list_free. */
int file_list(char ***names, int *n, const char *path);
void file_list_free(char **names, int n);
/* Bytes that an ordinary user can still write where `path` lies. */
int file_free_space(uint64_t *out, const char *path);

/* Takes `path`, made if need be, for this process until file_close(*fd); the system lets go of it when the
 * process dies. What stands in the file names the holder, process and host: EEXISTS tells it. EUNSUPPORTED
 * where the file system has no locks. */
int file_lock(int *fd, const char *path);

/* What to do about an errno, to be put behind its text: "; free some there, ...", or "". */
const char *file_way_out(int err);
/* "cannot VERB 'path': reason" and the way out, from errno: ENOTFOUND, EEXISTS or EIO. */
int file_fail(const char *verb, const char *path);

/* Whoever wants to know that this thread gets on with files: told before every call that changes a file
 * system, and with every piece that was read or synced, so that long work is told from work that hangs.
 * Returns who was told before, to be put back; fn NULL = nobody. */
struct file_watch {
    void (*fn)(void *ctx);
    void *ctx;
};
struct file_watch file_watch(struct file_watch watch);
struct file_watch file_watched(void);

/* The door for tests: asked before every call that changes a file system, by a word for the call ("create",
 * "direct", "write", "sync", "rename", ..., "submit" where a ring of writes is handed over and "answer" where
 * one of them comes back), before a "read" at an offset, and with the free "space" of a file system, with the
 * path. Returns 0, or the errno with which the call is to fail instead; a write or read may be given fewer
 * *bytes, and is then short, as may the space. NULL takes it away. */
typedef int (*file_hook_fn)(const char *call, const char *path, size_t *bytes);
void file_hook(file_hook_fn fn);
/* 1 if the call may go on; else 0, with errno set. */
int file_may(const char *call, const char *path, size_t *bytes);

#endif
