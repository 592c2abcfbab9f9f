# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Sourced by the tests of the program, which get its path as their argument and work in a folder of their own.
# run CODE ARGS... runs it with its output in the files out and err; has FILE TEXT looks for a text,
# once FILE TEXT for one line with it.

set -u
sherd=$(realpath "$1")
place=${TMPDIR:-/tmp} # in memory where there is a place for that, as tests/folder.h
if [ -w /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge 262144 ]; then place=/dev/shm; fi
work=$(mktemp -d "$place/sherd-test-cli-XXXXXX")
leave() {
    jobs -p | xargs -r kill -KILL 2>/dev/null
    rm -rf "$work"
}
trap leave EXIT
cd "$work" || exit 1
# No launcher around the test is to be taken for one around the program.
for name in $(compgen -e | grep -E '^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SHERD_|OMPI_|PMIX?_|MV2_|SLURM_)'); do
    unset "$name"
done
export NO_COLOR=1

faults=0
complain() {
    printf '%s\n' "$*"
    faults=$((faults + 1))
}

show() {
    local file
    for file in "$@"; do
        echo "--- $file"
        head -n 40 "$file"
    done
}

run() { # CODE ARGS...
    local want=$1 code
    shift
    timeout -k 5 100 "$sherd" "$@" >out 2>err
    code=$?
    if [ "$code" -ne "$want" ]; then
        complain "sherd $*: exit code $code, wanted $want"
        show out err
    fi
}

has() { # FILE TEXT
    if ! grep -qF -- "$2" "$1"; then
        complain "line ${BASH_LINENO[0]}: '$2' is not in $1"
        show "$1"
    fi
}

once() { # FILE TEXT
    local n
    n=$(grep -cF -- "$2" "$1")
    if [ "$n" -ne 1 ]; then
        complain "line ${BASH_LINENO[0]}: '$2' is in $n lines of $1, not in one"
        show "$1"
    fi
}

empty() { # FILE
    if [ -s "$1" ]; then
        complain "line ${BASH_LINENO[0]}: $1 is not empty"
        show "$1"
    fi
}

# json EXPRESSION: a Python condition on `r`, the value in the file out.
json() {
    python3 -c "import json; r = json.load(open('out')); assert ($1), r" ||
        complain "line ${BASH_LINENO[0]}: does not hold: $1"
}

# The weights and states in two folders of checkpoints are the same bits.
same_bits() { # FOLDER OTHER
    local file
    for file in "$1"/*.safetensors; do
        cmp "$file" "$2/${file##*/}" || complain "line ${BASH_LINENO[0]}: $2/${file##*/} differs from that in $1"
    done
}

free_port() { # a port that nobody has
    python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}

# A run of 3 ranks without end, whose words are in DIR.out and DIR.err. Returns when it takes steps; `launcher` and
# `ranks` hold the process numbers.
start_endless() { # DIR ARGS...
    local dir=$1 i
    shift
    "$sherd" train tiny.yaml --ranks 3 --set run.dir="$dir" --set train.steps=100000000 --set log.every=1000 "$@" \
        >"$dir.out" 2>"$dir.err" &
    launcher=$!
    for i in $(seq 300); do
        grep -q ' 1/100000000 |' "$dir.err" 2>/dev/null && break
        sleep 0.1
    done
    grep -q ' 1/100000000 |' "$dir.err" || { complain "$dir: no step was taken"; show "$dir.err"; }
    read -r -a ranks <"/proc/$launcher/task/$launcher/children"
    [ "${#ranks[@]}" -eq 3 ] || { complain "$dir: ${#ranks[@]} ranks"; show "$dir.err"; }
}

# Waits for 100 steps of a run of 3 ranks that mpirun or srun started, whose words are in DIR.out; then `ranks` holds
# the process numbers.
wait_steps() { # DIR
    local end=$((SECONDS + 40)) p n=0
    until [ "${n:-0}" -gt 100 ]; do
        [ $SECONDS -lt $end ] || { complain "$1 makes no steps"; show "$1.out"; break; }
        sleep 0.05
        n=$(grep -c '"loss"' "$1/metrics.jsonl" 2>/dev/null)
    done
    ranks=()
    for p in $(pgrep -f "run.dir=$1 "); do
        [ "$(readlink "/proc/$p/exe")" = "$sherd" ] || continue
        n=$(tr '\0' '\n' <"/proc/$p/environ" |
            sed -nE 's/^(RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK)=//p' | tail -n 1)
        ranks[n]=$p
    done
    [ ${#ranks[@]} -eq 3 ] || complain "$1: ${#ranks[@]} ranks"
}

# FILE tells where the ranks of a run of 3 were, RANK first, and their records are in its folder. `ranks` holds their
# process numbers.
placed() { # FILE FOLDER RANK
    local rank
    grep -qE "rank $3 \(.*pid ${ranks[$3]}\) last seen at step [0-9]+, [a-z]+.*; ranks? .* at step" "$1" ||
        { complain "line ${BASH_LINENO[0]}: $1: it is not said where the ranks were"; show "$1"; }
    for rank in 0 1 2; do
        has "$2/flight.txt" "rank $rank ("
    done
    [ "$(grep -c ' step ' "$2/flight.txt")" -ge 150 ] ||
        { complain "line ${BASH_LINENO[0]}: $2: the record is short"; show "$2/flight.txt"; }
}

finish() {
    [ "$faults" -eq 0 ] || { echo "$faults faults"; exit 1; }
    exit 0
}

# A model of a moment: tiny.yaml, and text to train it on.
make_tiny() {
    cat >tiny.yaml <<'END'
run:
  dir: run
  seed: 3
model:
  family: llama
  width: 24
  layers: 2
  heads: 2
  context: 16
batch:
  global: 12
  micro: 2
train:
  steps: 6
data:
  train: [text]
log:
  every: 1
END
    seq 1 3000 >text
}
