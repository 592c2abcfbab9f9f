/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Token files: formats, headers and sizes that are wrong, folders, several files as one stream, and what is
 * left of `sherd tokenize` where it did not end.
 */
#include "tests/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <sherd/data.h>

#include "base/file.h"
#include "base/status.h"
#include "data/data.h"
#include "tests/folder.h"

static char root[FOLDER_BYTES];
static char last_info[1024], last_warning[1024];

static void keep_log(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    char *to = level == SHERD_LOG_INFO ? last_info : last_warning;
    snprintf(to, sizeof(last_info), "%s", text);
}

static int setup(void **state)
{
    (void)state;
    sherd_log_set(keep_log, NULL, SHERD_LOG_INFO);
    return folder_make(root, "tokens") == 0 ? chdir(root) : -1;
}

static int teardown(void **state)
{
    (void)state;
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    return chdir("/") != 0 ? -1 : file_remove_tree(root);
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* An llmc file of n tokens 1000, 1001, ... whose header says `count`. */
static void write_llmc(const char *name, int32_t magic, int32_t version, int32_t count, int n, int extra)
{
    size_t width = magic == 20240801 ? 4 : 2, bytes = 1024 + (size_t)n * width + (size_t)extra;
    unsigned char *data = calloc(1, bytes + 8);
    assert_non_null(data);
    int32_t head[3] = { magic, version, count };
    memcpy(data, head, sizeof(head));
    for (int i = 0; i < n; i++) {
        uint32_t id = 1000u + (uint32_t)i;
        memcpy(data + 1024 + (size_t)i * width, &id, width);
    }
    write_file(name, data, bytes);
    free(data);
}

static int open_list(
    struct tokens **t, const char *const *paths, int n, enum sherd_format format, int64_t vocab)
{
    return tokens_open(
        t, &(struct tokens_desc){
               .what = "data.train", .paths = paths, .n_paths = n, .format = format, .vocab = vocab });
}

static int open_one(struct tokens **t, const char *path, enum sherd_format format, int64_t vocab)
{
    return open_list(t, &path, 1, format, vocab);
}

/* Opening must fail with the status, and the text must hold each of the two words. */
static void refuse(
    const char *path, enum sherd_format format, int64_t vocab, int status, const char *a, const char *b)
{
    struct tokens *t = (struct tokens *)1;
    int st = open_one(&t, path, format, vocab);
    assert_int_equal(st, status);
    assert_null(t);
    if (!strstr(sherd_error(), a) || !strstr(sherd_error(), b))
        fail_msg("'%s' lacks '%s' or '%s'", sherd_error(), a, b);
}

static void expect_tokens(const struct tokens *t, const int32_t *want, int n)
{
    int32_t got[64];
    assert_int_equal(tokens_count(t), n);
    assert_int_equal(tokens_read(t, 0, n, got), SHERD_OK);
    assert_memory_equal(got, want, (size_t)n * sizeof(*want));
    for (int i = 0; i < n; i++) {
        assert_int_equal(tokens_read(t, i, 1, got), SHERD_OK);
        assert_int_equal(got[0], want[i]);
    }
}

/* NAME.bin with 16 or 32 bit tokens and NAME.idx, whose bytes are then changed at `at`. */
static void write_megatron(const char *name, int code, int at, int value)
{
    static const uint16_t narrow[] = { 7, 300, 65535, 1, 2 };
    static const int32_t wide[] = { 7, 300, 65535, 1, 2 };
    int width = code == 8 ? 2 : 4;
    unsigned char index[34 + 2 * 12 + 3 * 8] = "MMIDIDX\0";
    const int32_t lengths[] = { 3, 2 };
    const int64_t counts[] = { 2, 3 }, places[] = { 0, 3 * width }, documents[] = { 0, 1, 2 };
    char path[64];
    index[9] = 1;
    index[17] = (unsigned char)code;
    memcpy(index + 18, counts, 16);
    memcpy(index + 34, lengths, 8);
    memcpy(index + 42, places, 16);
    memcpy(index + 58, documents, 24);
    if (at >= 0)
        index[at] = (unsigned char)value;
    snprintf(path, sizeof(path), "%s.idx", name);
    write_file(path, index, sizeof(index));
    snprintf(path, sizeof(path), "%s.bin", name);
    if (width == 2)
        write_file(path, narrow, sizeof(narrow));
    else
        write_file(path, wide, sizeof(wide));
}

static void megatron_is_read_by_any_of_its_names(void **state)
{
    (void)state;
    static const char *const names[] = { "m", "m.bin", "m.idx" };
    const int32_t want[] = { 7, 300, 65535, 1, 2 };
    struct tokens *t;
    for (int code = 4; code <= 8; code += 4) {
        write_megatron("m", code, -1, 0);
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            assert_int_equal(
                open_one(&t, names[i], i % 2 ? SHERD_DATA_AUTO : SHERD_DATA_MEGATRON, 70000), SHERD_OK);
            expect_tokens(t, want, 5);
            tokens_close(t);
        }
    }
    assert_int_equal(file_mkdirs("folder"), SHERD_OK);
    write_megatron("folder/m", 8, -1, 0);
    assert_int_equal(open_one(&t, "folder", SHERD_DATA_AUTO, 0), SHERD_OK);
    expect_tokens(t, want, 5);
    tokens_close(t);
}

