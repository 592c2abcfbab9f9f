/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * JSON from anywhere: what is refused has a text, what is taken prints and reads back as the same value.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/status.h"

/* Every getter on every member: a result or a text, whatever the type. */
static void ask_members(json_t *root)
{
    const char *key, *text;
    json_t *value, *found;
    int64_t i;
    double d;
    json_object_foreach(root, key, value)
    {
        int ok = json_get_int(root, key, INT64_MIN, INT64_MAX, "fuzz", &i) == SHERD_OK;
        FUZZ_CHECK(ok == json_is_integer(value));
        ok = json_get_double(root, key, "fuzz", &d) == SHERD_OK;
        FUZZ_CHECK(ok == json_is_number(value));
        ok = json_get_text(root, key, "fuzz", &text) == SHERD_OK;
        FUZZ_CHECK(ok == json_is_string(value) && (!ok || strlen(text) == json_string_length(value)));
        ok = json_get_array(root, key, "fuzz", &found) == SHERD_OK;
        FUZZ_CHECK(ok == json_is_array(value));
        ok = json_get_object(root, key, "fuzz", &found) == SHERD_OK;
        FUZZ_CHECK(ok == json_is_object(value));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_t *root, *again;
    int st = json_parse(&root, (const char *)data, bytes, "fuzz");
    if (st != SHERD_OK) {
        FUZZ_CHECK(st == SHERD_EFORMAT && strncmp(sherd_error(), "fuzz:", 5) == 0);
        return 0;
    }
    ask_members(root);
    for (int indent = 0; indent <= 2; indent += 2) {
        char *text;
        FUZZ_CHECK(json_print(&text, root, indent) == SHERD_OK);
        FUZZ_CHECK(json_parse(&again, text, strlen(text), "again") == SHERD_OK);
        FUZZ_CHECK(json_equal(root, again));
        json_decref(again);
        mem_free(text);
    }
    json_decref(root);
    return 0;
}
