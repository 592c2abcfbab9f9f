/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What each launcher's variables mean, who wins, and which sets are refused.
 */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include <sherd/comm.h>

static const char *const names[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "SHERD_MEET", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "SHERD_JOB", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMIX_RANK",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPIRUN_ID", "PMI_RANK", "PMI_SIZE", "PMI_JOBID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
    "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS",
    "SLURM_STEP_TASKS_PER_NODE", "TORCHELASTIC_USE_AGENT_STORE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT" };

/* "NAME=value NAME=value": these and no others of the above. */
static int world_of(const char *vars, struct sherd_world *out)
{
    char all[1024], *rest = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    assert_true(strlen(vars) < sizeof(all));
    strcpy(all, vars);
    for (char *var = strtok_r(all, " ", &rest); var; var = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(var, '=');
        *equals = '\0';
        setenv(var, equals + 1, 1);
    }
    return sherd_world_from_env(out);
}

static void expect(
    const char *vars, int rank, int size, int local_rank, int local_size, const char *source, const char *job)
{
    struct sherd_world w;
    ASSERT_OK(world_of(vars, &w));
    assert_int_equal(w.rank, rank);
    assert_int_equal(w.size, size);
    assert_int_equal(w.local_rank, local_rank);
    assert_int_equal(w.local_size, local_size);
    assert_string_equal(w.source, source);
    assert_string_equal(w.job, job);
}

static void refuse(const char *vars, const char *text)
{
    struct sherd_world w;
    ASSERT_FAILS(world_of(vars, &w), SHERD_ECONFIG, text);
}

#define TORCHRUN                                                                                             \
    "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500 "                   \
    "TORCHELASTIC_RUN_ID=abc TORCHELASTIC_RESTART_COUNT=2"
#define OMPI                                                                                                   \
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 " \
    "PMIX_NAMESPACE=1234"
#define MV2                                                                                                  \
    "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2"
#define MPICH "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3"
#define STEP                                                                                                  \
    "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x3),1 " \
    "SLURM_JOB_ID=77 SLURM_STEP_ID=0"