static void wrong_megatron_is_refused_by_byte(void **state)
{
    (void)state;
    static const struct {
        int at, value;
        const char *text;
    } wrong[] = {
        { 0, 'X', "byte 0" },
        { 9, 2, "byte 9: version 2" },
        { 17, 6, "byte 17: type 6" },
        { 18, 200, "byte 18: 200 sequences" },
        { 34, 2, "byte 50: sequence 1 begins at byte 6 of the tokens, but the one before ends at 4" },
        { 38, 1, "its sequences make 8 bytes, but m.bin has 10" },
        { 38 + 3, 255, "byte 38: sequence 1 has -" },
        { 66, 3, "byte 66: document 1 begins at sequence 3 of 2" },
        { 74, 1, "byte 74: the last document ends at sequence 1 of 2" },
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        write_megatron("m", 8, wrong[i].at, wrong[i].value);
        refuse("m", SHERD_DATA_AUTO, 0, SHERD_EFORMAT, "m.idx", wrong[i].text);
    }
    write_megatron("m", 8, -1, 0);
    struct tokens *t;
    int32_t out[5];
    assert_int_equal(open_one(&t, "m", SHERD_DATA_AUTO, 1000), SHERD_OK);
    assert_int_equal(tokens_read(t, 0, 5, out), SHERD_EFORMAT);
    assert_non_null(strstr(sherd_error(), "m.bin: byte 4: token 65535"));
    tokens_close(t);
    write_megatron("m", 4, -1, 0);
    write_file("m.bin", (int32_t[]){ 1, -5, 3, 4, 5 }, 20);
    assert_int_equal(open_one(&t, "m", SHERD_DATA_AUTO, 0), SHERD_OK);
    assert_int_equal(tokens_read(t, 0, 5, out), SHERD_EFORMAT);
    assert_non_null(strstr(sherd_error(), "m.bin: byte 4: token -5"));
    tokens_close(t);
    write_file("alone.bin", "abcd", 4);
    refuse("alone.bin", SHERD_DATA_MEGATRON, 0, SHERD_EFORMAT, "alone.bin", "no .idx beside it");
}

static void bytes_are_tokens(void **state)
{
    (void)state;
    struct tokens *t;
    write_file("a.txt", "h\xff\0i", 4);
    assert_int_equal(open_one(&t, "a.txt", SHERD_DATA_BYTES, 256), SHERD_OK);
    expect_tokens(t, (int32_t[]){ 'h', 255, 0, 'i' }, 4);
    tokens_close(t);
    refuse("a.txt", SHERD_DATA_BYTES, 255, SHERD_ECONFIG, "model.vocab >= 256", "255");
}

