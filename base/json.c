/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Strict JSON over jansson. Nesting is limited by jansson itself (2048), size by the caller.
 */
#include "base/json.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

/* jansson takes a value that it had no memory for as one that is wrong, or gives no text: whether memory is
 * short is tried. */
static int no_memory(const json_error_t *error, size_t bytes)
{
    if (json_error_code(error) == json_error_out_of_memory || !error->text[0])
        return 1;
    void *p = mem_aligned(sizeof(p), MAX(bytes * 16, (size_t)4 << 20));
    mem_free(p);
    return !p;
}

int json_parse_line(json_t **out, const char *text, size_t bytes, const char *name, int64_t line)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!root && no_memory(&error, bytes))
        return MEM_OUT("%s: %zu bytes of JSON", name, bytes);
    if (!root)
        return SHERD_FAIL(SHERD_EFORMAT, "%s:%lld:%d: not valid JSON: %s", name,
            (long long)line + MAX(error.line, 1) - 1, MAX(error.column, 0), error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s:%lld:1: the JSON text must be one object, { ... }", name, (long long)line);
    }
    *out = root;
    return SHERD_OK;
}

int json_parse(json_t **out, const char *text, size_t bytes, const char *name)
{
    return json_parse_line(out, text, bytes, name, 1);
}

int json_parse_file(json_t **out, const char *path, size_t max_bytes)
{
    char *text;
    size_t bytes;
    SHERD_TRY(file_read_text(&text, &bytes, path, max_bytes));
    int st = json_parse(out, text, bytes, path);
    mem_free(text);
    return st;
}

/* A member that must be there. */
static int member(const json_t *object, const char *key, const char *where, json_t **out)
{
    *out = json_object_get(object, key);
    if (!*out)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' is missing", where, key);
    return SHERD_OK;
}

static int wrong_type(const char *key, const char *where, const char *wanted)
{
    return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' must be %s", where, key, wanted);
}

int json_get_int(
    const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out)
{
    json_t *value;
    SHERD_TRY(member(object, key, where, &value));
    if (!json_is_integer(value))
        return wrong_type(key, where, "an integer");
    int64_t v = json_integer_value(value);
    if (v < min || v > max)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' is %lld but must lie in [%lld, %lld]", where, key,
            (long long)v, (long long)min, (long long)max);
    *out = v;
    return SHERD_OK;
}

int json_get_double(const json_t *object, const char *key, const char *where, double *out)
{
    json_t *value;
    SHERD_TRY(member(object, key, where, &value));
    if (!json_is_number(value))
        return wrong_type(key, where, "a number");
    *out = json_number_value(value);
    return SHERD_OK;
}

int json_get_text(const json_t *object, const char *key, const char *where, const char **out)
{
    json_t *value;
    SHERD_TRY(member(object, key, where, &value));
    if (!json_is_string(value))
        return wrong_type(key, where, "a text");
    *out = json_string_value(value);
    return SHERD_OK;
}

int json_get_array(const json_t *object, const char *key, const char *where, json_t **out)
{
    json_t *value;
    SHERD_TRY(member(object, key, where, &value));
    if (!json_is_array(value))
        return wrong_type(key, where, "an array");
    *out = value;
    return SHERD_OK;
}

int json_get_object(const json_t *object, const char *key, const char *where, json_t **out)
{
    json_t *value;
    SHERD_TRY(member(object, key, where, &value));
    if (!json_is_object(value))
        return wrong_type(key, where, "an object");
    *out = value;
    return SHERD_OK;
}

static int to_text(const char *data, size_t bytes, void *ctx)
{
    struct text *text = ctx;
    text_put(text, data, bytes);
    return text->failed ? -1 : 0;
}

static int print(char **out, const json_t *value, size_t layout)
{
    struct text text = { 0 };
    if (json_dump_callback(value, to_text, &text, layout | JSON_ENCODE_ANY) != 0 && !text.failed) {
        text_finish(&text);
        return SHERD_BUG("a JSON value that cannot be printed");
    }
    return text_take(&text, out);
}

int json_print(char **out, const json_t *value, int indent)
{
    return print(out, value, indent > 0 ? JSON_INDENT(2) : JSON_COMPACT);
}

int json_print_neat(char **out, const json_t *value)
{
    char *text;
    json_t *again;
    *out = NULL;
    SHERD_TRY(print(&text, value, JSON_INDENT(2) | JSON_REAL_PRECISION(15)));
    int st = json_parse(&again, text, strlen(text), "JSON");
    if (st == SHERD_OK && json_equal(again, value))
        *out = text;
    else
        mem_free(text);
    if (st == SHERD_OK)
        json_decref(again);
    return st == SHERD_OK && !*out ? json_print(out, value, 2) : st;
}
