/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The step program over random models: the rules of shard/program.h hold for every layer-to-unit map, stage,
 * prefetch and list; and the printed program of a known model is golden text.
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
#include "base/status.h"
#include "shard/memory.h"

#define MAX_UNITS 8
#define MAX_LAYERS 14

/* A model of one parameter a unit; frozen units by bit mask. */
struct fake {
    struct sherd_param params[MAX_UNITS];
    struct sherd_unit units[MAX_UNITS];
    struct sherd_layer layers[MAX_LAYERS];
    char names[MAX_UNITS + MAX_LAYERS][16];
    struct sherd_model_spec spec;
};

static void fake_init(struct fake *f, int n_units, const int *unit_of, int n_layers, unsigned frozen)
{
    memset(f, 0, sizeof(*f));
    for (int u = 0; u < n_units; u++) {
        snprintf(f->names[u], sizeof(f->names[u]), "u%d", u);
        f->params[u] = (struct sherd_param){ .name = f->names[u],
            .shape = { 3 + 100 * u },
            .dims = 1,
            .flags = frozen >> u & 1 ? SHERD_FROZEN : 0 };
        f->units[u] = (struct sherd_unit){ f->names[u], &f->params[u], 1 };
    }
    for (int l = 0; l < n_layers; l++) {
        snprintf(f->names[MAX_UNITS + l], sizeof(f->names[0]), "l%d", l);
        f->layers[l] = (struct sherd_layer){ f->names[MAX_UNITS + l], unit_of[l], NULL, NULL };
    }
    f->spec = (struct sherd_model_spec){ f->units, n_units, f->layers, n_layers, 0, NULL };
}

/* The largest number of units resident at once in a list. */
static int most_resident(const struct program_code *code)
{
    int now = 0, most = 0;
    for (int i = 0; i < code->n; i++) {
        now += code->at[i].op == PROGRAM_GATHER;
        now -= code->at[i].op == PROGRAM_RELEASE;
        most = MAX(most, now);
    }
    return most;
}

static int count(const struct program_code *code, enum program_op op)
{
    int n = 0;
    for (int i = 0; i < code->n; i++)
        n += code->at[i].op == op;
    return n;
}

static uint32_t draw(uint64_t seed, uint64_t *at, uint32_t below)
{
    uint32_t r[4];
    rng_block(r, seed, 0, (*at)++);
    return r[0] % below;
}

static void random_programs_obey_the_rules(void **state)
{
    (void)state;
    const uint64_t seed = 20261130;
    uint64_t at = 0;
    for (int trial = 0; trial < 3000; trial++) {
        int n_units = 1 + (int)draw(seed, &at, MAX_UNITS), n_layers = n_units + (int)draw(seed, &at, 6);
        int unit_of[MAX_LAYERS];
        unsigned frozen = draw(seed, &at, 4) ? 0 : draw(seed, &at, 1u << n_units);
        for (int l = 0; l < n_layers; l++)
            unit_of[l] = l < n_units ? l : (int)draw(seed, &at, (uint32_t)n_units);
        for (int l = n_layers - 1; l > 0; l--) { /* shuffle */
            int k = (int)draw(seed, &at, (uint32_t)l + 1), t = unit_of[l];
            unit_of[l] = unit_of[k];
            unit_of[k] = t;
        }
        unsigned char flags[MAX_LAYERS]; /* half of the trials have none */
        for (int l = 0; l < n_layers; l++)
            flags[l] = (unsigned char)(trial % 2 ? draw(seed, &at, 4) : 0);
        struct fake f;
        struct shard_layout layout;
        fake_init(&f, n_units, unit_of, n_layers, frozen);
        assert_int_equal(layout_init(&layout, &f.spec, 1 + (int)draw(seed, &at, 5)), SHERD_OK);
        for (int stage = 0; stage <= 3; stage++)
            for (int prefetch = 0; prefetch <= 3; prefetch++) {
                struct program_desc desc = { stage_find(stage), &layout, f.layers, n_layers, prefetch,
                    trial % 2 ? flags : NULL };
                struct shard_program p;
                assert_int_equal(program_build(&p, &desc), SHERD_OK);
                if (program_check(&p, &desc) != SHERD_OK)
                    fail_msg("seed %llu trial %d stage %d prefetch %d: %s", (unsigned long long)seed, trial,
                        stage, prefetch, sherd_error());
                for (int l = 0; l < PROGRAM_N_LISTS; l++) {
                    assert_true(most_resident(&p.list[l]) <= prefetch + 1 + (prefetch == 0));
                    assert_int_equal(count(&p.list[l], PROGRAM_GATHER), count(&p.list[l], PROGRAM_RELEASE));
                    if (stage < 3)
                        assert_int_equal(count(&p.list[l], PROGRAM_GATHER), 0);
                }
                int again = 0;
                for (int l = p.first_trained; l < n_layers; l++)
                    again += (flags[l] & PROGRAM_RUN_AGAIN) != 0;
                assert_int_equal(count(&p.list[PROGRAM_ONLY], PROGRAM_AGAIN), again);
                assert_int_equal(count(&p.list[PROGRAM_EVAL], PROGRAM_AGAIN), 0);
                assert_int_equal(count(&p.list[PROGRAM_MIDDLE], PROGRAM_REDUCE),
                    stage < 2 ? 0 : count(&p.list[PROGRAM_ONLY], PROGRAM_REDUCE));
                program_finish(&p);
            }
        layout_finish(&layout);
    }
}