static void two_files_are_one_stream(void **state)
{
    (void)state;
    struct tokens *t;
    write_text("one", "abc");
    write_text("two", "de");
    write_text("none", "");
    const char *paths[] = { "two", "none", "one", "two" };
    assert_int_equal(open_list(&t, paths, 4, SHERD_DATA_AUTO, 256), SHERD_OK);
    expect_tokens(t, (int32_t[]){ 'd', 'e', 'a', 'b', 'c', 'd', 'e' }, 7);
    assert_non_null(strstr(last_info, "3 files, 7 tokens (bytes); passed over: 1 empty"));
    int64_t n;
    assert_int_equal(tokens_windows(t, 2, &n), SHERD_OK);
    assert_int_equal(n, 3);
    assert_int_equal(tokens_windows(t, 6, &n), SHERD_OK);
    assert_int_equal(n, 1);
    assert_int_equal(tokens_windows(t, 7, &n), SHERD_ECONFIG);
    assert_non_null(strstr(sherd_error(), "7 tokens are too few"));
    tokens_close(t);
}

static void llmc_both_widths(void **state)
{
    (void)state;
    struct tokens *t;
    write_llmc("a.bin", 20240520, 1, 3, 3, 0);
    write_llmc("b.bin", 20240801, 7, 2, 2, 0);
    const char *paths[] = { "a.bin", "b.bin" };
    assert_int_equal(open_list(&t, paths, 2, SHERD_DATA_AUTO, 1003), SHERD_OK);
    expect_tokens(t, (int32_t[]){ 1000, 1001, 1002, 1000, 1001 }, 5);
    tokens_close(t);
    assert_int_equal(open_list(&t, paths, 2, SHERD_DATA_LLMC, 0), SHERD_OK);
    assert_int_equal(tokens_count(t), 5);
    tokens_close(t);
}

static void llmc_headers_that_lie(void **state)
{
    (void)state;
    write_llmc("short.bin", 20240520, 1, 4, 3, 0);
    refuse("short.bin", SHERD_DATA_AUTO, 0, SHERD_EFORMAT, "short.bin: byte 8", "cut short");
    write_llmc("long.bin", 20240520, 1, 3, 3, 1);
    refuse("long.bin", SHERD_DATA_LLMC, 0, SHERD_EFORMAT, "long.bin: byte 8", "appended");
    write_llmc("negative.bin", 20240520, 1, -1, 0, 0);
    refuse("negative.bin", SHERD_DATA_LLMC, 0, SHERD_EFORMAT, "byte 8", "negative");
    write_llmc("version.bin", 20240520, 7, 3, 3, 0);
    refuse("version.bin", SHERD_DATA_LLMC, 0, SHERD_EFORMAT, "byte 4", "version 7");
    write_llmc("model.bin", 20240326, 3, 3, 3, 0);
    refuse("model.bin", SHERD_DATA_AUTO, 0, SHERD_EFORMAT, "model.bin: byte 0", "a model");
    write_llmc("bare.bin", 5, 1, 3, 3, 0);
    refuse("bare.bin", SHERD_DATA_LLMC, 0, SHERD_EFORMAT, "magic 5", "data.format: u16");
    write_text("tiny.bin", "\x88\xd8\x34\x01");
    refuse("tiny.bin", SHERD_DATA_AUTO, 0, SHERD_EFORMAT, "tiny.bin: 4 bytes", "1024");
    write_text("empty.bin", "");
    refuse("empty.bin", SHERD_DATA_LLMC, 0, SHERD_EFORMAT, "empty.bin: 0 bytes", "1024");
    write_llmc("zero.bin", 20240801, 7, 0, 0, 0);
    refuse("zero.bin", SHERD_DATA_LLMC, 0, SHERD_ECONFIG, "no tokens", "zero.bin");
}

