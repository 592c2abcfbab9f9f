/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Manifests: text and back, and every inconsistency refused with its place.
 */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "ckpt/manifest.h"

static const char good[] =
    "{\"format\": \"sherd-checkpoint\", \"version\": 1, \"sherd\": \"0.1.0\", \"step\": 12, \"stage\": 2, \"world\": 2,\n"
    "\"tokens_seen\": 3400, \"samples_seen\": 56, \"seed\": \"18446744073709551615\", \"param_type\": \"BF16\",\n"
    "\"optimizer\": \"adamw\", \"states\": [\"adam.m\", \"adam.v\"], \"model\": {\"model_type\": \"gpt2\"},\n"
    "\"extra\": {\"cursor\": 7}, \"later\": [1],\n"
    "\"files\": [\n"
    "{\"name\": \"weights-00000-of-00002.safetensors\", \"rank\": 0, \"bytes\": 700, \"xxh3\": "
    "\"0123456789abcdef0123456789abcdef\"},\n"
    "{\"name\": \"weights-00001-of-00002.safetensors\", \"rank\": 1, \"bytes\": 800, \"xxh3\": "
    "\"0123456789abcdef0123456789abcdef\"},\n"
    "{\"name\": \"states-00000-of-00002.safetensors\", \"rank\": 0, \"bytes\": 900, \"xxh3\": "
    "\"0123456789abcdef0123456789abcdef\"},\n"
    "{\"name\": \"states-00001-of-00002.safetensors\", \"rank\": 1, \"bytes\": 900, \"xxh3\": "
    "\"0123456789abcdef0123456789abcdef\"}],\n"
    "\"tensors\": [\n"
    "{\"name\": \"wte\", \"alias\": \"head\", \"type\": \"F32\", \"shape\": [10, 4], \"spans\": [[0, 0, 30], [1, 30, 10]]},\n"
    "{\"name\": \"ln\", \"type\": \"F32\", \"shape\": [4], \"no_decay\": true, \"spans\": [[1, 0, 4]]},\n"
    "{\"name\": \"ice\", \"type\": \"BF16\", \"shape\": [4], \"frozen\": true, \"spans\": [[0, 0, 4]]}]}";

/* One tensor, one file of two blocks, as the second version has them. */
static const char blocked[] =
    "{\"format\": \"sherd-checkpoint\", \"version\": 2, \"sherd\": \"0.1.0\", \"step\": 3, \"stage\": 0, \"world\": 1,\n"
    "\"tokens_seen\": 3, \"samples_seen\": 5, \"seed\": \"1\", \"param_type\": \"F32\", \"optimizer\": \"sgd\",\n"
    "\"states\": [], \"run\": \"00000000000000ff\", \"finite\": false, \"val_loss\": 2.5, \"block\": 4096,\n"
    "\"files\": [{\"name\": \"weights-00000-of-00001.safetensors\", \"rank\": 0, \"bytes\": 4097, \"xxh3\": "
    "\"0123456789abcdef0123456789abcdef\", \"blocks\": \"0123456789abcdeffedcba9876543210\"}],\n"
    "\"tensors\": [{\"name\": \"a\", \"type\": \"F32\", \"shape\": [4], \"spans\": [[0, 0, 4]]}]}";

/* `good` with the first `from` replaced by `to`; mem_free it. */
static char *edit(const char *in, const char *from, const char *to)
{
    const char *at = strstr(in, from);
    assert_non_null(at);
    char *text = mem_printf("%.*s%s%s", (int)(at - in), in, to, at + strlen(from));
    assert_non_null(text);
    return text;
}

static char *with(const char *from, const char *to)
{
    return edit(good, from, to);
}

static void second_refused(const char *from, const char *to, const char *error)
{
    struct manifest m;
    char *text = edit(blocked, from, to);
    ASSERT_FAILS(manifest_parse(&m, text, strlen(text), "m.json"), SHERD_EFORMAT, error);
    mem_free(text);
}

