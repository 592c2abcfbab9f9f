/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The layout over random models and worlds: tensors tile their parameters, the slices of all ranks tile every
 * segment, spans cover each tensor exactly once, offsets do not depend on the world.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "shard/layout.h"

#define MAX_PARAMS 12

struct fake {
    struct sherd_param params[MAX_PARAMS];
    struct sherd_part parts[MAX_PARAMS][3];
    char names[MAX_PARAMS][24], part_names[MAX_PARAMS][3][24];
    struct sherd_unit units[3];
    struct sherd_layer layers[3];
    struct sherd_model_spec spec;
};

static uint32_t draw(uint64_t *at, uint32_t below)
{
    uint32_t r[4];
    rng_block(r, 7, 1, (*at)++);
    return r[0] % below;
}

/* Three units of four parameters; some frozen, some of one element, some fused from three parts. */
static void fake_init(struct fake *f, uint64_t *at)
{
    memset(f, 0, sizeof(*f));
    for (int p = 0; p < MAX_PARAMS; p++) {
        struct sherd_param *q = &f->params[p];
        snprintf(f->names[p], sizeof(f->names[p]), "p%d", p);
        *q = (struct sherd_param){ .name = f->names[p],
            .dims = 1 + (int)draw(at, 2),
            .shape = { 1 + draw(at, 40), 1 + draw(at, 300) },
            .flags = draw(at, 3) ? 0 : SHERD_FROZEN };
        if (draw(at, 4) == 0) {
            int64_t rows = 0;
            for (int i = 0; i < 3; i++) {
                snprintf(f->part_names[p][i], sizeof(f->part_names[p][i]), "p%d.%d", p, i);
                f->parts[p][i] = (struct sherd_part){ f->part_names[p][i], 1 + draw(at, 9) };
                rows += f->parts[p][i].rows;
            }
            q->parts = f->parts[p];
            q->n_parts = 3;
            q->shape[0] = rows;
        }
    }
    for (int u = 0; u < 3; u++) {
        f->units[u] = (struct sherd_unit){ "u", &f->params[4 * u], 4 };
        f->layers[u] = (struct sherd_layer){ "l", u, NULL, NULL };
    }
    f->spec = (struct sherd_model_spec){ f->units, 3, f->layers, 3, 0, NULL };
}

/* Marks every element of every tensor that the spans of all ranks cover. */
static void check_cover(const struct shard_layout *layout)
{
    for (int t = 0; t < layout->n_tensors; t++) {
        const struct shard_tensor *x = &layout->tensors[t];
        int64_t next = 0, slice = layout_slice(layout, x->unit, x->segment);
        for (int r = 0; r < layout->world; r++) {
            struct shard_span spans[64];
            int n = layout_spans(layout, x->unit, x->segment, slice * r, slice * (r + 1), spans, 64);
            assert_true(n <= 64);
            for (int i = 0; i < n; i++) {
                assert_true(
                    spans[i].offset >= slice * r && spans[i].offset + spans[i].elems <= slice * (r + 1));
                if (spans[i].tensor != t)
                    continue;
                assert_int_equal(spans[i].first, next);
                assert_int_equal(spans[i].offset, x->offset + next);
                next += spans[i].elems;
            }
        }
        assert_int_equal(next, x->elems);
    }
}

static void slices_and_spans_tile_everything(void **state)
{
    (void)state;
    uint64_t at = 0;
    for (int trial = 0; trial < 300; trial++) {
        struct fake f;
        struct shard_layout one, many;
        fake_init(&f, &at);
        assert_int_equal(layout_init(&one, &f.spec, 1), 0);
        assert_int_equal(layout_init(&many, &f.spec, 2 + (int)draw(&at, 9)), 0);
        assert_int_equal(one.n_tensors, many.n_tensors);
        int64_t elems = 0;
        for (int t = 0; t < one.n_tensors; t++) {
            const struct shard_tensor *a = &one.tensors[t], *b = &many.tensors[t];
            assert_string_equal(a->name, b->name);
            assert_int_equal(a->offset, b->offset);
            assert_int_equal(layout_find(&many, a->name), t);
            elems += a->elems;
        }
        assert_int_equal(elems, one.params);
        for (int u = 0; u < 3; u++)
            for (int p = 0; p < 4; p++)
                assert_int_equal(many.units[u].param_offset[p] % SHARD_ALIGN, 0);
        for (int u = 0; u < 3; u++)
            for (int s = 0; s < SHARD_SEGMENTS; s++)
                assert_int_equal(many.units[u].elems[s] % (many.world * SHARD_ALIGN), 0);
        check_cover(&one);
        check_cover(&many);
        layout_finish(&one);
        layout_finish(&many);
    }
}

static void an_alias_finds_its_tensor(void **state)
{
    (void)state;
    struct sherd_param p[] = { { .name = "wte", .alias = "lm_head", .shape = { 5, 3 }, .dims = 2 },
        { .name = "b", .shape = { 1 }, .dims = 1 } };
    struct sherd_unit u = { "root", p, 2 };
    struct sherd_model_spec spec = { &u, 1, NULL, 0, 0, NULL };
    struct shard_layout layout;
    assert_int_equal(layout_init(&layout, &spec, 4), 0);
    assert_int_equal(layout_find(&layout, "lm_head"), 0);
    assert_int_equal(layout_find(&layout, "b"), 1);
    assert_int_equal(layout_find(&layout, "c"), -1);
    assert_int_equal(layout.params, 16);
    layout_finish(&layout);
    layout_finish(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_and_spans_tile_everything),
        cmocka_unit_test(an_alias_finds_its_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