static void bare_u16(void **state)
{
    (void)state;
    struct tokens *t;
    write_file("n.bin", "\x01\x00\x00\x01\x50\xc4", 6);
    assert_int_equal(open_one(&t, "n.bin", SHERD_DATA_AUTO, 50257), SHERD_OK);
    expect_tokens(t, (int32_t[]){ 1, 256, 50256 }, 3);
    tokens_close(t);
    write_file("odd.bin", "abc", 3);
    refuse("odd.bin", SHERD_DATA_U16, 0, SHERD_EFORMAT, "odd.bin", "3 bytes");
}

static void token_outside_vocabulary(void **state)
{
    (void)state;
    struct tokens *t;
    int32_t out[4];
    write_llmc("v.bin", 20240520, 1, 4, 4, 0);
    assert_int_equal(open_one(&t, "v.bin", SHERD_DATA_AUTO, 1002), SHERD_OK);
    assert_int_equal(tokens_read(t, 0, 2, out), SHERD_OK);
    assert_int_equal(tokens_read(t, 1, 3, out), SHERD_EFORMAT);
    assert_non_null(strstr(sherd_error(), "v.bin: byte 1028: token 1002 is outside the vocabulary of 1002"));
    tokens_close(t);
    unsigned char huge[1028] = { 0 };
    int32_t head[3] = { 20240801, 7, 1 };
    memcpy(huge, head, sizeof(head));
    memset(huge + 1024, 0xff, 4);
    write_file("huge.bin", huge, sizeof(huge));
    assert_int_equal(open_one(&t, "huge.bin", SHERD_DATA_AUTO, 0), SHERD_OK);
    assert_int_equal(tokens_read(t, 0, 1, out), SHERD_EFORMAT);
    assert_non_null(strstr(sherd_error(), "byte 1024: token 4294967295"));
    tokens_close(t);
}

static void folders_are_walked_in_byte_order(void **state)
{
    (void)state;
    struct tokens *t;
    assert_int_equal(file_mkdirs("tree/b/deep"), SHERD_OK);
    assert_int_equal(file_mkdirs("tree/.git"), SHERD_OK);
    write_text("tree/.git/x", "hidden");
    write_text("tree/.hidden", "hidden");
    write_text("tree/a", "1");
    write_text("tree/b/deep/z", "3");
    write_text("tree/b/B", "2");
    write_text("tree/c", "4");
    write_text("tree/C", "0");
    write_text("tree/empty", "");
    write_file("tree/d.o", "x\0y", 3);
    assert_int_equal(symlink("../one-link", "tree/broken"), 0);
    assert_int_equal(symlink("b", "tree/e"), 0);
    assert_int_equal(symlink("c", "tree/f"), 0);
    assert_int_equal(open_one(&t, "tree/", SHERD_DATA_BYTES, 256), SHERD_OK);
    expect_tokens(t, (int32_t[]){ '0', '1', '2', '3', '4', '4' }, 6);
    assert_non_null(strstr(last_info,
        "data.train: 6 files, 6 tokens (bytes); passed over: 2 hidden, 1 empty, 1 binary, 2 not a file"));
    tokens_close(t);

    assert_int_equal(file_mkdirs("bins"), SHERD_OK);
    write_llmc("bins/t_000001.bin", 20240520, 1, 1, 1, 0);
    write_llmc("bins/t_000000.bin", 20240520, 1, 2, 2, 0);
    write_text("bins/README", "read me");
    assert_int_equal(open_one(&t, "bins", SHERD_DATA_LLMC, 0), SHERD_OK);
    expect_tokens(t, (int32_t[]){ 1000, 1001, 1000 }, 3);
    assert_non_null(strstr(last_info, "1 not named .bin"));
    tokens_close(t);
    refuse("bins", SHERD_DATA_AUTO, 0, SHERD_ECONFIG, "bins/README looks like bytes", "data.format");
}

