/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Files in a folder of their own: short reads, atomic writes that fail, links, listing.
 */
#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "tests/folder.h"

static char root[FOLDER_BYTES];

/* A path in the test's folder. */
static const char *at(const char *name)
{
    return folder_path(root, "%s", name);
}

static void put(const char *name, const char *text)
{
    ASSERT_OK(file_write_atomic(at(name), text, strlen(text)));
}

static void assert_holds(const char *name, const char *want)
{
    char *text;
    ASSERT_OK(file_read_text(&text, NULL, at(name), 1 << 20));
    assert_string_equal(text, want);
    mem_free(text);
}

static int enter(void **state)
{
    (void)state;
    return folder_make(root, "file");
}

static int leave(void **state)
{
    (void)state;
    return file_remove_tree(root);
}

static void maps(void **state)
{
    (void)state;
    struct file_map map;
    put("map", "hello");
    ASSERT_OK(file_map(&map, at("map")));
    assert_int_equal(map.bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    file_unmap(&map);
    assert_null(map.data);
    put("empty", "");
    ASSERT_OK(file_map(&map, at("empty")));
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    file_unmap(&map);
    ASSERT_FAILS(file_map(&map, at("nowhere")), SHERD_ENOTFOUND, "nowhere': No such file");
    ASSERT_FAILS(file_map(&map, root), SHERD_EIO, "it is a folder; name a file");
}

static void reads_and_writes_whole(void **state)
{
    (void)state;
    int fd;
    char buf[8] = { 0 };
    const char *path = at("data");
    ASSERT_OK(file_open_new(&fd, path));
    ASSERT_OK(file_pwrite(fd, "world", 5, 5, path));
    ASSERT_OK(file_pwrite(fd, "hello", 5, 0, path));
    ASSERT_OK(file_sync(fd, path));
    ASSERT_OK(file_pread(fd, buf, 4, 3, path));
    assert_string_equal(buf, "lowo");
    ASSERT_FAILS(
        file_pread(fd, buf, 4, 8, path), SHERD_EFORMAT, "ends early: 4 bytes wanted at offset 8, 2 are");
    ASSERT_CONTAINS(sherd_error(), path);
    ASSERT_FAILS(file_pread(fd, buf, 1, 100, path), SHERD_EFORMAT, "ends early");
    ASSERT_OK(file_pread(fd, buf, 0, 100, path));
    ASSERT_OK(file_close(fd, path));
    ASSERT_FAILS(file_open_new(&fd, path), SHERD_EEXISTS, "File exists");
    ASSERT_OK(file_open_read(&fd, path));
    ASSERT_FAILS(file_pwrite(fd, "x", 1, 0, path), SHERD_EIO, "cannot write");
    ASSERT_OK(file_close(fd, path));
    ASSERT_FAILS(file_pread(fd, buf, 1, 0, path), SHERD_EIO, "Bad file descriptor");
    ASSERT_FAILS(file_sync(fd, path), SHERD_EIO, "cannot sync");
    ASSERT_FAILS(file_close(fd, path), SHERD_EIO, "cannot close");
    ASSERT_OK(file_close(-1, path));
    ASSERT_FAILS(file_open_read(&fd, at("data/below")), SHERD_ENOTFOUND, "Not a directory");
}

static size_t room;

static int leave_room(const char *call, const char *path, size_t *bytes)
{
    (void)path;
    if (!strcmp(call, "write"))
        *bytes = *bytes < room ? *bytes : room;
    return 0;
}

/* Two writers of one file; and a record of which a part has no room is a full disk, and leaves nothing. */
static void appends_whole_records(void **state)
{
    (void)state;
    int a, b;
    const char *path = at("records");
    ASSERT_OK(file_open_append(&a, path));
    ASSERT_OK(file_append(a, "one\n", 4, path));
    ASSERT_OK(file_open_append(&b, path));
    ASSERT_OK(file_append(b, "two\n", 4, path));
    ASSERT_OK(file_append(a, "three\n", 6, path));
    ASSERT_OK(file_append(a, "", 0, path));
    assert_holds("records", "one\ntwo\nthree\n");
    room = 3;
    file_hook(leave_room);
    ASSERT_FAILS(file_append(a, "four\n", 5, path), SHERD_EIO, "No space left on device; free some there");
    file_hook(NULL);
    ASSERT_CONTAINS(sherd_error(), path);
    assert_holds("records", "one\ntwo\nthree\n");
    ASSERT_OK(file_close(a, path));
    ASSERT_OK(file_close(b, path));
    ASSERT_FAILS(file_open_append(&a, at("nowhere/records")), SHERD_ENOTFOUND, "cannot open");
}

static void reads_text_up_to_a_limit(void **state)
{
    (void)state;
    char *text, big[10001];
    size_t bytes;
    memset(big, 'x', 10000);
    big[10000] = '\0';
    put("big", big);
    ASSERT_OK(file_read_text(&text, &bytes, at("big"), 10000));
    assert_int_equal(bytes, 10000);
    assert_string_equal(text, big);
    mem_free(text);
    ASSERT_FAILS(file_read_text(&text, &bytes, at("big"), 9999), SHERD_EFORMAT, "larger than the 9999 bytes");
    ASSERT_FAILS(file_read_text(&text, &bytes, root, 10), SHERD_EIO, "it is a folder; name a file");
}

/* Whoever opens a named pipe waits for its other end; what one rank reads from any pipe the others miss. */
static void a_pipe_is_refused(void **state)
{
    (void)state;
    int ends[2], fd;
    char *text, path[64];
    struct file_map map;
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(pipe(ends), 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
    const char *const pipes[] = { at("pipe"), path };
    for (size_t i = 0; i < ARRAY_LEN(pipes); i++) {
        ASSERT_FAILS(
            file_read_text(&text, NULL, pipes[i], 10), SHERD_EIO, "it is a pipe; write what comes through");
        ASSERT_CONTAINS(sherd_error(), pipes[i]);
    }
    ASSERT_FAILS(file_map(&map, at("pipe")), SHERD_EIO, "it is a pipe");
    ASSERT_FAILS(file_open_read(&fd, at("pipe")), SHERD_EIO, "it is a pipe");
    ASSERT_FAILS(file_open_append(&fd, at("pipe")), SHERD_EIO, "it is a pipe");
    ASSERT_FAILS(file_lock(&fd, at("pipe")), SHERD_EIO, "it is a pipe");
    assert_int_equal(fd, -1);
    ASSERT_FAILS(file_open_new(&fd, at("pipe")), SHERD_EEXISTS, "File exists");
    ASSERT_FAILS(file_open_read(&fd, "/dev/null"), SHERD_EIO, "it is a device; name a file");
    close(ends[0]);
    close(ends[1]);
}

static void atomic_write_replaces(void **state)
{
    (void)state;
    char **names;
    int n;
    ASSERT_OK(file_mkdirs(at("atomic")));
    put("atomic/f", "old");
    put("atomic/f", "new and longer");
    assert_holds("atomic/f", "new and longer");
    ASSERT_OK(file_list(&names, &n, at("atomic")));
    assert_int_equal(n, 1);
    file_list_free(names, n);
    ASSERT_FAILS(file_write_atomic(at("no/such/folder"), "x", 1), SHERD_ENOTFOUND, "no/such/folder");
}

static int refusal;

static int refuse(const char *call, const char *path, size_t *bytes)
{
    (void)path;
    (void)bytes;
    return strcmp(call, "create") == 0 ? refusal : 0;
}

static void a_refusal_has_a_way_out(void **state)
{
    (void)state;
    refusal = EACCES;
    file_hook(refuse);
    ASSERT_FAILS(file_write_atomic(at("refused"), "x", 1), SHERD_EIO,
        "Permission denied; change its permissions or those of the folder it is in");
    refusal = EROFS;
    ASSERT_FAILS(file_write_atomic(at("refused"), "x", 1), SHERD_EIO,
        "Read-only file system; write to another file system");
    file_hook(NULL);
    assert_false(file_exists(at("refused")));
}

static void what_the_dead_left_is_cleared(void **state)
{
    (void)state;
    static const char *const stay[] = { "f", "f.tmp.", "f.tmp.12x", "f.tmpx12", "g.tmp.12", "xf.tmp.12" };
    char **names, path[64];
    int n;
    ASSERT_OK(file_mkdirs(at("dead")));
    for (size_t i = 0; i < ARRAY_LEN(stay); i++) {
        snprintf(path, sizeof(path), "dead/%s", stay[i]);
        put(path, "");
    }
    put("dead/f.tmp.12", "");
    put("dead/f.tmp.4000000", "");
    ASSERT_OK(file_clear_temps(at("dead"), "f"));
    ASSERT_OK(file_list(&names, &n, at("dead")));
    assert_int_equal(n, ARRAY_LEN(stay));
    for (int i = 0; i < n; i++)
        assert_string_equal(names[i], stay[i]);
    file_list_free(names, n);
    ASSERT_FAILS(file_clear_temps(at("nowhere"), "f"), SHERD_ENOTFOUND, "nowhere");
}

static void assert_only_old(void)
{
    char **names;
    int n;
    assert_holds("full/f", "old");
    ASSERT_OK(file_list(&names, &n, at("full")));
    assert_int_equal(n, 1);
    file_list_free(names, n);
}

static void failed_atomic_write_leaves_the_old_file(void **state)
{
    (void)state;
    static const char data[100000];
    struct rlimit old, small = { 0 };
    ASSERT_OK(file_mkdirs(at("full")));
    put("full/f", "old");
    /* A limit on file size stands for a full disk. */
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){ 50000, old.rlim_max };
    setrlimit(RLIMIT_FSIZE, &small);
    int st = file_write_atomic(at("full/f"), data, sizeof(data));
    setrlimit(RLIMIT_FSIZE, &old);
    ASSERT_FAILS(st, SHERD_EIO, "File too large");
    assert_only_old();
    for (int k = 1;; k++) {
        mem_fail_at(k);
        uint64_t before = mem_count();
        st = file_write_atomic(at("full/f"), "old", 3);
        if (mem_count() - before < (uint64_t)k)
            break;
        assert_int_equal(st, SHERD_ENOMEM);
        mem_fail_at(0);
        assert_only_old();
    }
    mem_fail_at(0);
    ASSERT_OK(st);
    /* A folder in the way of the rename. */
    ASSERT_OK(file_mkdirs(at("full2/f/x")));
    ASSERT_FAILS(file_write_atomic(at("full2/f"), "new", 3), SHERD_EIO, "cannot rename");
    assert_true(file_is_dir(at("full2/f/x")));
}

static void sizes_and_kinds(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    put("sized", "12345");
    ASSERT_OK(file_size(&bytes, at("sized")));
    assert_int_equal(bytes, 5);
    ASSERT_FAILS(file_size(&bytes, at("nowhere")), SHERD_ENOTFOUND, "nowhere");
    assert_true(file_exists(at("sized")) && !file_exists(at("nowhere")));
    assert_true(file_is_dir(root) && !file_is_dir(at("sized")));
    assert_true(file_has(root, "sized") && !file_has(root, "nowhere") && !file_has(at("sized"), "sized"));
    ASSERT_OK(file_free_space(&bytes, at("not/yet/there")));
    assert_true(bytes > 0);
    ASSERT_OK(file_free_space(&bytes, "not-yet-there"));
    assert_true(bytes > 0);
}

static int syncs;

static int count_syncs(const char *call, const char *path, size_t *bytes)
{
    (void)bytes;
    syncs += !strcmp(call, "sync") && (text_ends(path, "/a") || text_ends(path, "/b") || !strcmp(path, root));
    return 0;
}

static void makes_folders(void **state)
{
    (void)state;
    file_hook(count_syncs);
    ASSERT_OK(file_mkdirs(at("a/b//c/")));
    assert_int_equal(syncs, 3); /* what holds each of them */
    ASSERT_OK(file_mkdirs(at("a/b/c")));
    assert_int_equal(syncs, 3);
    file_hook(NULL);
    ASSERT_OK(file_mkdirs(at("a/b/c")));
    assert_true(file_is_dir(at("a/b/c")));
    put("a/file", "x");
    ASSERT_FAILS(file_mkdirs(at("a/file/d")), SHERD_EEXISTS, "a/file'");
    ASSERT_OK(file_sync_dir(at("a")));
    ASSERT_FAILS(file_sync_dir(at("nowhere")), SHERD_ENOTFOUND, "nowhere");
    ASSERT_OK(file_rename(at("a/b"), at("a/moved")));
    assert_true(file_is_dir(at("a/moved/c")));
    ASSERT_FAILS(file_rename(at("a/b"), at("a/c")), SHERD_ENOTFOUND, "a/c'");
}

static void lists_sorted_by_byte(void **state)
{
    (void)state;
    static const char *const want[] = { ".hidden", "10", "9", "B", "a" };
    char **names;
    int n;
    ASSERT_OK(file_mkdirs(at("list")));
    ASSERT_OK(file_list(&names, &n, at("list")));
    assert_int_equal(n, 0);
    file_list_free(names, n);
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        char name[32];
        snprintf(name, sizeof(name), "list/%s", want[ARRAY_LEN(want) - 1 - i]);
        put(name, "");
    }
    ASSERT_OK(file_list(&names, &n, at("list")));
    assert_int_equal(n, ARRAY_LEN(want));
    for (int i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    file_list_free(names, n);
    ASSERT_FAILS(file_list(&names, &n, at("nowhere")), SHERD_ENOTFOUND, "nowhere");
    for (int k = 1; k <= 6; k++) {
        mem_fail_at(k);
        ASSERT_FAILS(file_list(&names, &n, at("list")), SHERD_ENOMEM, "out of memory");
    }
    mem_fail_at(0);
}

static void removes_trees_but_not_through_links(void **state)
{
    (void)state;
    put("outside", "kept");
    ASSERT_OK(file_mkdirs(at("kept/inner")));
    put("kept/inner/f", "kept");
    ASSERT_OK(file_mkdirs(at("tree/x/y")));
    put("tree/x/y/f", "gone");
    put("tree/g", "gone");
    assert_int_equal(symlink(at("kept"), at("tree/x/link")), 0);
    assert_int_equal(symlink(at("outside"), at("tree/link")), 0);
    assert_int_equal(symlink("dangling", at("tree/dangling")), 0);
    ASSERT_OK(file_remove_tree(at("tree/")));
    assert_false(file_exists(at("tree")));
    assert_holds("kept/inner/f", "kept");
    assert_holds("outside", "kept");
    /* The path itself a link, with and without a slash behind it. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(symlink(at("kept"), at("link")), 0);
        ASSERT_OK(file_remove_tree(at(i ? "link/" : "link")));
        assert_false(file_exists(at("link")));
        assert_holds("kept/inner/f", "kept");
    }
    ASSERT_OK(file_remove_tree(at("outside")));
    assert_false(file_exists(at("outside")));
    ASSERT_OK(file_remove_tree(at("nowhere")));
}

static int beats;

static void count_beat(void *ctx)
{
    *(int *)ctx += 1;
}

/* A large file (of holes) is synced in pieces; other threads and calls after it are not told. */
static void tells_that_it_gets_on(void **state)
{
    (void)state;
    char text[100] = "";
    const char *path = at("large");
    int fd;
    ASSERT_OK(file_open_new(&fd, path));
    struct file_watch before = file_watch((struct file_watch){ count_beat, &beats });
    assert_null(before.fn);
    assert_true(file_watched().fn == count_beat);
    ASSERT_OK(file_pwrite(fd, text, sizeof(text), 0, path));
    assert_int_equal(beats, 1);
    ASSERT_OK(file_sync(fd, path));
    assert_int_equal(beats, 2);
    ASSERT_OK(file_cut(fd, (uint64_t)200 << 20, path));
    beats = 0;
    ASSERT_OK(file_sync(fd, path));
    assert_int_equal(beats, 1 + 4);
    ASSERT_OK(file_pread(fd, text, sizeof(text), 0, path));
    assert_int_equal(beats, 6);
    file_watch(before);
    ASSERT_OK(file_sync(fd, path));
    assert_int_equal(beats, 6);
    ASSERT_OK(file_close(fd, path));
    ASSERT_OK(file_remove_tree(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps),
        cmocka_unit_test(reads_and_writes_whole),
        cmocka_unit_test(appends_whole_records),
        cmocka_unit_test(reads_text_up_to_a_limit),
        cmocka_unit_test(a_pipe_is_refused),
        cmocka_unit_test(atomic_write_replaces),
        cmocka_unit_test(a_refusal_has_a_way_out),
        cmocka_unit_test(what_the_dead_left_is_cleared),
        cmocka_unit_test(failed_atomic_write_leaves_the_old_file),
        cmocka_unit_test(sizes_and_kinds),
        cmocka_unit_test(makes_folders),
        cmocka_unit_test(lists_sorted_by_byte),
        cmocka_unit_test(removes_trees_but_not_through_links),
        cmocka_unit_test(tells_that_it_gets_on),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
