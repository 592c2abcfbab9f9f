/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * model.from: the folder of a Hugging Face model gives the settings of the model, and keeps its config.json
 * for what this run will export. The weights are read later, by the engine.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "ckpt/hf.h"
#include "ckpt/theirs.h"
#include "model/model.h"
#include "runtime/config.h"
#include "runtime/keys.h"

#define CONFIG_JSON "config.json"
#define CONFIG_BYTES ((size_t)16 << 20)

int config_has_from(const struct sherd_config *config)
{
    return config->model.from && strcmp(config->model.from, CONFIG_NO_FROM) != 0;
}

/* The double that stands in a text where the float stood: 1e-6, not 9.99999997e-07. */
static double decimal(float value)
{
    char text[32];
    return strtod(model_float_text(value, text), NULL);
}

/* What config.json says nothing of is as by default. */
static void set_model(struct sherd_config *c, const struct sherd_model_config *m)
{
    int64_t rope_context = m->rope_context ? m->rope_context : c->model.rope_context;
#define SAME(name) c->model.name = m->name;
#define REAL(name)                                                                                           \
    if (m->name != 0)                                                                                        \
        c->model.name = decimal(m->name);
    CONFIG_MODEL(SAME, REAL)
#undef SAME
#undef REAL
    c->model.rope_context = rope_context;
}

/* All that set_model may set. */
static const char *const paths[] = {
#define XX(name) "model." #name,
    CONFIG_MODEL(XX, XX)
#undef XX
};

static int value_text(const struct sherd_config *c, const struct key *key, char **out)
{
    struct text t = { 0 };
    key_print(key, c, &t);
    return text_take(&t, out);
}

/* A key that was given must say the same as config.json; "auto" says nothing. */
static int settle_key(
    struct sherd_config *c, const struct sherd_config *was, const struct key *key, const char *file)
{
    char *now = NULL, *given = NULL;
    const char *where;
    int st = SHERD_OK;
    SHERD_TRY_OUT(config_where(was, key, &where));
    SHERD_TRY_OUT(value_text(c, key, &now));
    SHERD_TRY_OUT(value_text(was, key, &given));
    if (where != CONFIG_DEFAULT && strcmp(given, "auto") && strcmp(now, given) &&
        strcmp(key->path, "model.init_std"))
        SHERD_TRY_OUT(CONFIG_FAIL(was, key->path,
            "%s, but %s says %s: remove the line, for model.from gives it, or take another model", given,
            file, now));
    SHERD_TRY_OUT(config_note(c, key, file));
out:
    mem_free(now);
    mem_free(given);
    return st;
}

int config_import(struct sherd_config *c)
{
    struct config_origin *origin = c->origin;
    struct sherd_config was = *c;
    struct sherd_model_config model;
    char *text = NULL, theirs[CKPT_THEIRS_BYTES];
    size_t bytes;
    if (!config_has_from(c))
        return SHERD_OK;
    if (!file_is_dir(c->model.from))
        return CONFIG_FAIL(c, "model.from",
            "%s: there is no such folder; name one with a " CONFIG_JSON
            " and safetensors files, as a clone from Hugging Face (nothing is downloaded)",
            c->model.from);
    const char *file = arena_printf(&origin->arena, "%s/" CONFIG_JSON, c->model.from);
    if (!file)
        return SHERD_ENOMEM;
    if (!file_exists(file)) {
        ckpt_theirs(theirs, c->model.from);
        return config_fail_at(c, "model.from",
            SHERD_FAIL(SHERD_ENOTFOUND, "%s: there is no " CONFIG_JSON " in it%s", c->model.from,
                hf_is_model(c->model.from)
                    ? "; it says what the weights are of: copy that of their model beside them, if it is of a family of sherd's"
                    : theirs));
    }
    int st = file_read_text(&text, &bytes, file, CONFIG_BYTES);
    if (st == SHERD_OK)
        st = sherd_model_config_json(&model, text, bytes, file);
    if (st != SHERD_OK) {
        st = config_fail_at(c, "model.from", st);
        goto out;
    }
    set_model(c, &model);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        SHERD_TRY_OUT(settle_key(c, &was, key_find(paths[i]), file));
    origin->from_json = arena_strdup(&origin->arena, text);
    st = origin->from_json ? SHERD_OK : SHERD_ENOMEM;
out:
    mem_free(text);
    return st;
}