/* What is neither text nor tokens is refused where it is named, unless its bytes are asked for. */
static void no_text(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bytes;
        size_t n;
        const char *what;
    } files[] = {
        { "t.parquet", "PAR1 xxxx PAR1", 14, "t.parquet is a Parquet file" },
        { "t.npy", "\x93NUMPY\1", 7, "t.npy is an array of NumPy" },
        { "t.txt.gz", "\x1f\x8b\x08", 3, "packed by gzip" },
        { "t.zst", "\x28\xb5\x2f\xfdx", 5, "packed by zstd" },
        { "t.pt", "PK\3\4x", 5, "a zip archive" },
        { "t.arrow", "\xff\xff\xff\xff\x70\0\0\0", 8, "a binary file" },
    };
    struct tokens *t;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        write_file(files[i].name, files[i].bytes, files[i].n);
        refuse(files[i].name, SHERD_DATA_AUTO, 0, SHERD_ECONFIG, files[i].what, "data.format: bytes");
        ASSERT_OK(open_one(&t, files[i].name, SHERD_DATA_BYTES, 256));
        assert_int_equal(tokens_count(t), files[i].n);
        tokens_close(t);
    }
    assert_int_equal(file_mkdirs("packs"), SHERD_OK);
    write_text("packs/a.txt", "abc");
    write_file("packs/b.gz", files[2].bytes, files[2].n);
    ASSERT_OK(open_one(&t, "packs", SHERD_DATA_AUTO, 256));
    assert_int_equal(tokens_count(t), 3);
    ASSERT_CONTAINS(last_info, "passed over: 1 binary");
    tokens_close(t);
    last_warning[0] = '\0';
    write_text("rows.jsonl", "{\"text\": \"a\"}\n");
    ASSERT_OK(open_one(&t, "rows.jsonl", SHERD_DATA_AUTO, 256));
    ASSERT_CONTAINS(last_warning, "rows.jsonl holds lines of JSON, which are trained on as they stand");
    tokens_close(t);
}

/* One file by two paths is one file. */
static void shared_files(void **state)
{
    (void)state;
    struct tokens *a, *b;
    const char *path;
    assert_int_equal(file_mkdirs("shared"), SHERD_OK);
    write_text("shared/train.txt", "abc");
    write_text("shared/val.txt", "abc");
    write_text("other.txt", "abc");
    assert_int_equal(symlink("shared/val.txt", "link.txt"), 0);
    ASSERT_OK(open_one(&a, "shared", SHERD_DATA_AUTO, 256));
    ASSERT_OK(open_one(&b, "other.txt", SHERD_DATA_AUTO, 256));
    ASSERT_OK(tokens_shared(a, b, &path));
    assert_null(path);
    tokens_close(b);
    const char *paths[] = { "other.txt", "link.txt" };
    ASSERT_OK(open_list(&b, paths, 2, SHERD_DATA_AUTO, 256));
    ASSERT_OK(tokens_shared(a, b, &path));
    assert_string_equal(path, "link.txt");
    tokens_close(b);
    tokens_close(a);
}

/* The folder of a data set of `datasets`: rows in Arrow, and JSON beside them that nothing is learnt from. */
static void saved_dataset(void **state)
{
    (void)state;
    assert_int_equal(file_mkdirs("saved/train"), SHERD_OK);
    write_text("saved/dataset_dict.json", "{}");
    write_text("saved/train/state.json", "{}");
    write_text("saved/train/dataset_info.json", "{}");
    write_file("saved/train/data-00000-of-00001.arrow", "\xff\xff\xff\xff\x70\0\0\0", 8);
    refuse("saved", SHERD_DATA_AUTO, 0, SHERD_ECONFIG, "saved/train is a data set as `datasets`", "to_json");
    refuse("saved/train", SHERD_DATA_BYTES, 0, SHERD_ECONFIG, "a data set as `datasets`", "--field NAME");
    refuse("saved/*.arrow", SHERD_DATA_AUTO, 0, SHERD_ENOTFOUND, "no such file", "patterns are not expanded");
}

