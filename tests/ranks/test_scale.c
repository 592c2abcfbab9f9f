/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Training in f16: the loss scale falls at overflows and rises without, all ranks skip the same steps,
 * skipped steps leave weights and schedule alone, and all of it goes on exactly after a save.
 */
#include "tests/check.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "runtime/scale.h"
#include "tests/folder.h"
#include "tests/ranks/job.h"
#include "tests/t.h"

#define STEPS 20

/* Its first scale is far too large: some 14 targets a sequence leave more than f16 holds in the gradient. */
static struct job steep(int world)
{
    struct job j = job_default();
    j.world = world;
    j.param = SHERD_F16;
    j.steps = STEPS;
    j.scale.power = 26;
    j.scale.window = 3;
    return j;
}

/* The scale of each step follows from which steps overflowed; returns how many did. */
static int follows_the_rules(const struct job *j)
{
    struct sherd_config c;
    struct scale s;
    int skipped = 0;
    ASSERT_OK(sherd_config_default(&c));
    c.dtype.param = SHERD_F16;
    c.dtype.initial_scale_power = j->scale.power;
    c.dtype.loss_scale_window = j->scale.window;
    scale_init(&s, &c);
    for (int i = 0; i < j->steps; i++) {
        const struct sherd_step_stats *at = &j->stats[i];
        if (at->loss_scale != s.value)
            fail_msg("step %d has a loss scale of %g, not %g", i + 1, at->loss_scale, s.value);
        assert_int_equal(at->skipped, !isfinite(at->grad_norm));
        if (at->skipped)
            assert_true(scale_overflow(&s, &c));
        else
            scale_good(&s, &c);
        skipped += at->skipped;
        assert_int_equal(at->skipped_steps, skipped);
        assert_true(isfinite(at->loss) && at->tokens > 0);
    }
    sherd_config_free(&c);
    return skipped;
}

static int all_scales(const struct job *a, const struct job *b)
{
    for (int i = 0; i < a->steps; i++)
        if (a->stats[i].loss_scale != b->stats[i].loss_scale || a->stats[i].skipped != b->stats[i].skipped)
            return 0;
    return 1;
}

static void overflows_are_skipped_alike_at_every_stage(void **state)
{
    (void)state;
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR);
    for (int w = 1; w <= 3; w++) {
        struct job at[4];
        for (int stage = 0; stage < 4; stage++) {
            at[stage] = steep(w);
            at[stage].stage = stage;
            at[stage].reduce = w == 2 ? SHERD_F16 : SHERD_F32;
            job_pass(&at[stage]);
            int skipped = follows_the_rules(&at[stage]);
            if (skipped < 4 || skipped > STEPS - 6)
                fail_msg("%d of %d steps were skipped", skipped, STEPS);
            assert_true(at[stage].stats[0].loss_scale == 0x1p26 && at[stage].stats[1].loss_scale == 0x1p26);
            assert_true(at[stage].stats[2].loss_scale == 0x1p25);
            job_same_bits(&at[stage], &at[0]);
            assert_true(all_scales(&at[stage], &at[0]));
        }
        for (int stage = 0; stage < 4; stage++)
            job_free(&at[stage]);
    }
}

/* Weights stay while steps are skipped, and the schedule waits. */
static void skipped_steps_change_nothing(void **state)
{
    struct job none = steep(2), some = steep(2), small = steep(2);
    (void)state;
    none.steps = 0;
    some.steps = 3;
    job_pass(&none);
    job_pass(&some);
    for (int i = 0; i < 3; i++) {
        assert_true(some.stats[i].skipped);
        assert_true(some.stats[i].lr == some.stats[0].lr);
    }
    assert_int_equal(none.n_weights, some.n_weights);
    assert_memory_equal(none.weights, some.weights, (size_t)none.n_weights * sizeof(float));
    some.steps = STEPS;
    small.scale.fixed = 256; /* nothing overflows */
    job_pass(&some);
    job_pass(&small);
    for (int i = 0, taken = 0; i < STEPS; i++) {
        assert_true(!small.stats[i].skipped);
        assert_true(some.stats[i].lr == small.stats[taken].lr);
        taken += !some.stats[i].skipped;
    }
    job_free(&none);
    job_free(&some);
    job_free(&small);
}

