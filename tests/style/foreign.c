/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * For foreign.sh: prints the tables of docs/deepspeed.md, what becomes of each key of another system.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/foreign.h"

/* "a|b" as `a` or `b`. */
static void print_words(const char *words)
{
    for (const char *w = words; *w; w += *w == '|') {
        size_t n = strcspn(w, "|");
        printf("%s`", w == words ? "" : " or ");
        fwrite(w, 1, n, stdout);
        printf("`");
        w += n;
    }
}

static void print_row(const struct foreign_key *key)
{
    printf("| `%s` | ", key->path);
    switch (key->how) {
    case FOREIGN_SET:
        printf("`%s`%s%s", key->ours, key->text ? "; " : "", key->text ? key->text : "");
        break;
    case FOREIGN_ONLY:
        printf(key->ours[0] ? "only " : "refused");
        print_words(key->ours);
        printf(": %s", key->text);
        break;
    case FOREIGN_NOTE:
        printf("no influence: %s", key->text);
        break;
    case FOREIGN_CODE:
        printf("%s", key->text);
        break;
    }
    printf(" |\n");
}

int main(void)
{
    static const struct foreign_system *const systems[] = { &foreign_deepspeed, &foreign_accelerate };
    for (int s = 0; s < 2; s++) {
        printf("\n## Every key of %s\n\n| key | here |\n|---|---|\n", systems[s]->name);
        for (int i = 0; i < systems[s]->n; i++)
            print_row(&systems[s]->keys[i]);
    }
    return 0;
}