/* tokenize of `file` by bytes, 100 tokens a file. */
static int tokenize(const char *file, const char *to)
{
    struct sherd_tokenizer *t;
    struct sherd_tokenize_result result;
    ASSERT_OK(sherd_tokenizer_open(&t, "bytes"));
    int st = sherd_tokenize(
        &(struct sherd_tokenize_desc){
            .tokenizer = t, .paths = &file, .n_paths = 1, .to = to, .end = 256, .shard = 100, .threads = 1 },
        &result);
    sherd_tokenizer_close(t);
    return st;
}

static int calls, fail_at;

static int full_disk(const char *call, const char *path, size_t *bytes)
{
    (void)path;
    (void)bytes;
    return (!strcmp(call, "write") || !strcmp(call, "create")) && ++calls == fail_at ? ENOSPC : 0;
}

/* Whichever write finds the disk full: nothing is left that could be taken for the tokens of the text. */
static void a_full_disk_leaves_no_tokens(void **state)
{
    (void)state;
    char text[251] = { 0 };
    memset(text, 'x', 250);
    write_text("long", text);
    int st = SHERD_EIO;
    assert_int_equal(file_mkdirs("there"), SHERD_OK);
    for (fail_at = 1; st != SHERD_OK; fail_at++) {
        calls = 0;
        file_hook(full_disk);
        st = tokenize("long", fail_at % 2 ? "full" : "there");
        file_hook(NULL);
        if (st == SHERD_OK)
            break;
        assert_int_equal(st, SHERD_EIO);
        ASSERT_CONTAINS(sherd_error(), "not made (of 2 bytes a token), and nothing is left of it: cannot ");
        ASSERT_CONTAINS(sherd_error(), "No space left on device; free some there, or write elsewhere");
        assert_false(file_exists("full"));
        assert_int_equal(rmdir("there"), 0); /* it was there before and is empty again */
        assert_int_equal(file_mkdirs("there"), SHERD_OK);
    }
    assert_true(fail_at > 9); /* three files of tokens and the list, each created and written */
}

/* Files of a run of `sherd tokenize` that was killed are whole, but not all of them. */
static void tokens_that_were_not_ended_are_refused(void **state)
{
    (void)state;
    struct tokens *t;
    write_text("few", "abc");
    ASSERT_OK(tokenize("few", "set"));
    assert_int_equal(open_one(&t, "set", SHERD_DATA_AUTO, 0), SHERD_OK);
    tokens_close(t);
    assert_int_equal(unlink("set/tokens.json"), 0);
    write_text("set/tokens-000002.part", "");
    refuse("set", SHERD_DATA_AUTO, 0, SHERD_ECONFIG, "set/tokens-000002.part", "run it again");
    refuse("set", SHERD_DATA_LLMC, 0, SHERD_ECONFIG, "set/tokens-000002.part", "run it again");
}

/* Read as bytes, a folder of token files is no text: refused where it was named, passed over below text. */
static void token_files_are_no_text(void **state)
{
    (void)state;
    struct tokens *t;
    assert_int_equal(file_mkdirs("both"), SHERD_OK);
    write_text("both/text", "abc");
    ASSERT_OK(tokenize("both/text", "both/set"));
    refuse("both/set", SHERD_DATA_BYTES, 256, SHERD_ECONFIG, "both/set holds token files", "set it to auto");
    assert_int_equal(open_one(&t, "both", SHERD_DATA_BYTES, 256), SHERD_OK);
    expect_tokens(t, (int32_t[]){ 'a', 'b', 'c' }, 3);
    assert_non_null(strstr(last_info, "passed over: 1 folder of token files"));
    tokens_close(t);
    refuse("both", SHERD_DATA_AUTO, 0, SHERD_ECONFIG, "looks like", "data.format");
}

