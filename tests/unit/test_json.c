/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * JSON: what is refused and what the text says, typed members, printing.
 */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"

static int parse(json_t **out, const char *text)
{
    return json_parse(out, text, strlen(text), "f.json");
}

static void refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "", "f.json:1:0: not valid JSON" },
        { "{\"a\":1,\n\"a\":2}", "f.json:2:3: not valid JSON: duplicate object key" },
        { "{\"o\":{\"a\":1,\"a\":1}}", "duplicate object key" },
        { "{} x", "end of file expected" },
        { "{}{}", "end of file expected" },
        { "[]", "must be one object" },
        { "12", "must be one object" },
        { "{\"a\":9223372036854775808}", "too big integer" },
        { "{\"a\":99999999999999999999999999}", "too big integer" },
        { "{\"a\":1e999}", "real number overflow" },
        { "{\"a\":NaN}", "invalid token" },
        { "{\"a\":Infinity}", "invalid token" },
        { "{\"a\":01}", "f.json:1" },
        { "{\"a\":1,}", "f.json:1" },
        { "{'a':1}", "f.json:1" },
        { "{\"a\":\"\\ud800\"}", "invalid Unicode" },
        { "{\"a\":\"\xff\"}", "unable to decode byte 0xff" },
        { "{\"a\":\"\\u0000\"}", "\\u0000" },
        { "{\"a\":1", "f.json:1" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_t *root = NULL;
        ASSERT_FAILS(parse(&root, cases[i].text), SHERD_EFORMAT, cases[i].want);
        assert_null(root);
    }
    json_t *root;
    ASSERT_FAILS(json_parse(&root, "{}\0", 3, "f.json"), SHERD_EFORMAT, "f.json:1");
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    static char text[200000];
    memset(text, '[', sizeof(text) - 1);
    memcpy(text, "{\"a\":", 5);
    json_t *root;
    ASSERT_FAILS(parse(&root, text), SHERD_EFORMAT, "maximum parsing depth");
}

/* Lines of a file that are parsed by themselves. */
static void lines_count_from_that_of_the_file(void **state)
{
    (void)state;
    json_t *root;
    ASSERT_FAILS(json_parse_line(&root, "{\"a\":1,\n\"a\":2}", 15, "f.json", 7), SHERD_EFORMAT,
        "f.json:8:3: not valid JSON: duplicate object key");
    ASSERT_FAILS(json_parse_line(&root, "[1]", 3, "f.json", 1LL << 40), SHERD_EFORMAT,
        "f.json:1099511627776:1: the JSON text must be one object");
}

static void members(void **state)
{
    (void)state;
    json_t *root, *value;
    int64_t i = 0;
    double d = 0;
    const char *s;
    ASSERT_OK(parse(&root,
        "{\"i\":-5,\"big\":9223372036854775807,\"r\":0.5,\"s\":\"hey\",\"a\":[1],\"o\":{},\"n\":null}"));
    ASSERT_OK(json_get_int(root, "i", -5, 5, "here", &i));
    assert_int_equal(i, -5);
    ASSERT_OK(json_get_int(root, "big", 0, INT64_MAX, "here", &i));
    assert_true(i == INT64_MAX);
    ASSERT_OK(json_get_double(root, "r", "here", &d));
    assert_true(d == 0.5);
    ASSERT_OK(json_get_double(root, "i", "here", &d));
    assert_true(d == -5);
    ASSERT_OK(json_get_text(root, "s", "here", &s));
    assert_string_equal(s, "hey");
    ASSERT_OK(json_get_array(root, "a", "here", &value));
    assert_int_equal(json_array_size(value), 1);
    ASSERT_OK(json_get_object(root, "o", "here", &value));

    i = 77;
    ASSERT_FAILS(json_get_int(root, "x", 0, 9, "m.json", &i), SHERD_EFORMAT, "m.json: member 'x' is missing");
    ASSERT_FAILS(json_get_int(root, "s", 0, 9, "m.json", &i), SHERD_EFORMAT, "'s' must be an integer");
    ASSERT_FAILS(json_get_int(root, "r", 0, 9, "m.json", &i), SHERD_EFORMAT, "'r' must be an integer");
    ASSERT_FAILS(
        json_get_int(root, "i", 0, 9, "m.json", &i), SHERD_EFORMAT, "'i' is -5 but must lie in [0, 9]");
    assert_int_equal(i, 77);
    ASSERT_FAILS(json_get_double(root, "s", "m.json", &d), SHERD_EFORMAT, "'s' must be a number");
    ASSERT_FAILS(json_get_text(root, "n", "m.json", &s), SHERD_EFORMAT, "'n' must be a text");
    ASSERT_FAILS(json_get_array(root, "o", "m.json", &value), SHERD_EFORMAT, "'o' must be an array");
    ASSERT_FAILS(json_get_object(root, "a", "m.json", &value), SHERD_EFORMAT, "'a' must be an object");
    ASSERT_FAILS(json_get_int(json_array_get(json_object_get(root, "a"), 0), "x", 0, 9, "a[0]", &i),
        SHERD_EFORMAT, "missing");
    json_decref(root);
}