/* Sums of blocks, the run, the loss and whether values are finite: read, printed and refused. */
static void blocks_and_notes(void **state)
{
    (void)state;
    struct manifest m, again;
    char *text;
    ASSERT_OK(manifest_parse(&m, blocked, strlen(blocked), "m.json"));
    assert_true(m.block == 4096 && m.meta.run == 255 && m.meta.nonfinite && m.meta.has_loss);
    assert_true(m.meta.loss == 2.5);
    assert_true(m.files[0].blocks[0] == 0x0123456789abcdef && m.files[0].blocks[1] == 0xfedcba9876543210);
    ASSERT_OK(manifest_print(&text, &m));
    ASSERT_OK(manifest_parse(&again, text, strlen(text), "again.json"));
    assert_true(
        again.block == 4096 && again.meta.run == 255 && again.meta.nonfinite && again.meta.loss == 2.5);
    assert_true(again.files[0].blocks[1] == m.files[0].blocks[1]);
    mem_free(text);
    manifest_finish(&m);
    manifest_finish(&again);
    second_refused("\"block\": 4096", "\"block\": 4095", "block");
    second_refused("\"block\": 4096", "\"block\": 12288", "power of two");
    second_refused(", \"block\": 4096", "", "'block' is missing");
    second_refused("\"bytes\": 4097", "\"bytes\": 4096", "blocks must be 1 times 16");
    second_refused("fedcba98", "fedcbA98", "hex digits");
    second_refused(", \"blocks\": \"0123456789abcdeffedcba9876543210\"", "", "'blocks' is missing");
    second_refused("00000000000000ff", "ff", "run must be 16");
    second_refused("2.5", "\"low\"", "val_loss");
    second_refused("\"finite\": false", "\"finite\": 0", "finite");
}

/* Any bit of a text that was written is noticed, but for those of the sum's own name. */
static void a_changed_text_is_refused(void **state)
{
    (void)state;
    struct manifest m;
    char *text;
    ASSERT_OK(manifest_parse(&m, blocked, strlen(blocked), "m.json"));
    ASSERT_OK(manifest_print(&text, &m));
    manifest_finish(&m);
    size_t len = strlen(text), name = (size_t)(strstr(text, "\"sum\"") - text);
    for (size_t i = 0; i < 8 * len; i++) {
        text[i / 8] ^= (char)(1 << i % 8);
        int st = manifest_parse(&m, text, len, "m.json");
        text[i / 8] ^= (char)(1 << i % 8);
        if (st == SHERD_OK && i / 8 > name && i / 8 < name + 4)
            manifest_finish(&m);
        else
            assert_true(st == SHERD_EFORMAT || st == SHERD_EUNSUPPORTED);
    }
    char *other = edit(text, "\"samples_seen\": 5", "\"samples_seen\": 6");
    ASSERT_FAILS(manifest_parse(&m, other, strlen(other), "m.json"), SHERD_EFORMAT,
        "m.json was changed after it was saved: it does not fit its 'sum'");
    mem_free(other);
    mem_free(text);
}

static void scale_refused(const char *scale, const char *error)
{
    char member[200];
    snprintf(member, sizeof(member), "\"step\": 3, \"loss_scale\": %s", scale);
    second_refused("\"step\": 3", member, error);
}

/* The loss scale of a run in f16. */
static void loss_scales(void **state)
{
    (void)state;
    struct manifest m, again;
    char *text = edit(blocked, "\"step\": 3",
        "\"step\": 3, \"loss_scale\": {\"value\": 0.5, \"hysteresis\": 2, \"good_steps\": 7}");
    ASSERT_OK(manifest_parse(&m, text, strlen(text), "m.json"));
    mem_free(text);
    ASSERT_OK(manifest_print(&text, &m));
    ASSERT_OK(manifest_parse(&again, text, strlen(text), "again.json"));
    assert_true(again.meta.scale == 0.5 && again.meta.scale_hysteresis == 2 && again.meta.scale_good == 7);
    mem_free(text);
    manifest_finish(&m);
    manifest_finish(&again);
    scale_refused("65536", "loss_scale must be an object");
    scale_refused("{\"value\": 0, \"hysteresis\": 2, \"good_steps\": 7}", "a value above 0");
    scale_refused("{\"value\": 1e30, \"hysteresis\": 2, \"good_steps\": 7}", "up to 2^60");
    scale_refused("{\"value\": 1, \"hysteresis\": 0, \"good_steps\": 7}", "'hysteresis' is 0");
    scale_refused("{\"value\": 1, \"hysteresis\": 2}", "good_steps");
}

