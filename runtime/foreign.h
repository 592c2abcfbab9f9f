/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Settings written for another system (DeepSpeed's JSON, Accelerate's YAML) as settings of sherd: one table
 * of its keys a system, a walk that looks up every key it finds, and a function for what follows from several
 * keys. Nothing is dropped: a key is taken, refused with the way out, or told in the remarks of the config.
 * All refusals of a file are told together.
 */
#ifndef SHERD_RUNTIME_FOREIGN_H
#define SHERD_RUNTIME_FOREIGN_H

#include "base/text.h"
#include "runtime/config.h"
#include "runtime/yaml.h"

enum foreign_type {
    FOREIGN_BOOL,
    FOREIGN_INT,
    FOREIGN_REAL,
    FOREIGN_TEXT,
    FOREIGN_LIST, /* of plain values */
    FOREIGN_ANY,
};

enum foreign_how {
    FOREIGN_SET,  /* it is the key `ours` */
    FOREIGN_ONLY, /* honoured only as one of the words in `ours`, "false" or "fp32|float32"; "" = refused */
    FOREIGN_NOTE, /* whatever it says, results are the same: goes to the remarks */
    FOREIGN_CODE, /* the system's translate() reads it */
};

#define FOREIGN_AUTO 1 /* SET, CODE, and keys outside blocks: "auto" has a meaning */

struct foreign_key {
    const char *path; /* "zero_optimization.stage"; "wandb.*" = all keys of a block */
    enum foreign_type type;
    enum foreign_how how;
    const char *ours;
    const char *text; /* NOTE: how it is here; ONLY: why, and the way out; SET, CODE: for the documentation */
    unsigned flags;
};

/* A key that was found. Null values are as good as not written, and have no item. */
struct foreign_item {
    const char *path; /* as it is written in the file: what messages say */
    const char *row;  /* as in the table */
    const struct yaml_node *node;
    const struct foreign_key *key;
    int refused; /* by the walk */
    struct foreign_item *next;
};

struct foreign;
struct foreign_system {
    const char *name;
    const struct foreign_key *keys;
    int n;
    /* Brings a path to the form it has in the table, in place; room for FOREIGN_PATH_BYTES. */
    void (*canonical)(char *path);
    int empty_is_none; /* {} is as good as not written */
    /* Looks at the tree before all else, for what makes other complaints pointless; NULL for nothing. */
    int (*first)(struct foreign *f, const struct yaml_node *root);
    int (*translate)(struct foreign *f);
};
#define FOREIGN_PATH_BYTES 160

extern const struct foreign_system foreign_deepspeed, foreign_accelerate;
/* Of foreign_deepspeed, whose table is in a file of its own. */
void deepspeed_canonical(char *path);
int deepspeed_first(struct foreign *f, const struct yaml_node *root);
int deepspeed_translate(struct foreign *f);

struct foreign {
    struct sherd_config *config;
    struct config_origin *origin; /* of it */
    const struct foreign_system *system;
    const char *name; /* of the file, lives as long as the config */
    struct foreign_item *items;
    const struct yaml_node *told[4]; /* blocks whose type is refused: their keys are not looked at */
    int n_told;
};

/* The system whose file this is, NULL for sherd's own. */
const struct foreign_system *foreign_detect(const struct yaml_node *root, const char *name);
/* Takes the settings of a tree into the config. Keys that the config has from elsewhere must agree. What is
 * refused is kept, for foreign_tell. */
int foreign_take(struct sherd_config *config, const struct foreign_system *system,
    const struct yaml_node *root, const char *name);
/* The same from a file. What is wrong in it is told by its own name; that it cannot be read, by the place
 * that names it, "x.yaml:3: deepspeed". */
int foreign_load(
    struct sherd_config *config, const struct foreign_system *system, const char *path, const char *named);
/* A refusal (ECONFIG) is kept, to be told with all others; other failures are returned. */
int foreign_keep(struct config_origin *origin, int status);
/* ECONFIG with all that was kept; OK if nothing was. */
int foreign_tell(const struct config_origin *origin);
/* What could not be decided before overrides were known, all of it told; called by config_settle. */
int deepspeed_settle(struct sherd_config *config);
/* Tells whether Accelerate would have trained elsewhere, or on another number of ranks; world 0 = unknown. */
int accelerate_settle(struct sherd_config *config, int world);
/* JSON as the reader of YAML takes it, in place: white space for the comments that JSON does not have (// and
 * slash-star), characters for pairs of escapes. Returns the bytes that the text has then. */
size_t foreign_plain_json(char *text, size_t bytes);

/* --- for translate() --- */

/* The item of a path of the table, NULL if it was not given, or if the walk refused it: then 1 of the other.
 */
const struct foreign_item *foreign_get(const struct foreign *f, const char *path);
int foreign_refused(const struct foreign *f, const char *path);
int foreign_is_auto(const struct foreign_item *item);
/* Values of items whose type the walk has checked. */
int foreign_bool(const struct foreign_item *item);
double foreign_real(const struct foreign_item *item);
/* Sets a key of ours to what their key at `where` asks for; what it has from elsewhere must be the same. */
int foreign_agree(struct sherd_config *config, const struct key *key, const struct yaml_node *value,
    const char *where, const char *theirs);
/* Sets our key, which then comes from the item's place. */
int foreign_put(struct foreign *f, const struct foreign_item *item, const char *ours, const char *value);
/* Sets our key to the system's default unless something has set it, or may have meant to and was refused. */
int foreign_default(struct foreign *f, const char *ours, const char *value);
/* The item is "auto": our key keeps its value, and the remarks tell it. */
int foreign_ask(struct foreign *f, const struct foreign_item *item, const char *ours);
int foreign_remark(struct foreign *f, enum config_remark_kind kind, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* "name:line", kept with the config. */
const char *foreign_where(struct foreign *f, const struct foreign_item *item);
/* As SHERD_TRY, but goes on behind a refusal, which is kept. */
#define FOREIGN_TRY(f, x) SHERD_TRY(foreign_keep((f)->origin, x))
/* Fails with "name:line: path: ...". */
#define FOREIGN_FAIL(f, item, ...) foreign_fail_at(f, item, SHERD_FAIL(SHERD_ECONFIG, __VA_ARGS__))
int foreign_fail_at(const struct foreign *f, const struct foreign_item *item, int status);

#endif
