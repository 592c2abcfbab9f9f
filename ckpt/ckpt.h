/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saving and loading the state of an engine: the collective side of checkpoints (the rest is in
 * sherd/ckpt.h). A checkpoint does not depend on the stage: whatever a rank holds whole, it writes its own
 * slice of. Knows nothing of optimizers or models: states are named views over a layout.
 */
#ifndef SHERD_CKPT_CKPT_H
#define SHERD_CKPT_CKPT_H

#include <sherd/ckpt.h>
#include "comm/ops.h"
#include "shard/layout.h"

/* What the manifest holds beside tensors. Texts are borrowed when saving; after ckpt_load they are NULL. */
struct ckpt_meta {
    int stage;
    int64_t step, tokens_seen, samples_seen;
    int64_t skipped, skipped_in_row;      /* steps without an update: in all, and the last ones */
    double scale;                         /* dynamic loss scale of the next step; 0 = there is none */
    int64_t scale_hysteresis, scale_good; /* what decides when it changes */
    uint64_t seed;
    enum sherd_dtype param_type;
    const char *optimizer;
    const char *const *states; /* names of the optimizer states */
    int n_states;
    const char *export_json; /* config.json for exports, or NULL */
    const char *extra;       /* JSON object, or NULL */
    uint64_t run;            /* whose checkpoint it is: kept over resumes; 0 = not known */
    int has_loss, nonfinite; /* nonfinite: some value is; set by saving */
    double loss;             /* on the validation data after this step, if has_loss */
};

/* The views hold at least this rank's slice of every segment: the weight of each, and for TRAINED segments
 * the optimizer states. Saving writes the slice, loading fills the views, be they the slice or more. Weights
 * of TRAINED segments and states are F32. */
struct ckpt_job {
    const struct shard_layout *layout;
    const struct shard_view *views;
    int n_views;
    struct sherd_comm *comm;
    struct sherd_device *dev;
    struct ckpt_meta meta; /* save: to write; load: as read */
    uint64_t bytes_read;   /* load: by this rank, with headers and manifest */
};

/* Which checkpoints of a run stay when a new one is there; the others go. Those of other runs, broken ones
 * and the newest one with finite values always stay. */
struct ckpt_keep {
    int64_t newest; /* this many; 0 = all stay */
    int64_t every;  /* those whose step is a multiple; 0 = none */
    int64_t best;   /* this many by validation loss; 0 = none */
};

/* Collective. Writes `dir`/step-%08d: all ranks write into a folder with a temporary name, sync and sum
 * their files, agree, rank 0 writes the manifest, one rename makes the checkpoint exist; then `dir`/latest.
 * On failure every rank gets a status, the temporary folder is removed and older checkpoints are intact. */
int ckpt_save(const struct ckpt_job *job, const char *dir);

/* The same in parts, so that training goes on beside the writing. One for each rank, used for save after
 * save. `buffer` bytes of host memory hold what is on its way: with less than ckpt_job_bytes, the copies off
 * the device wait until the rest is written; 0 = a few pieces. */
struct ckpt_saver;
int ckpt_saver_create(
    struct ckpt_saver **out, struct sherd_comm *comm, struct sherd_device *dev, uint64_t buffer);
/* Waits for what this rank is writing; a save that was not finished leaves its temporary folder. */
void ckpt_saver_destroy(struct ckpt_saver *saver); /* NULL is fine */
/* Carries the copies: what it waits for before ckpt_saver_start is done before any of them. */
struct sherd_queue *ckpt_saver_queue(const struct ckpt_saver *saver);
/* Collective. Begins and returns, a thread sees to the copies; the layout and its names stay, what a view
 * holds is changed by nothing but work behind ckpt_saver_await. One save at a time. keep: rotate after it; or
 * NULL. */
int ckpt_saver_start(
    struct ckpt_saver *saver, const struct ckpt_job *job, const char *dir, const struct ckpt_keep *keep);
/* From now on work of `queue` comes after the copies of a unit, for the save that was started last. Waits in
 * the host until these have been asked for: for the disk, where the buffer does not hold all. */
int ckpt_saver_await(struct ckpt_saver *saver, int unit, struct sherd_queue *queue);
/* Collective. Takes the next step if all ranks have come to it: none waits for a disk. *busy is 0 when the
 * save is over, and the status then says how; also 0 when none was under way. */
int ckpt_saver_poll(struct ckpt_saver *saver, int *busy);
/* Collective. The same to the end. */
int ckpt_saver_wait(struct ckpt_saver *saver);
uint64_t ckpt_saver_memory(const struct ckpt_saver *saver);    /* host bytes for what is on its way */
const char *ckpt_saver_writer(const struct ckpt_saver *saver); /* what writes: "io_uring", "threads" */

/* What the last save that ended well took. */
struct ckpt_times {
    int64_t step;                 /* -1: there was none */
    uint64_t bytes, copied_bytes; /* of all files; off the device, by this rank */
    double seconds;               /* from the start to the end that was seen */
    double begin_seconds;         /* in ckpt_saver_start */
    double copy_seconds;          /* from there until the last copy was done */
    double wait_seconds;          /* that queues stood in ckpt_saver_await */
};
const struct ckpt_times *ckpt_saver_times(const struct ckpt_saver *saver);

/* Collective. The buffer with which a save of the job never waits for a disk, on this rank; and the bytes of
 * all files of the checkpoint. */
int ckpt_job_bytes(const struct ckpt_job *job, uint64_t *mine, uint64_t *all);

/* Collective. EIO with the rank that does not see what rank 0 makes in `dir`, which must be there. */
int ckpt_check_shared(struct sherd_comm *comm, const char *dir);

/* Collective. Fills the views from a step folder written at any world and stage; each rank reads only what
 * it needs. Every tensor must be there with the right shape, nothing may be left over; missing states of a
 * tensor that was frozen when saved start at zero, with a log line; a frozen tensor that is stored in another
 * type than its view has is converted. Padding is left alone. Sets job->meta and job->bytes_read. */
int ckpt_load(struct ckpt_job *job, const char *path);

/* Collective. Fills the weights of the views from a model folder (model.safetensors, or several files and
 * their index), by name; each rank reads only what it needs and counts it in job->bytes_read. Other states
 * are left alone. */
int ckpt_import(struct ckpt_job *job, const char *dir);

/* The newest complete and finite checkpoint of a run that comes behind `than`, a path that was found there.
 */
int ckpt_find_older(char **path, const char *dir, const char *than);
/* Renames a step folder so that nothing takes it for one, nor ever removes it; a warning has its new name. */
#define CKPT_DAMAGED_PREFIX "damaged-"
int ckpt_put_aside(const char *path);
/* The same for those of a run that are not complete or hold values that are not finite, and are newer than
 * `than`, which it goes on from. */
int ckpt_put_passed_aside(const char *dir, const char *than);

/* Removes what does not stay, for the run of that id (0: checkpoints of unknown runs), and what ckpt_tidy
 * does. One rank calls it. */
int ckpt_rotate(const char *dir, const struct ckpt_keep *keep, uint64_t run);
/* Removes temporary folders left by a run that died, and settles step folders that were being replaced. */
int ckpt_tidy(const char *dir);

#endif