static void refused(const char *from, const char *to, const char *error)
{
    struct manifest m;
    char *text = with(from, to);
    ASSERT_FAILS(manifest_parse(&m, text, strlen(text), "m.json"), SHERD_EFORMAT, error);
    ASSERT_CONTAINS(sherd_error(), "m.json");
    mem_free(text);
}

static void reads(void **state)
{
    (void)state;
    struct manifest m;
    ASSERT_OK(manifest_parse(&m, good, strlen(good), "m.json"));
    assert_int_equal(m.meta.step, 12);
    assert_int_equal(m.meta.stage, 2);
    assert_int_equal(m.world, 2);
    assert_int_equal(m.meta.tokens_seen, 3400);
    assert_int_equal(m.meta.samples_seen, 56);
    assert_true(m.meta.seed == UINT64_MAX);
    assert_int_equal(m.meta.param_type, SHERD_BF16);
    assert_string_equal(m.meta.optimizer, "adamw");
    assert_string_equal(m.meta.extra, "{\"cursor\":7}");
    assert_string_equal(m.meta.export_json, "{\"model_type\":\"gpt2\"}");
    assert_int_equal(m.n_files, 4);
    assert_int_equal(m.file_of[CKPT_STATES][1], 3);
    assert_int_equal(m.files[1].bytes, 800);
    assert_int_equal(m.n_tensors, 3);
    assert_int_equal(m.tensors[0].elems, 40);
    assert_int_equal(m.tensors[0].spans[1].first, 30);
    assert_true(m.tensors[1].no_decay && !m.tensors[1].frozen && m.tensors[2].frozen);
    assert_int_equal(manifest_find(&m, "wte"), 0);
    assert_int_equal(manifest_find(&m, "head"), 0);
    assert_int_equal(manifest_find(&m, "ice"), 2);
    assert_int_equal(manifest_find(&m, "fire"), -1);
    assert_int_equal(manifest_state(&m, "adam.v"), 1);
    assert_int_equal(manifest_state(&m, "weight"), -1);
    manifest_finish(&m);
}

static void prints_what_it_reads(void **state)
{
    (void)state;
    struct manifest m, again;
    char *text, *second;
    ASSERT_OK(manifest_parse(&m, good, strlen(good), "m.json"));
    ASSERT_OK(manifest_print(&text, &m));
    ASSERT_OK(manifest_parse(&again, text, strlen(text), "again.json"));
    ASSERT_OK(manifest_print(&second, &again));
    assert_string_equal(text, second);
    ASSERT_CONTAINS(text, "\"seed\": \"18446744073709551615\"");
    ASSERT_CONTAINS(
        text, "    {\"name\":\"ice\",\"type\":\"BF16\",\"shape\":[4],\"frozen\":true,\"spans\":[[0,0,4]]}\n");
    ASSERT_CONTAINS(text, "  \"extra\": {\n    \"cursor\": 7\n  },\n  \"files\": [\n");
    mem_free(text);
    mem_free(second);
    manifest_finish(&m);
    manifest_finish(&again);
}

static void refuses_an_extra_that_is_no_object(void **state)
{
    (void)state;
    struct manifest m;
    char *text;
    ASSERT_OK(manifest_parse(&m, good, strlen(good), "m.json"));
    m.meta.extra = "[1]";
    ASSERT_FAILS(manifest_print(&text, &m), SHERD_EFORMAT, "'extra' is not a JSON object");
    manifest_finish(&m);
}

static void refuses_newer_versions(void **state)
{
    (void)state;
    struct manifest m;
    char *text = with("\"version\": 1, \"sherd\": \"0.1.0\"", "\"version\": 3, \"sherd\": \"7.0.0\"");
    ASSERT_FAILS(manifest_parse(&m, text, strlen(text), "m.json"), SHERD_EUNSUPPORTED,
        "m.json: format version 3 was written by sherd 7.0.0");
    mem_free(text);
}

