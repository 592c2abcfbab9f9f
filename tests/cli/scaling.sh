#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# bench/scaling.sh as a trial on CPU ranks: every row and line is there, a part that fails is told and stops no other.
source=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"
export TRIAL=1 STEPS=3 SCRATCH=$work LOGS=$work/logs
unset PARTS SET DEVICE BUDGET PYTHON

scaling() { # CODE RANKS PARTS
    local code
    rm -rf "$LOGS"
    PARTS=$3 timeout -k 5 100 "$source/bench/scaling.sh" "$sherd" "$2" >out 2>&1
    code=$?
    [ $code -eq "$1" ] || { complain "line ${BASH_LINENO[0]}: exit code $code, wanted $1"; show out; }
}

# work | ranks | ms | tokens/s | efficiency | exposed | GPU | own | forecast | off | own rates | off | planned
cells() { # TEXT COLUMN PATTERN
    awk -F ' *[|] *' -v text="$1" -v at=$(($2 + 1)) -v pattern="$3" 'index($0, "| " text " |") == 1 {
        seen = 1
        if (NF != 15 || $at !~ pattern) bad = 1
    } END { exit !seen || bad }' out || { complain "line ${BASH_LINENO[0]}: row '$1', column $2: not '$3'"; show out; }
}

scaling 0 2 "bench stages weak strong"
for stage in 0 1 2 3; do
    cells "1b, stage $stage, 8 x 64 | 2" 3 '^[0-9.]+$'
    cells "1b, stage $stage, 8 x 64 | 2" 6 '^[0-9.]+ %$'
done
cells "1b, weak, 8 x 64 | 1" 5 '^100.0 %$'
cells "1b, weak, 8 x 64 | 2" 5 '^[0-9.]+ %$'
cells "1b, strong, 4 x 64 in all | 1" 5 '^100.0 %$'
cells "1b, strong, 4 x 64 in all | 2" 9 '^[0-9.]+$'
cells "1b, strong, 4 x 64 in all | 2" 10 '^[-+][0-9.]+ %$'
cells "1b, strong, 4 x 64 in all | 2" 11 '^[0-9.]+$'
has out "all_reduce, 2 ranks, 65536 bytes"

scaling 0 2 resume
has out "killed one of 2 ranks at step-000000"
has out "on 1 ranks: resumed at step "
has out "step-00000100 saved"
has out "verified: the checkpoints and the model"

SET="--set shard.stagge=1" scaling 1 2 "selftest weak resume"
has out "selftest: 14 checks, all ok"
has out "unknown key; did you mean shard.stage?"
cells "1b, weak, 8 x 64 | 2" 3 '^failed$'
has out "FAILED: sherd, sherd-1b-2-3-16"
has out "FAILED: resume, the job that is killed"
BUDGET=0 scaling 1 2 weak
has out "FAILED: weak: no time was left"

scaling 2 3 weak
has out "GPUS is 2, 4 or 8, not '3'"
scaling 2 2 "weak stronk"
has out "PARTS: there is no 'stronk'"
finish