static void test_each_launcher(void **state)
{
    (void)state;
    expect("", 0, 1, 0, 1, "single process", "single");
    expect(TORCHRUN, 3, 8, 1, 4, "torchrun", "torchrun/2/29500/abc/h");
    expect(
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 SHERD_JOB=t0ken", 1, 2, 1, 2, "sherd", "t0ken");
    expect("RANK=1 WORLD_SIZE=2 MASTER_PORT=5", 1, 2, 1, 2, "RANK and WORLD_SIZE", "RANK and WORLD_SIZE/5");
    expect("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_SIZE=4", 5, 8, 1, 4, "RANK and WORLD_SIZE",
        "RANK and WORLD_SIZE");
    expect(OMPI, 1, 4, 1, 2, "Open MPI", "Open MPI/1234");
    expect(MV2, 1, 2, 1, 2, "MVAPICH2", "MVAPICH2");
    expect(MPICH, 2, 3, 2, 3, "MPICH", "MPICH");
    expect(STEP, 5, 7, 1, 2, "Slurm", "Slurm/77/0");
}

static void test_precedence(void **state)
{
    (void)state;
    expect(TORCHRUN " " OMPI " " MPICH " " STEP, 3, 8, 1, 4, "torchrun", "torchrun/2/29500/abc/h");
    expect(OMPI " " MPICH " " STEP, 1, 4, 1, 2, "Open MPI", "Open MPI/1234/77");
    expect(MV2 " " MPICH, 1, 2, 1, 2, "MVAPICH2", "MVAPICH2");
    expect(MPICH " " STEP, 2, 3, 2, 3, "MPICH", "MPICH/77/0");
    expect(OMPI " SHERD_JOB=mine", 1, 4, 1, 2, "Open MPI", "mine");
    /* Slurm's own PMI says nothing of this host; Slurm does. */
    expect("PMI_RANK=5 PMI_SIZE=7 " STEP, 5, 7, 1, 2, "Slurm", "Slurm/77/0");
}

static void test_slurm(void **state)
{
    (void)state;
    /* A batch script is not a step. */
    expect("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_JOB_ID=77", 0, 1, 0, 1, "single process",
        "single");
    expect("SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=0 SLURM_NODEID=3 "
           "SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_JOB_ID=77 SLURM_STEP_ID=1",
        6, 7, 0, 1, "Slurm", "Slurm/77/1");
    expect("SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_GTIDS=0,2,3 SLURM_JOB_ID=77", 2, 4, 1,
        3, "Slurm", "Slurm/77");
    refuse("SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID is not");
    refuse(
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NODEID=9 SLURM_STEP_TASKS_PER_NODE=2(x2)",
        "says nothing of host");
    refuse("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=two",
        "SLURM_STEP_TASKS_PER_NODE is 'two'");
}

static void test_half_sets_are_refused(void **state)
{
    (void)state;
    refuse("RANK=0", "RANK is set and WORLD_SIZE is not");
    refuse("WORLD_SIZE=4", "WORLD_SIZE is set and RANK is not");
    refuse("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not");
    refuse("PMI_SIZE=3", "PMI_RANK is not");
    refuse("LOCAL_RANK=0", "RANK and WORLD_SIZE are not");
    refuse("PMIX_RANK=0 PMIX_NAMESPACE=a", "PMIX_RANK is set, and nothing says how many ranks there are");
    expect(OMPI " PMIX_RANK=1", 1, 4, 1, 2, "Open MPI", "Open MPI/1234");
    refuse("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1", "LOCAL_WORLD_SIZE is not set");
    refuse("RANK=5 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4", "LOCAL_RANK is not");
}

static void test_wrong_numbers_are_refused(void **state)
{
    (void)state;
    refuse("RANK=4 WORLD_SIZE=4", "RANK is 4 and WORLD_SIZE is 4");
    refuse("RANK=0 WORLD_SIZE=0", "WORLD_SIZE is 0");
    refuse("RANK=-1 WORLD_SIZE=4", "RANK is '-1'");
    refuse("RANK=one WORLD_SIZE=4", "RANK is 'one'");
    refuse("RANK=1 WORLD_SIZE=4x", "WORLD_SIZE is '4x'");
    refuse("RANK=1 WORLD_SIZE=99999999999", "WORLD_SIZE is '99999999999'");
    refuse("RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "local rank 2 of 2");
    refuse("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8", "world of 4");
}

static void at(const char *vars, const char *master, int port)
{
    struct sherd_world w;
    ASSERT_OK(world_of(vars, &w));
    assert_string_equal(w.master, master);
    assert_int_equal(w.port, port);
}

static void test_where_rank_0_is(void **state)
{
    (void)state;
    at("", "", 0);
    at(TORCHRUN, "h", 29500);
    at("RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1", "10.0.0.1", 29500);
    at("RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=7", "10.0.0.1", 7);
    at("RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=7 SHERD_MEET=fe80::1:8", "fe80::1", 8);
    at(OMPI " MASTER_ADDR=h2", "h2", 29500);
    at(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True", "h", 29501);
    at(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=False", "h", 29500);
    at(STEP " SLURM_STEP_NODELIST=gpu-[07-09,12]a,login1", "gpu-07a", 15000 + 77 * 7);
    at(STEP " SLURM_STEP_NODELIST=tux,gpu-[07-09]", "tux", 15539);
    at(STEP " SLURM_STEP_NODELIST=r[1-2]n[3,4]", "r1n3", 15539);
    at(STEP " SLURM_JOB_NODELIST=a,b MASTER_ADDR=h MASTER_PORT=9", "h", 9);
    at(STEP, "", 0);
    refuse(STEP " SLURM_STEP_NODELIST=,", "no host can be read from it");
    refuse("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000", "port 70000");
    refuse("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=x", "MASTER_PORT is 'x'");
    refuse("RANK=1 WORLD_SIZE=2 SHERD_MEET=h", "SHERD_MEET is 'h'");
}

static void test_long_job_names_stay_apart(void **state)
{
    (void)state;
    struct sherd_world a, b;
    char vars[512], id[301];
    memset(id, 'x', sizeof(id) - 1);
    id[300] = '\0';
    snprintf(vars, sizeof(vars), "RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=%s1", id);
    ASSERT_OK(world_of(vars, &a));
    snprintf(vars, sizeof(vars), "RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=%s2", id);
    ASSERT_OK(world_of(vars, &b));
    assert_true(strlen(a.job) < sizeof(a.job));
    assert_string_not_equal(a.job, b.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launcher),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_slurm),
        cmocka_unit_test(test_half_sets_are_refused),
        cmocka_unit_test(test_wrong_numbers_are_refused),
        cmocka_unit_test(test_where_rank_0_is),
        cmocka_unit_test(test_long_job_names_stay_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