static void refuses_a_bad_head(void **state)
{
    (void)state;
    refused("sherd-checkpoint", "model", "format is 'model'");
    refused("\"version\": 1", "\"version\": 0", "version");
    refused("\"step\": 12", "\"step\": -1", "step");
    refused("\"step\": 12, ", "", "'step' is missing");
    refused("\"world\": 2", "\"world\": 0", "world");
    refused("\"stage\": 2", "\"stage\": 4", "stage");
    refused("\"18446744073709551615\"", "\"18446744073709551616\"", "seed");
    refused("\"18446744073709551615\"", "\"-1\"", "seed");
    refused("\"param_type\": \"BF16\"", "\"param_type\": \"F64\"", "param_type 'F64'");
    refused("\"adam.v\"", "\"adam.m\"", "state 'adam.m' is listed twice");
    refused("\"adam.v\"", "\"weight\"", "states[1]");
    refused("\"adam.v\"", "\"a/b\"", "states[1]");
    refused("{\"cursor\": 7}", "7", "extra");
    refused("\"step\": 12", "\"step\": 12, \"step\": 13", "duplicate");
}

static void refuses_bad_files(void **state)
{
    (void)state;
    refused("weights-00000-of-00002", "../../etc/passwd", "should be");
    refused("weights-00000-of-00002", "weights-00000-of-00003", "should be 'weights-00000-of-00002");
    refused("\"rank\": 0", "\"rank\": 2", "files[0]");
    refused("\"name\": \"weights-00001-of-00002.safetensors\", \"rank\": 1",
        "\"name\": \"weights-00000-of-00002.safetensors\", \"rank\": 0", "listed twice");
    refused("\"0123456789abcdef", "\"0123456789abcdeX", "hex digits");
    refused("\"bytes\": 700", "\"bytes\": -7", "bytes");
}

static void refuses_holes_and_overlaps(void **state)
{
    (void)state;
    refused("[1, 30, 10]", "[1, 31, 9]", "tensor 'wte': spans[1]");
    refused("[1, 30, 10]", "[1, 29, 11]", "tensor 'wte': spans[1]");
    refused("[1, 30, 10]", "[1, 30, 9]", "elements from 39 to 40 are in no file");
    refused("[1, 30, 10]", "[1, 30, 11]", "tensor 'wte': spans[1]");
    refused("[1, 30, 10]", "[1, 30, 0]", "tensor 'wte': spans[1]");
    refused("[1, 30, 10]", "[2, 30, 10]", "no weights file of rank 2");
    refused("[1, 30, 10]", "[1, 30]", "must be [rank, first, elems]");
    refused("[1, 30, 10]", "7", "must be [rank, first, elems]");
    refused("[[0, 0, 30], [1, 30, 10]]", "[]", "elements from 0 to 40 are in no file");
}

static void refuses_bad_tensors(void **state)
{
    (void)state;
    refused("\"name\": \"ln\"", "\"name\": \"wte\"", "tensor 'wte' is listed twice");
    refused("\"name\": \"ln\"", "\"name\": \"head\"", "tensor 'head' is listed twice");
    refused("\"shape\": [10, 4]", "\"shape\": [10, 5]", "are in no file");
    refused("\"shape\": [10, 4]", "\"shape\": []", "1 to 4 dimensions");
    refused("\"shape\": [10, 4]", "\"shape\": [10, 0]", "dimension 1");
    refused("\"shape\": [10, 4]", "\"shape\": [4294967296, 4294967296]", "dimension 1");
    refused("\"type\": \"F32\"", "\"type\": \"BF16\"", "a trained tensor must be stored as F32");
    refused("\"frozen\": true", "\"frozen\": 1", "'frozen' must be true or false");
    refused("\"tensors\": [", "\"tensors\": [3,", "tensors[0] must be an object");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(prints_what_it_reads),
        cmocka_unit_test(refuses_an_extra_that_is_no_object),
        cmocka_unit_test(blocks_and_notes),
        cmocka_unit_test(a_changed_text_is_refused),
        cmocka_unit_test(loss_scales),
        cmocka_unit_test(refuses_newer_versions),
        cmocka_unit_test(refuses_a_bad_head),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_holes_and_overlaps),
        cmocka_unit_test(refuses_bad_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
