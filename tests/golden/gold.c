/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Golden files: safetensors with the settings in __metadata__. The layout is described in tools/gold.py.
 */
#include "tests/check.h"
#include "tests/golden/gold.h"

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/mem.h"

static const json_t *entry(const struct gold *gold, const char *name)
{
    const json_t *e = json_object_get(gold->header, name);
    if (!e)
        fail_msg("golden file: no tensor '%s'", name);
    return e;
}

static int64_t dimension(const json_t *tensor, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(tensor, "shape"), i));
}

double gold_number(const struct gold *gold, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(gold->header, "__metadata__"), key));
    return text ? atof(text) : 0;
}

static int64_t whole_number(const struct gold *gold, const char *key)
{
    return (int64_t)gold_number(gold, key);
}

void gold_open(struct gold *gold, const char *name)
{
    const char *folder = getenv("GOLDEN");
    char path[1024];
    uint64_t header_bytes;
    assert_non_null(folder);
    snprintf(path, sizeof(path), "%s/%s.safetensors", folder, name);
    ASSERT_OK(file_map(&gold->map, path));
    assert_true(gold->map.bytes > 8);
    memcpy(&header_bytes, gold->map.data, sizeof(header_bytes));
    assert_true(header_bytes <= gold->map.bytes - 8);
    ASSERT_OK(json_parse(&gold->header, (const char *)gold->map.data + 8, header_bytes, path));
    gold->data = gold->map.data + 8 + header_bytes;
    const json_t *tokens = entry(gold, "tokens");
    gold->steps = dimension(tokens, 0);
    gold->batch = dimension(tokens, 1);
    gold->seq = dimension(tokens, 2);
    gold->config = (struct sherd_model_config){
        .family = json_string_value(json_object_get(json_object_get(gold->header, "__metadata__"), "family")),
        .vocab = whole_number(gold, "vocab"),
        .width = whole_number(gold, "width"),
        .layers = whole_number(gold, "layers"),
        .heads = whole_number(gold, "heads"),
        .kv_heads = whole_number(gold, "kv_heads"),
        .head_dim = whole_number(gold, "head_dim"),
        .mlp_width = whole_number(gold, "mlp_width"),
        .context = whole_number(gold, "context"),
        .tied = (int)whole_number(gold, "tied"),
        .norm_eps = (float)gold_number(gold, "norm_eps"),
        .rope_theta = (float)gold_number(gold, "rope_theta"),
        .rope_scaling = (enum sherd_rope_scaling)whole_number(gold, "rope_scaling"),
        .rope_factor = (float)gold_number(gold, "rope_factor"),
        .rope_low_freq = (float)gold_number(gold, "rope_low_freq"),
        .rope_high_freq = (float)gold_number(gold, "rope_high_freq"),
        .rope_context = whole_number(gold, "rope_context"),
    };
}

void gold_close(struct gold *gold)
{
    json_decref(gold->header);
    file_unmap(&gold->map);
}

const void *gold_raw(const struct gold *gold, const char *name, const char *type, int64_t elems)
{
    const json_t *tensor = entry(gold, name);
    int64_t have = 1;
    for (size_t i = 0; i < json_array_size(json_object_get(tensor, "shape")); i++)
        have *= dimension(tensor, i);
    assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), type);
    assert_int_equal(have, elems);
    return gold->data + json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
}

float *gold_floats(const struct gold *gold, const char *prefix, const char *name, int64_t elems)
{
    char full[256];
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    float *out = mem_zalloc((size_t)elems, sizeof(*out));
    assert_non_null(out);
    if (prefix[0] == 'g') {
        memcpy(out, gold_raw(gold, full, "F32", elems), (size_t)elems * sizeof(*out));
        return out;
    }
    const uint8_t *raw = gold_raw(gold, full, prefix[0] == 'w' ? "BF16" : "F16", elems);
    for (int64_t i = 0; i < elems; i++) {
        uint16_t half;
        memcpy(&half, raw + 2 * i, sizeof(half));
        out[i] = prefix[0] == 'w' ? bf16_to_float(half) : f16_to_float(half);
    }
    return out;
}

double gold_error(const float *a, const float *want, int64_t n)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - want[i]) * ((double)a[i] - want[i]);
        all += (double)want[i] * want[i];
    }
    double error = sqrt(off) / sqrt(all);
    return isfinite(error) ? error : INFINITY;
}