/* The optimizer's first update is that of the first step that was taken, also where updates are kept. */
static void kept_steps_are_the_same(void **state)
{
    (void)state;
    for (int trial = 0; trial < 4; trial++) {
        struct job plain = steep(2);
        plain.stage = trial;
        plain.optim = trial % 2 ? "sgd" : "adamw";
        job_pass(&plain);
        assert_true(plain.stats[2].skipped); /* the first that is kept is one of these */
        struct job kept = job_like(&plain);
        kept.graph = 1;
        job_pass(&kept);
        assert_true(kept.launches > 0);
        job_same_bits(&kept, &plain);
        assert_true(all_scales(&kept, &plain));
        job_free(&plain);
        job_free(&kept);
    }
}

static void a_saved_run_goes_on_exactly(void **state)
{
    char dir[FOLDER_BYTES], path[FOLDER_BYTES + 32];
    (void)state;
    for (int at = 1; at < STEPS; at += 4) {
        struct job whole = steep(2), first = steep(2), rest = steep(3);
        assert_int_equal(folder_make(dir, "scale"), 0);
        if (at > STEPS / 2) /* frozen tensors are saved as f16 */
            whole.freeze = first.freeze = rest.freeze = "transformer.h.0.*";
        whole.stage = 1;
        job_pass(&whole);
        first.steps = at;
        first.stage = at % 4;
        first.save = dir;
        job_pass(&first);
        rest.world = 2;
        rest.stage = 2;
        rest.steps = STEPS - at;
        snprintf(path, sizeof(path), "%s/step-%08d", dir, at);
        rest.load = path;
        job_pass(&rest);
        for (int i = at; i < STEPS; i++) {
            assert_true(rest.stats[i].loss_scale == whole.stats[i].loss_scale);
            assert_int_equal(rest.stats[i].skipped_steps, whole.stats[i].skipped_steps);
        }
        assert_memory_equal(rest.weights, whole.weights, (size_t)whole.n_weights * sizeof(float));
        job_free(&whole);
        job_free(&first);
        job_free(&rest);
        file_remove_tree(dir);
    }
}

static void an_overflow_at_the_smallest_scale_ends_the_run(void **state)
{
    struct job j = steep(3);
    (void)state;
    j.scale.least = 0x1p25;
    job_run(&j);
    for (int r = 0; r < j.world; r++) {
        assert_int_equal(j.status[r], SHERD_ENONFINITE);
        ASSERT_CONTAINS(j.error[r], "step 3 at a loss scale of 33554432, which cannot fall below 33554432 "
                                    "(dtype.min_loss_scale)");
        ASSERT_CONTAINS(j.error[r], "the weights are as before the step");
    }
    job_free(&j);
}

/* Norms, clipping and gradients are told without the scale. */
static void the_scale_does_not_show(void **state)
{
    struct job f32 = job_default(), scaled[3];
    static const double scales[] = { 1024, 100, 0 };
    (void)state;
    f32.world = 2;
    f32.optim = "sgd"; /* AdamW would hide a wrong factor */
    f32.lr = 0.1;
    f32.clip = 0.5;
    job_pass(&f32);
    for (int i = 0; i < 3; i++) {
        scaled[i] = job_like(&f32);
        scaled[i].param = SHERD_F16;
        scaled[i].scale.fixed = scales[i];
        job_pass(&scaled[i]);
        job_close(&scaled[i], &f32, 5e-3);
        assert_true(scaled[i].stats[0].loss_scale == (i < 2 ? scales[i] : 65536));
        double apart = 0, size = 0;
        for (int64_t k = 0; k < f32.n_grads; k++) {
            apart += pow((double)scaled[i].grads[k] - f32.grads[k], 2);
            size += pow((double)f32.grads[k], 2);
        }
        if (!(sqrt(apart / size) < 1e-2))
            fail_msg("gradients at scale %g are %g apart", scales[i], sqrt(apart / size));
        job_free(&scaled[i]);
    }
    job_free(&f32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflows_are_skipped_alike_at_every_stage),
        cmocka_unit_test(skipped_steps_change_nothing),
        cmocka_unit_test(kept_steps_are_the_same),
        cmocka_unit_test(a_saved_run_goes_on_exactly),
        cmocka_unit_test(an_overflow_at_the_smallest_scale_ends_the_run),
        cmocka_unit_test(the_scale_does_not_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
