/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Options of torchrun, deepspeed, accelerate launch, mpirun and nccl-tests that have another name here, or
 * none.
 */
#include "tools/elsewhere.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tools/args.h"

#define RANKS "|num-gpus|nproc-per-node|num-processes|np|"

static const struct {
    const char *commands, *options; /* names between strokes; no commands = any */
    const char *text;
} rows[] = {
    { "", "|local-rank|",
        "; ranks read LOCAL_RANK: torchrun sets it, and deepspeed leaves the option out with --no_local_rank" },
    { "|train|eval|plan|bench|selftest|", RANKS, "; here it is --ranks" },
    { "|train|eval|plan|config|", "|device|", "; it is a key: --set run.device=cuda" },
    { "|eval|", "|val|", "; here it is --data" },
    { "|eval|", "|resume|", "; here it is --checkpoint" },
    { "|train|eval|plan|config|", "|config|config-file|deepspeed|deepspeed-config|",
        "; the file stands alone, be it YAML or a JSON of DeepSpeed" },
    { "|launch|", RANKS, "; here it is --nproc-per-node" },
    { "|launch|", "|num-nodes|num-machines|", "; here it is --nnodes" },
    { "|launch|", "|machine-rank|", "; here it is --node-rank" },
    { "|launch|", "|main-process-ip|", "; here it is --master-addr, or --rdzv-endpoint for several hosts" },
    { "|launch|", "|main-process-port|", "; here it is --master-port" },
    { "|launch|", "|hostfile|include|exclude|launcher|launcher-args|force-multi|no-ssh|",
        "; start 'sherd launch' on every host, as by srun or ssh" },
    { "|launch|", "|config-file|use-deepspeed|use-fsdp|mixed-precision|",
        "; the file is read by the program: 'sherd launch ... sherd train FILE'" },
    { "|launch|", "|local-ranks-filter|",
        "; all ranks are shown, and --log-dir DIR with -r 3 keeps them in files alone" },
    { "|launch|", "|numa-binding|bind-cores-to-rank|bind-core-list|",
        "; ranks of 'sherd train' on GPUs bind themselves: run.bind" },
    { "|launch|", "|signals-to-handle|", "; SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the ranks" },
    { "|launch|",
        "|local-addr|logs-specs|event-log-handler|virtual-local-rank|run-path|duplicate-stdout-filters|"
        "duplicate-stderr-filters|no-local-rank|save-pid|enable-each-rank-log|",
        "; it has no meaning here: leave it out" },
    { "|bench|", "|t|nthreads|g|ngpus|", "; a rank has one GPU: --ranks N" },
    { "|bench|", "|J|", "; here it is --json" },
    { "|bench|", "|G|cudagraph|", "; calls are not recorded here; run.graph is for training" },
    { "|bench|", "|m|agg-iters|", "; calls are not gathered into groups" },
    { "|bench|", "|a|average|", "; times are means over the ranks, as with -a 1" },
    { "|bench|",
        "|p|parallel-init|z|blocking|y|stream-null|C|report-cputime|S|timestamps|x|cta-policy|D|V|M|memory|u|"
        "unalign|I|K|",
        "; nccl-tests has it, and it has no meaning here: leave it out" },
};

static int among(const char *names, const char *name)
{
    char one[80];
    snprintf(one, sizeof(one), "|%s|", name);
    return strstr(names, one) != NULL;
}

const char *elsewhere(const char *command, const char *option)
{
    char plain[64];
    snprintf(plain, sizeof(plain), "%s", option);
    for (char *p = plain; *p; p++) /* torchrun and deepspeed know both */
        if (*p == '_')
            *p = '-';
    for (int i = 0; i < COUNT_OF(rows); i++)
        if ((!rows[i].commands[0] || among(rows[i].commands, command)) && among(rows[i].options, plain))
            return rows[i].text;
    return NULL;
}
