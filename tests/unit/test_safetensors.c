/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Safetensors: golden bytes, every refusal of the reference reader, headers to write, conversion.
 */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/half.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "tests/folder.h"

static char root[FOLDER_BYTES];

static int enter(void **state)
{
    (void)state;
    return folder_make(root, "safetensors");
}

static int leave(void **state)
{
    (void)state;
    return file_remove_tree(root);
}

static const uint8_t golden[] = { 0x58, 0, 0, 0, 0, 0, 0, 0, '{', '"', '_', '_', 'm', 'e', 't', 'a', 'd', 'a',
    't', 'a', '_', '_', '"', ':', '{', '"', 'f', 'o', 'r', 'm', 'a', 't', '"', ':', '"', 'p', 't', '"', '}',
    ',', '"', 'a', '"', ':', '{', '"', 'd', 't', 'y', 'p', 'e', '"', ':', '"', 'F', '3', '2', '"', ',', '"',
    's', 'h', 'a', 'p', 'e', '"', ':', '[', '2', ']', ',', '"', 'd', 'a', 't', 'a', '_', 'o', 'f', 'f', 's',
    'e', 't', 's', '"', ':', '[', '0', ',', '8', ']', '}', '}', ' ', ' ', ' ', 0, 0, 0x80, 0x3f, 0, 0, 0,
    0x40 };

/* A file of one header text and `data` zero bytes; *bytes is its size. */
static uint8_t *file_of(const char *header, size_t data, size_t *bytes)
{
    size_t n = strlen(header);
    uint8_t *file = mem_zalloc(8 + n + data, 1);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    *bytes = 8 + n + data;
    return file;
}

static void refused(const char *header, size_t data, const char *text)
{
    struct st_header h;
    size_t bytes;
    uint8_t *file = file_of(header, data, &bytes);
    ASSERT_FAILS(st_parse(&h, file, bytes, bytes, "x.safetensors"), SHERD_EFORMAT, text);
    ASSERT_CONTAINS(sherd_error(), "x.safetensors");
    mem_free(file);
}

static void taken(struct st_header *h, const char *header, size_t data)
{
    size_t bytes;
    uint8_t *file = file_of(header, data, &bytes);
    ASSERT_OK(st_parse(h, file, bytes, bytes, "x.safetensors"));
    mem_free(file);
}

static void reads_golden_bytes(void **state)
{
    (void)state;
    struct st_header h;
    ASSERT_OK(st_parse(&h, golden, sizeof(golden), sizeof(golden), "golden"));
    assert_int_equal(h.n, 1);
    assert_string_equal(st_meta_find(&h, "format"), "pt");
    assert_null(st_meta_find(&h, "other"));
    const struct st_entry *e = st_find(&h, "a");
    assert_non_null(e);
    assert_int_equal(e->type, SHERD_F32);
    assert_int_equal(e->dims, 1);
    assert_int_equal(e->shape[0], 2);
    assert_int_equal(e->begin, 96);
    assert_int_equal(e->end, 104);
    assert_null(st_find(&h, "b"));
    st_finish(&h);
}

static void writes_golden_bytes(void **state)
{
    (void)state;
    const int64_t shape[] = { 2 };
    const float data[] = { 1, 2 };
    const struct st_item item = { "a", SHERD_F32, 1, shape };
    const struct st_meta meta = { "format", "pt" };
    char *text;
    size_t bytes;
    uint64_t file_bytes;
    ASSERT_OK(st_header_text(&text, &bytes, &file_bytes, &item, 1, &meta, 1));
    assert_int_equal(file_bytes, sizeof(golden));
    assert_int_equal(bytes, sizeof(golden) - sizeof(data));
    assert_memory_equal(text, golden, bytes);
    assert_memory_equal(data, golden + bytes, sizeof(data));
    mem_free(text);
}

static void pads_a_header_to_eight(void **state)
{
    (void)state;
    const int64_t shape[] = { 1, 1, 2, 3 };
    const struct st_item item = { "attn0", SHERD_F32, 4, shape };
    char *text;
    size_t bytes;
    uint64_t file_bytes;
    ASSERT_OK(st_header_text(&text, &bytes, &file_bytes, &item, 1, NULL, 0));
    assert_int_equal(bytes, 8 + 72);
    assert_int_equal(text[0], 72);
    assert_int_equal(text[8], '{');
    assert_memory_equal(text + 80 - 8, "}       ", 8);
    assert_int_equal(file_bytes, 80 + 24);
    mem_free(text);
}

