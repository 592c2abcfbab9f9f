/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A cache of sherd's choices once more, with the best that the search found in their place.
 */
#include "bench/search.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "device/choices.h"
#include "device/cuda/matmul_plan.h"

static int alike(int32_t a, int32_t b)
{
    return abs(a - b) <= MAX(a, b) / 20;
}

/* But for alignments and the rows of a piece. */
static int same_product(const struct plan_key *a, const struct plan_key *b)
{
    return alike(a->m, b->m) && alike(a->n, b->n) && alike(a->k, b->k) && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && a->type == b->type && a->c_type == b->c_type && a->bias == b->bias &&
           a->beta == b->beta && a->in_place == b->in_place;
}

/* The fastest hot of those whose work space sherd has; NULL where that is sherd's own. */
static const struct candidate *improvement(const struct contest *c)
{
    const struct candidate *best = &c->all[SHERDS];
    for (int i = 1; i < c->n; i++) {
        const struct candidate *k = &c->all[i];
        if (!k->bad && k->hot > 0 && k->hot < best->hot && k->workspace <= CUDA_WORKSPACE_BYTES)
            best = k;
    }
    return best == &c->all[SHERDS] ? NULL : best;
}

int search_improve(const struct contest *all, int n, const char *folder)
{
    char to[512];
    DIR *dir = opendir(folder);
    int replaced = 0, st = dir ? SHERD_OK : SHERD_FAIL(SHERD_EIO, "%s cannot be read", folder);
    snprintf(to, sizeof(to), "%s/better", folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && st == SHERD_OK; e = readdir(dir)) {
        struct choices from, better;
        if (strncmp(e->d_name, "matmul-", 7) != 0)
            continue;
        SHERD_TRY_OUT(choices_open(&from, folder, e->d_name));
        SHERD_TRY_OUT(choices_open(&better, to, e->d_name));
        for (int i = 0; i < from.n && st == SHERD_OK; i++) {
            const struct candidate *k = NULL;
            struct plan_key key;
            memcpy(&key, from.at[i].key, sizeof(key));
            for (int j = 0; j < n && !k; j++) {
                struct plan_key other = plan_key_of(&all[j].args.matmul, 1);
                if (all[j].op == OP_matmul && same_product(&key, &other))
                    k = improvement(&all[j]);
            }
            replaced += k != NULL;
            st = choices_add(&better, &key, k ? k->how : from.at[i].value);
        }
        printf("%s/%s: %d of %d choices replaced\n", to, e->d_name, replaced, from.n);
        choices_close(&from);
        choices_close(&better);
    }
out:
    if (dir)
        closedir(dir);
    return st;
}
