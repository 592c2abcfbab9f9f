/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd diff: what differs between two checkpoints or model folders, and by how much. Ends as diff does: 0
 * equal, 1 different, 2 trouble.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

#define TROUBLE 2
#define BF16_ULPS (1 << 15) /* floats that are rounded to one bf16, to either side */
#define F16_ULPS (1 << 12)  /* to one f16, where it is not denormal */

struct show {
    const char *a, *b;
    int all;
    int rounded;  /* items that differ by what rounding to 16 bits explains */
    json_t *list; /* instead of lines */
};

static const char *label(const struct sherd_diff_item *item, char buf[256])
{
    int plain = !item->what[0] || strcmp(item->what, "weight") == 0;
    snprintf(buf, 256, "%s%s%s", item->name, plain ? "" : " ", plain ? "" : item->what);
    return buf;
}

static void show_values(const struct sherd_diff_item *item, const char *name)
{
    char n[32], of[32];
    const char *a = sherd_dtype_name(item->a_type), *b = sherd_dtype_name(item->b_type);
    printf("%-52s ", name);
    if (item->n_different == 0)
        printf("equal");
    else
        printf("%s of %s differ, the first at %lld; at most %.3g, relative %.3g",
            text_commas(item->n_different, n), text_commas(item->elems, of), (long long)item->first,
            item->max_abs, item->max_rel);
    if (item->n_different && item->max_ulps >= 0)
        printf(", %lld floats apart", (long long)item->max_ulps);
    printf("%s%s%s%s\n", strcmp(a, b) ? "; stored as " : "", strcmp(a, b) ? a : "",
        strcmp(a, b) ? " and " : "", strcmp(a, b) ? b : "");
}

static void show_line(const struct show *s, const struct sherd_diff_item *item)
{
    char buf[256];
    const char *name = label(item, buf);
    if (item->kind == SHERD_DIFF_VALUES)
        show_values(item, name);
    else if (item->kind == SHERD_DIFF_ONLY_A || item->kind == SHERD_DIFF_ONLY_B)
        printf("%-52s only in %s\n", name, item->kind == SHERD_DIFF_ONLY_A ? s->a : s->b);
    else
        printf("%-52s %s and %s\n", name, item->a_text, item->b_text);
}

static json_t *item_json(const struct sherd_diff_item *item)
{
    static const char *const kinds[] = { "values", "shape", "only_a", "only_b", "text" };
    json_t *out =
        json_pack("{s:s, s:s, s:s}", "kind", kinds[item->kind], "name", item->name, "what", item->what);
    if (item->a_text)
        json_object_update_new(out, json_pack("{s:s, s:s}", "a", item->a_text, "b", item->b_text));
    if (item->kind != SHERD_DIFF_VALUES)
        return out;
    json_object_update_new(
        out, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "a_dtype", sherd_dtype_name(item->a_type), "b_dtype",
                 sherd_dtype_name(item->b_type), "elems", (json_int_t)item->elems, "different",
                 (json_int_t)item->n_different, "first", (json_int_t)item->first, "max_ulps",
                 (json_int_t)item->max_ulps));
    int numbers = isfinite(item->max_abs) && isfinite(item->max_rel);
    json_object_set_new(out, "max_abs", numbers ? json_real(item->max_abs) : json_null());
    json_object_set_new(out, "max_rel", numbers ? json_real(item->max_rel) : json_null());
    return out;
}

/* One side is the other after rounding, or might be. */
static int is_rounding(const struct sherd_diff_item *item)
{
    enum sherd_dtype other = item->a_type == SHERD_F32 ? item->b_type : item->a_type;
    int64_t most = other == SHERD_BF16 ? BF16_ULPS : other == SHERD_F16 ? F16_ULPS : 0;
    return item->kind == SHERD_DIFF_VALUES && (item->a_type == SHERD_F32) != (item->b_type == SHERD_F32) &&
           item->max_ulps >= 0 && item->max_ulps <= most;
}

static void show(void *ctx, const struct sherd_diff_item *item)
{
    struct show *s = ctx;
    if (item->kind == SHERD_DIFF_VALUES && item->n_different == 0 && !s->all)
        return;
    s->rounded += item->n_different > 0 && is_rounding(item);
    if (s->list)
        json_array_append_new(s->list, item_json(item));
    else
        show_line(s, item);
}

static int finish(const struct show *s, const struct sherd_diff_result *r)
{
    char a[32];
    int code = r->different ? EXIT_FAILED : EXIT_OK;
    if (s->list) {
        int st = out_json(json_pack("{s:b, s:i, s:i, s:I, s:o}", "equal", r->different == 0, "compared",
            r->compared, "different", r->different, "elems", (json_int_t)r->elems, "items", s->list));
        return st == EXIT_OK ? code : TROUBLE;
    }
    if (r->different)
        printf("%d of %d items differ, %s values compared%s\n", r->different, r->compared,
            text_commas(r->elems, a),
            s->rounded == r->different ? "; each by no more than its rounding to 16 bits" : "");
    else
        printf("equal: %d items, %s values\n", r->compared, text_commas(r->elems, a));
    return code;
}

int cmd_diff(int argc, char **argv)
{
    struct show s = { 0 };
    struct sherd_diff_desc desc = { .item = show, .ctx = &s };
    struct sherd_diff_result result;
    int json = 0;
    const struct arg args[] = {
        { "weights", ARG_FLAG, &desc.weights_only, NULL,
            "compare weights alone, not steps and optimizer states" },
        { "all", ARG_FLAG, &s.all, NULL, "list what is equal, too" },
        { "json", ARG_FLAG, &json, NULL, "print the result as JSON" },
    };
    const struct command command = { "diff", "A B", 2, 2,
        "Shows what differs between two checkpoints or models, and by how much.",
        "Each is a run folder (its newest complete checkpoint is taken), a step folder, or a folder with\n"
        "model.safetensors or an index. Values are compared as float; worlds and stages do not matter.\n"
        "Exit status: 0 equal, 1 different, 2 trouble.",
        args, COUNT_OF(args) };
    const char *dirs[2];
    int code = args_parse(&command, argc, argv, dirs);
    if (code >= 0)
        return code;
    s.a = desc.a = dirs[0];
    s.b = desc.b = dirs[1];
    s.list = json ? json_array() : NULL;
    int st = sherd_diff(&desc, &result);
    if (st == SHERD_OK)
        return finish(&s, &result);
    json_decref(s.list);
    (void)out_fail(st);
    return TROUBLE;
}
