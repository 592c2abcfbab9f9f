/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * TensorBoard's event files to the byte, and the sums in them.
 */
#include "tests/check.h"

#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/sum.h"
#include "runtime/tfevents.h"
#include "tests/folder.h"

static void expect_bytes(struct text *t, const char *hex)
{
    assert_int_equal(t->failed, 0);
    char *got = mem_zalloc(2 * t->len + 1, 1);
    assert_non_null(got);
    for (size_t i = 0; i < t->len; i++)
        sprintf(got + 2 * i, "%02x", (unsigned)(unsigned char)t->data[i]);
    assert_string_equal(got, hex);
    mem_free(got);
    text_finish(t);
}

static void sums(void **state)
{
    (void)state;
    assert_int_equal(sum_crc32c("", 0), 0);
    assert_int_equal(sum_crc32c("123456789", 9), 0xe3069283u);
    const uint8_t zeros[32] = { 0 };
    assert_int_equal(sum_crc32c(zeros, 32), 0x8a9136aau); /* RFC 3720, B.4 */
}

static void frames(void **state)
{
    (void)state;
    struct text t = { 0 };
    tfevents_put_version(&t, 1.0);
    expect_bytes(&t, "1800000000000000a37f4b22"
                     "09000000000000f03f1a0d627261696e2e4576656e743a32"
                     "86bf577a");
    tfevents_put_scalars(&t, 2.0, 300, &(struct tfevents_scalar){ "loss", 2.5 }, 1);
    expect_bytes(&t, "1b000000000000001a0d9e13"
                     "09000000000000004010ac022a0d0a0b0a046c6f73731500002040"
                     "de65814e");
    /* two values; a start of a session at step 1, without its frame's sums */
    tfevents_put_scalars(&t, 2.0, 1, (struct tfevents_scalar[]){ { "a", 1 }, { "b", -2 } }, 2);
    assert_memory_equal(t.data + 12 + 11,
        "\x2a\x14\x0a\x08\x0a\x01"
        "a\x15\x00\x00\x80\x3f\x0a\x08\x0a\x01"
        "b\x15\x00\x00\x00\xc0",
        22);
    text_finish(&t);
    tfevents_put_resume(&t, 2.0, 1);
    assert_memory_equal(t.data + 12 + 9, "\x10\x01\x3a\x02\x08\x01", 6);
    text_finish(&t);
}

/* A file begins with its version; a second one of the same second has another name. */
static void files(void **state)
{
    (void)state;
    char dir[FOLDER_BYTES];
    struct tfevents a, b;
    char *text;
    size_t bytes;
    assert_int_equal(folder_make(dir, "tfevents"), 0);
    ASSERT_OK(tfevents_open(&a, dir));
    ASSERT_OK(tfevents_open(&b, dir));
    assert_string_not_equal(a.path, b.path);
    ASSERT_CONTAINS(a.path, "/tensorboard/events.out.tfevents.");
    ASSERT_OK(tfevents_write(&a, 1, &(struct tfevents_scalar){ "loss", 2.5 }, 1));
    ASSERT_OK(tfevents_resume(&a, 7));
    ASSERT_OK(file_read_text(&text, &bytes, a.path, 1000));
    assert_int_equal(bytes, 40 + (16 + 26) + (16 + 15));
    assert_memory_equal(text + 12 + 11, "brain.Event:2", 13);
    mem_free(text);
    tfevents_close(&a);
    tfevents_close(&b);
    ASSERT_OK(tfevents_write(&a, 1, NULL, 0)); /* closed: nothing is written */
    ASSERT_OK(file_remove_tree(dir));
    ASSERT_FAILS(tfevents_open(&a, "/proc/none"), SHERD_ENOTFOUND, "/proc/none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),
        cmocka_unit_test(frames),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