static void prints_in_order(void **state)
{
    (void)state;
    json_t *root;
    char *text;
    ASSERT_OK(parse(&root, "{ \"z\": 1, \"a\": [1, 0.5, \"x\\n\"], \"m\": {} }"));
    ASSERT_OK(json_print(&text, root, 0));
    assert_string_equal(text, "{\"z\":1,\"a\":[1,0.5,\"x\\n\"],\"m\":{}}");
    mem_free(text);
    ASSERT_OK(json_print(&text, root, 2));
    assert_int_equal(strncmp(text, "{\n  \"z\": 1,\n  \"a\": [\n    1,", 27), 0);
    mem_free(text);
    ASSERT_OK(json_print(&text, json_object_get(root, "z"), 0));
    assert_string_equal(text, "1");
    mem_free(text);
    mem_fail_at(1);
    ASSERT_FAILS(json_print(&text, root, 0), SHERD_ENOMEM, "out of memory");
    json_decref(root);
}

static void neat_numbers_are_the_same(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = { { 1e-6, "1e-6" }, { 0.1, "0.1" }, { 10000.0, "10000.0" },
        { 0.1 + 0.2, "0.30000000000000004" } };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_t *root = json_pack("{s:f}", "v", cases[i].value);
        char *text, want[64];
        snprintf(want, sizeof(want), "{\n  \"v\": %s\n}", cases[i].text);
        ASSERT_OK(json_print_neat(&text, root));
        assert_string_equal(text, want);
        mem_free(text);
        mem_fail_at(1);
        ASSERT_FAILS(json_print_neat(&text, root), SHERD_ENOMEM, "out of memory");
        json_decref(root);
    }
}

static void doubles_survive(void **state)
{
    (void)state;
    static const double values[] = { 0.1, 1e-300, 3.0, 123456789.123456789, 0x1p-1074 };
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        json_t *root = json_pack("{s:f}", "v", values[i]), *again;
        char *text;
        double v;
        ASSERT_OK(json_print(&text, root, 0));
        ASSERT_OK(parse(&again, text));
        ASSERT_OK(json_get_double(again, "v", "here", &v));
        assert_true(v == values[i]);
        mem_free(text);
        json_decref(root);
        json_decref(again);
    }
}

static void files(void **state)
{
    (void)state;
    char path[] = "/tmp/sherd-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs("{\"a\":\n 1,, }", file);
    fclose(file);
    json_t *root;
    ASSERT_FAILS(json_parse_file(&root, path, 1000), SHERD_EFORMAT, path);
    ASSERT_CONTAINS(sherd_error(), ":2:4: ");
    ASSERT_FAILS(json_parse_file(&root, path, 5), SHERD_EFORMAT, "larger than the 5 bytes");
    remove(path);
    ASSERT_FAILS(json_parse_file(&root, path, 1000), SHERD_ENOTFOUND, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(lines_count_from_that_of_the_file),
        cmocka_unit_test(members),
        cmocka_unit_test(prints_in_order),
        cmocka_unit_test(neat_numbers_are_the_same),
        cmocka_unit_test(doubles_survive),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