static void printed_program_is_golden(void **state)
{
    (void)state;
    /* root is embedding and head, b0 b1 b2 are blocks */
    static const int unit_of[] = { 0, 1, 2, 3, 0 };
    struct fake f;
    struct shard_layout layout;
    fake_init(&f, 4, unit_of, 5, 0);
    static const char *const unit_names[] = { "root", "b0", "b1", "b2" };
    static const char *const layer_names[] = { "embed", "block0", "block1", "block2", "head" };
    for (int u = 0; u < 4; u++)
        f.units[u].name = unit_names[u];
    for (int l = 0; l < 5; l++)
        f.layers[l].name = layer_names[l];
    assert_int_equal(layout_init(&layout, &f.spec, 2), SHERD_OK);
    static const char want3[] =
        "only:\n"
        "  gather root | gather b0 | forward embed | release root | gather b1 | forward block0 | release b0 "
        "|\n"
        "  gather b2 | forward block1 | release b1 | gather root | forward block2 | release b2 | forward "
        "head |\n"
        "  gather b2 | zero root | backward head | release root | gather b1 | zero b2 | backward block2 |\n"
        "  release b2 | reduce b2 | gather b0 | zero b1 | backward block1 | release b1 | reduce b1 | gather "
        "root |\n"
        "  zero b0 | backward block0 | release b0 | reduce b0 | backward embed | release root | reduce root\n"
        "first:\n";
    struct program_desc desc = { stage_find(3), &layout, f.layers, 5, 1, NULL };
    struct shard_program p;
    struct text t = { 0 };
    assert_int_equal(program_build(&p, &desc), SHERD_OK);
    program_print(&t, &p, &desc);
    if (strncmp(t.data, want3, strlen(want3)))
        fail_msg("stage 3 prints\n%s", t.data);
    assert_int_equal(p.n_slots, 2);
    assert_int_equal(p.n_partials, 3);
    text_finish(&t);
    program_finish(&p);
    /* the embedding's backward reads no weights, blocks 0 and 1 run forward again */
    static const unsigned char flags[] = { PROGRAM_UNREAD, PROGRAM_RUN_AGAIN, PROGRAM_RUN_AGAIN, 0, 0 };
    static const char want_flags[] =
        "  gather b2 | zero root | backward head | release root | gather b1 | zero b2 | backward block2 |\n"
        "  release b2 | reduce b2 | gather b0 | zero b1 | again block1 | backward block1 | release b1 |\n"
        "  reduce b1 | zero b0 | again block0 | backward block0 | release b0 | reduce b0 | backward embed |\n"
        "  reduce root\n"
        "first:\n";
    desc.flags = flags;
    assert_int_equal(program_build(&p, &desc), SHERD_OK);
    program_print(&t, &p, &desc);
    if (!strstr(t.data, want_flags))
        fail_msg("stage 3 with flags prints\n%s", t.data);
    text_finish(&t);
    program_finish(&p);
    desc.flags = NULL;
    desc.stage = stage_find(1);
    assert_int_equal(program_build(&p, &desc), SHERD_OK);
    program_print(&t, &p, &desc);
    static const char want1[] =
        "last:\n"
        "  forward embed | forward block0 | forward block1 | forward block2 | forward head | backward head |\n"
        "  backward block2 | reduce b2 | backward block1 | reduce b1 | backward block0 | reduce b0 | backward embed |\n"
        "  reduce root\n"
        "after:\n"
        "  norm | clip\n"
        "updates:\n"
        "  update root | publish root | update b0 | publish b0 | update b1 | publish b1 | update b2 | publish b2\n";
    if (!strstr(t.data, want1))
        fail_msg("stage 1 prints\n%s", t.data);
    text_finish(&t);
    program_finish(&p);
    layout_finish(&layout);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    static const int unit_of[] = { 0, 1, 2, 0 };
    struct fake f;
    fake_init(&f, 3, unit_of, 4, 0);
    for (int k = 1, done = 0; !done; k++) {
        struct shard_layout layout;
        struct shard_program p;
        assert_true(k < 200);
        mem_fail_at(k);
        int st = layout_init(&layout, &f.spec, 3);
        if (st == SHERD_OK) {
            struct program_desc desc = { stage_find(3), &layout, f.layers, 4, 1, NULL };
            st = program_build(&p, &desc);
            if (st == SHERD_OK) {
                done = 1;
                program_finish(&p);
            }
            layout_finish(&layout);
        }
        assert_true(st == SHERD_OK || st == SHERD_ENOMEM);
    }
    mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_obey_the_rules),
        cmocka_unit_test(printed_program_is_golden),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