static void takes_what_the_reference_takes(void **state)
{
    (void)state;
    struct st_header h;
    taken(&h, "{}", 0);
    assert_int_equal(h.n, 0);
    st_finish(&h);
    taken(&h, " \n{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}  ", 1);
    assert_int_equal(st_find(&h, "")->dims, 0);
    assert_int_equal(st_find(&h, "")->elems, 1);
    st_finish(&h);
    taken(&h,
        "{\"z\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}",
        4);
    assert_string_equal(h.entries[0].name, "b");
    assert_int_equal(st_find(&h, "z")->elems, 0);
    st_finish(&h);
    taken(&h, "{\"f\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3);
    assert_int_equal(st_find(&h, "f")->type, SHERD_DTYPE_NONE);
    assert_string_equal(st_find(&h, "f")->type_name, "F4");
    st_finish(&h);
}

#define T(type, shape, from, to)                                                                             \
    "{\"t\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}}"

static void refuses_bad_headers(void **state)
{
    (void)state;
    refused("{", 0, "not valid JSON");
    refused("[]", 0, "object");
    refused("{\"t\":1}", 0, "tensor 't'");
    refused("{\"\xff\":1}", 0, "not valid JSON");
    refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets");
    refused(T("F31", "[1]", "0", "4"), 4, "unknown dtype 'F31'");
    refused(T("F32", "[-1]", "0", "4"), 4, "dimension 0");
    refused(T("F32", "[1.5]", "0", "4"), 4, "dimension 0");
    refused(T("F32", "[1]", "4", "0"), 4, "begin <= end");
    refused(T("F32", "[1]", "0", "4,8"), 4, "two integers");
    refused(T("F32", "[4294967296,4294967296]", "0", "4"), 4, "64 bits");
    refused(T("F32", "[4611686018427387904]", "0", "4"), 4, "64 bits");
    refused(T("F32", "[99999999999999999999]", "0", "4"), 4, "not valid JSON");
    refused(T("F4", "[3]", "0", "1"), 1, "whole bytes");
    refused(T("F32", "[2]", "0", "4"), 4, "need 8 bytes, data_offsets hold 4");
    refused(T("F32", "[1]", "4", "8"), 8, "begins at byte 4 of the data, expected 0");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
        7, "tensor 'b' begins at byte 3");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
        9, "tensor 'b' begins at byte 5");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
            "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        0, "duplicate");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "'a' must be a text");
    refused("{\"__metadata__\":[]}", 0, "object of texts");
    refused(T("F32", "[1]", "0", "4"), 3, "cut off");
    refused(T("F32", "[1]", "0", "4"), 5, "appended");
}

static void refuses_bad_lengths(void **state)
{
    (void)state;
    struct st_header h;
    uint8_t file[16] = { 0 };
    ASSERT_FAILS(st_parse(&h, file, 7, 7, "f"), SHERD_EFORMAT, "too few");
    file[0] = 9;
    ASSERT_FAILS(st_parse(&h, file, 16, 16, "f"), SHERD_EFORMAT, "the file ends after 16");
    file[3] = 0xff;
    ASSERT_FAILS(st_parse(&h, file, 16, 16, "f"), SHERD_EFORMAT, "above the limit");
    memset(file, 0xff, 8);
    ASSERT_FAILS(st_parse(&h, file, 16, 16, "f"), SHERD_EFORMAT, "above the limit");
}

static void refuses_wrong_items(void **state)
{
    (void)state;
    const int64_t shape[] = { 1 };
    const struct st_item twice[] = { { "a", SHERD_F32, 1, shape }, { "a", SHERD_F32, 1, shape } };
    const struct st_item reserved = { "__metadata__", SHERD_F32, 1, shape };
    char *text;
    size_t bytes;
    uint64_t file_bytes;
    ASSERT_FAILS(st_header_text(&text, &bytes, &file_bytes, twice, 2, NULL, 0), SHERD_EINVAL, "given twice");
    ASSERT_FAILS(st_header_text(&text, &bytes, &file_bytes, &reserved, 1, NULL, 0), SHERD_EINVAL, "reserved");
}

static void reads_a_file(void **state)
{
    (void)state;
    struct st_header h;
    char path[256];
    int fd;
    snprintf(path, sizeof(path), "%s/file", root);
    ASSERT_OK(file_write_atomic(path, golden, sizeof(golden)));
    ASSERT_OK(file_open_read(&fd, path));
    ASSERT_OK(st_read(&h, fd, path));
    assert_int_equal(st_find(&h, "a")->end, 104);
    st_finish(&h);
    ASSERT_OK(file_close(fd, path));
    ASSERT_OK(file_write_atomic(path, golden, 5));
    ASSERT_OK(file_open_read(&fd, path));
    ASSERT_FAILS(st_read(&h, fd, path), SHERD_EFORMAT, path);
    ASSERT_OK(file_close(fd, path));
}