static struct tokens_mark mark_of(const char *const *paths, int n, enum sherd_format format)
{
    struct tokens *t;
    assert_int_equal(open_list(&t, paths, n, format, 0), SHERD_OK);
    struct tokens_mark mark = tokens_mark(t);
    tokens_close(t);
    return mark;
}

/* The same tokens have the same mark in whatever files, and others another. */
static void marks(void **state)
{
    (void)state;
    static const char *const whole[] = { "mark" }, *const parts[] = { "mark1", "mark2" },
                             *const u16[] = { "mark.bin" };
    char text[10001];
    uint16_t wide[10000];
    for (int i = 0; i < 10000; i++)
        wide[i] = (uint8_t)(text[i] = (char)('a' + i % 23));
    text[10000] = '\0';
    write_text("mark", text);
    write_file("mark1", text, 3001);
    write_text("mark2", text + 3001);
    write_file("mark.bin", wide, sizeof(wide));
    struct tokens_mark a = mark_of(whole, 1, SHERD_DATA_BYTES), b = mark_of(parts, 2, SHERD_DATA_BYTES),
                       c = mark_of(u16, 1, SHERD_DATA_U16);
    assert_true(a.count == 10000 && b.count == 10000 && c.count == 10000);
    assert_string_equal(a.sum, b.sum);
    assert_string_equal(a.sum, c.sum);
    text[10000 / 64 * 40] = 'A';
    write_text("mark", text);
    a = mark_of(whole, 1, SHERD_DATA_BYTES);
    assert_int_equal(a.count, 10000);
    assert_string_not_equal(a.sum, b.sum);
    for (int n = 1; n <= 3; n++) { /* fewer than a mark takes */
        write_file("mark", "xyz", (size_t)n);
        b = mark_of(whole, 1, SHERD_DATA_BYTES);
        assert_int_equal(b.count, n);
        assert_string_not_equal(a.sum, b.sum);
        a = b;
    }
}

static void missing_paths(void **state)
{
    (void)state;
    refuse("nowhere", SHERD_DATA_AUTO, 0, SHERD_ENOTFOUND, "data.train", "nowhere");
    refuse("/dev/null", SHERD_DATA_AUTO, 0, SHERD_EIO, "/dev/null", "neither a file nor a folder");
    /* nor is what cannot be looked at absent */
    assert_int_equal(symlink("circle", "circle"), 0);
    refuse("circle", SHERD_DATA_AUTO, 0, SHERD_EIO, "cannot look at 'circle'", strerror(ELOOP));
    assert_int_equal(unlink("circle"), 0);
    assert_int_equal(file_mkdirs("hollow"), SHERD_OK);
    refuse("hollow", SHERD_DATA_AUTO, 0, SHERD_ECONFIG, "no tokens", "hollow");
    struct tokens *t;
    assert_int_equal(open_list(&t, NULL, 0, SHERD_DATA_AUTO, 0), SHERD_ECONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_is_read_by_any_of_its_names),
        cmocka_unit_test(wrong_megatron_is_refused_by_byte),
        cmocka_unit_test(bytes_are_tokens),
        cmocka_unit_test(two_files_are_one_stream),
        cmocka_unit_test(llmc_both_widths),
        cmocka_unit_test(llmc_headers_that_lie),
        cmocka_unit_test(bare_u16),
        cmocka_unit_test(token_outside_vocabulary),
        cmocka_unit_test(no_text),
        cmocka_unit_test(shared_files),
        cmocka_unit_test(saved_dataset),
        cmocka_unit_test(folders_are_walked_in_byte_order),
        cmocka_unit_test(a_full_disk_leaves_no_tokens),
        cmocka_unit_test(tokens_that_were_not_ended_are_refused),
        cmocka_unit_test(token_files_are_no_text),
        cmocka_unit_test(marks),
        cmocka_unit_test(missing_paths),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