static void converts(void **state)
{
    (void)state;
    enum { N = 3000 };
    static float x[N], y[N];
    static uint16_t half[N];
    int64_t overflow;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - 1500) * 1.001f;
    st_convert(half, SHERD_BF16, x, SHERD_F32, N, &overflow);
    assert_int_equal(overflow, -1);
    for (int i = 0; i < N; i++)
        assert_int_equal(half[i], bf16_from_float(x[i]));
    st_convert(y, SHERD_F32, half, SHERD_BF16, N, NULL);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == bf16_to_float(half[i]));
    x[1033] = 65519.0f; /* rounds to the largest f16 */
    x[2050] = INFINITY;
    st_convert(half, SHERD_F16, x, SHERD_F32, N, &overflow);
    assert_int_equal(overflow, -1);
    x[2049] = 65520.0f;
    st_convert(half, SHERD_F16, x, SHERD_F32, N, &overflow);
    assert_int_equal(overflow, 2049);
    st_convert(y, SHERD_F32, x, SHERD_F32, N, NULL);
    assert_memory_equal(x, y, sizeof(x));
}

/* Half-way between two bf16 only: everywhere else both are the nearest. */
static void weights_are_rounded_as_updates_round(void **state)
{
    (void)state;
    enum { N = 2500 };
    static uint32_t bits[N];
    static uint16_t as_updates[N], to_even[N];
    int64_t overflow;
    int apart = 0;
    for (uint32_t i = 0; i < N; i++)
        bits[i] = (i % 2 ? 0x80000000u : 0) | (0x3e80u + i) << 16 | (i % 5 == 0 ? 0x8000u : 37u * i);
    st_convert_weights(as_updates, SHERD_BF16, bits, SHERD_F32, N, &overflow);
    assert_int_equal(overflow, -1);
    st_convert(to_even, SHERD_BF16, bits, SHERD_F32, N, NULL);
    for (int i = 0; i < N; i++) {
        float x;
        int16_t low;
        memcpy(&x, &bits[i], sizeof(x));
        assert_int_equal(as_updates[i], bf16_split(x, &low));
        apart += as_updates[i] != to_even[i];
    }
    assert_true(apart >= N / 10);
    bits[1100] = 0x7f7f8000; /* finite, and as near to infinity */
    st_convert_weights(as_updates, SHERD_BF16, bits, SHERD_F32, N, &overflow);
    assert_int_equal(overflow, 1100);
}

static void names_types(void **state)
{
    (void)state;
    assert_string_equal(st_type_name(SHERD_BF16), "BF16");
    assert_null(st_type_name(SHERD_DTYPE_NONE));
    assert_int_equal(st_type_find("F64"), SHERD_F64);
    assert_int_equal(st_type_find("C64"), SHERD_DTYPE_NONE);
    assert_int_equal(st_type_find("bf16"), SHERD_DTYPE_NONE);
}

static void shapes_have_room(void **state)
{
    (void)state;
    char buf[ST_SHAPE_BYTES];
    int64_t shape[40];
    for (int i = 0; i < 40; i++)
        shape[i] = i < 4 ? INT64_MAX : 7;
    assert_string_equal(st_shape_text(shape, 0, buf), "[]");
    assert_string_equal(st_shape_text(shape + 3, 2, buf), "[9223372036854775807, 7]");
    assert_string_equal(st_shape_text(shape, 40, buf),
        "[9223372036854775807, 9223372036854775807, 9223372036854775807, 9223372036854775807, 7, 7, ...]");
}

/* Every exponent, by itself in every place of blocks of all lengths. */
static void sees_what_is_not_finite(void **state)
{
    (void)state;
    static const enum sherd_dtype types[] = { SHERD_F32, SHERD_BF16, SHERD_F16 };
    for (int k = 0; k < 3; k++) {
        size_t size = sherd_dtype_bytes(types[k]);
        for (uint32_t high = 0; high < 65536; high += high % 128 ? 1 : 63) {
            char data[201] = { 0 };
            size_t n = 1 + high % 49, at = high % n;
            uint32_t word = high << 16 | (high & 1 ? 0xffff : 0);
            uint16_t half = (uint16_t)high;
            float x = types[k] == SHERD_BF16 ? bf16_to_float(half) : f16_to_float(half);
            if (size == 4)
                memcpy(&x, &word, sizeof(x));
            memset(data + 1, 0x11, 200);
            memcpy(data + 1 + at * size, size == 4 ? (void *)&word : (void *)&half, size);
            if (st_finite(data + 1, n * size, types[k]) != !!isfinite(x))
                fail_msg("%s %04x in place %zu of %zu", sherd_dtype_name(types[k]), high, at, n);
        }
        assert_int_equal(st_finite("", 0, types[k]), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_golden_bytes),
        cmocka_unit_test(writes_golden_bytes),
        cmocka_unit_test(pads_a_header_to_eight),
        cmocka_unit_test(takes_what_the_reference_takes),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(refuses_wrong_items),
        cmocka_unit_test(reads_a_file),
        cmocka_unit_test(converts),
        cmocka_unit_test(weights_are_rounded_as_updates_round),
        cmocka_unit_test(sees_what_is_not_finite),
        cmocka_unit_test(names_types),
        cmocka_unit_test(shapes_have_room),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
