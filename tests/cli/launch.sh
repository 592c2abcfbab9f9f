#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The launcher: signals reach the ranks, the first failure ends all and is told last, and nothing is left behind.
. "$(dirname "$0")/signals.sh"
. "$(dirname "$0")/lib.sh"
set -m # background jobs must not ignore SIGINT
make_tiny
printf 'shard:\n  stage: 3\n' >>tiny.yaml

# Ranks that nobody starts are missed aloud, long before the time is up; looked at below.
RANK=0 WORLD_SIZE=3 timeout 14 "$sherd" train tiny.yaml --set run.dir=alone >/dev/null 2>alone.err &
alone=$!
MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 timeout 14 "$sherd" train \
    tiny.yaml --set run.dir=lonely >/dev/null 2>lonely.err &
lonely=$!

alive() {
    local state
    state=$(sed -E 's/.*\) (.).*/\1/' "/proc/$1/stat" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ]
}

# All ranks are gone within two seconds.
gone() {
    local i pid left
    for i in $(seq 20); do
        left=
        for pid in "${ranks[@]}"; do
            alive "$pid" && left="$left $pid"
        done
        [ -z "$left" ] && return
        sleep 0.1
    done
    complain "line ${BASH_LINENO[0]}: still there after two seconds:$left"
}

ended() { # CODE FILE
    local code
    wait "$launcher"
    code=$?
    [ "$code" -eq "$1" ] || { complain "line ${BASH_LINENO[0]}: exit code $code, wanted $1"; show "$2"; }
    gone
}

last_line() { # FILE TEXT
    tail -n 1 "$1" | grep -qF -- "$2" || { complain "line ${BASH_LINENO[0]}: '$2' is not in the last line"; show "$1"; }
}

shared() { # what stands in shared memory, besides folders of tests
    ls /dev/shm 2>/dev/null | grep -v '^sherd-test-'
}
before=$(shared)

start_endless killed --grace 2
kill -KILL "${ranks[1]}"
ended 137 killed.err
last_line killed.err "rank 1 of 3 ($(uname -n), pid ${ranks[1]}) was killed by SIGKILL"

start_endless crashed --grace 2
kill -ABRT "${ranks[2]}"
ended 134 crashed.err
last_line crashed.err "rank 2 of 3 ($(uname -n), pid ${ranks[2]}) was killed by SIGABRT"

run 135 launch --nproc-per-node 1 bash -c 'kill -BUS $$'
has err "was killed by SIGBUS (often a file of the data was cut off"
run 162 launch --nproc-per-node 1 bash -c 'kill -34 $$' # which has no name
has err "was killed by signal 34"

start_endless orphans
kill -KILL "$launcher"
gone

# What a rank of another program starts goes too: when the launcher is killed, and when the rank ends before it.
"$sherd" launch --nproc-per-node 2 bash -c 'sleep 300 & echo $! $$ >pids-$RANK; wait' &
launcher=$!
for i in $(seq 100); do [ -s pids-0 ] && [ -s pids-1 ] && break; sleep 0.05; done
read -r -a ranks < <(cat pids-0 pids-1 | tr '\n' ' ')
[ "${#ranks[@]}" -eq 4 ] || complain "not four processes"
kill -KILL "$launcher"
gone
run 0 launch --nproc-per-node 2 bash -c 'sleep 300 & echo $! >pids-$RANK'
read -r -a ranks < <(cat pids-0 pids-1 | tr '\n' ' ')
gone

# torchrun's variables, its word in arguments, and what ranks of PyTorch look for.
export PET_NPROC_PER_NODE=2 PET_STANDALONE=1 PET_NODE_RANK=0 PET_ROLE=trainer
run 0 launch --no-python sh -c \
    'echo "${local_rank}:$1 $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE $TORCHELASTIC_USE_AGENT_STORE"' - 'a${local_rank}b${local_rank}'
has out "0:a0b0 trainer 0/2 False"
has out "1:a1b1 trainer 1/2 False"
run 0 launch --nproc-per-node 1 --start-method spawn --shutdown-timeout 5 sh -c 'echo world $WORLD_SIZE'
has out "world 1"
export PET_NODE_RANK=x
run 2 launch true
has err "--node-rank, by PET_NODE_RANK: 'x' is not a whole number"
unset PET_NPROC_PER_NODE PET_STANDALONE PET_NODE_RANK PET_ROLE
run 0 train tiny.yaml --set run.dir=taken
export TORCHELASTIC_ERROR_FILE=$PWD/error.json
run 2 train tiny.yaml --set run.dir=taken
python3 -c 'import json, time
e = json.load(open("error.json"))
assert "taken" in e["message"] and abs(e["timestamp"] - time.time()) < 60, e' || complain "error.json is not what torchrun reads"
rm error.json
run 2 train tiny.yaml --ranks 2 --set run.dir=taken
[ -e error.json ] && complain "ranks of our own launcher wrote what torchrun reads"
unset TORCHELASTIC_ERROR_FILE
run 2 launch -m --no-python json
has err "-m and --no-python exclude each other"
run 2 launch -r 0:3,1:2 --log-dir logs true
has err "-r and -t take one number here, for all ranks"
run 2 launch --local-ranks-filter 0 true
has err "unknown option '--local-ranks-filter' of 'sherd launch'; all ranks are shown"
run 2 launch --num_processes 2 true
has err "here it is --nproc-per-node"
run 2 launch --hostfile hosts true
has err "start 'sherd launch' on every host"

# The world is told to any program; its output is kept by rank, and the end of it shown where it gives no reason.
run 7 launch --nproc_per_node=3 --log-dir logs sh -c 'echo "out $RANK of $WORLD_SIZE, $LOCAL_RANK at $MASTER_ADDR"
    echo "err $RANK" >&2; [ "$RANK" -ne 2 ] || { sleep 0.7; exit 7; }; sleep 100'
has out "out 1 of 3, 1 at 127.0.0.1"
has logs/attempt-0/rank-1.out "out 1 of 3"
has logs/attempt-0/rank-0.err "err 0"
tail -n 2 err >last
has last "rank 2 of 3 ($(uname -n), pid "
has last "failed with exit code 7 and gave no reason; the end of logs/attempt-0/rank-2.err:"
has last "| err 2"
run 0 launch --nproc-per-node 2 --log-dir quiet -r 3 sh -c 'echo loud; echo loud >&2'
empty out
empty err
has quiet/attempt-0/rank-1.out loud
has quiet/attempt-0/rank-1.err loud

# 20 jobs at once find ports and each other.
for i in $(seq 20); do
    "$sherd" launch --nproc-per-node 2 sh -c 'echo "$MASTER_PORT $SHERD_JOB"' >"job-$i" 2>&1 &
done
wait
[ "$(cat job-* | sort -u | wc -l)" -eq 20 ] || { complain "jobs share a port or a name"; cat job-*; }

# Mistakes.
run 2 launch
run 2 launch --nproc-per-node 0 true
run 2 launch --nnodes 2 true
has err "--rdzv-endpoint HOST:PORT"
run 2 launch --nnodes 1:4 true
run 2 launch --rdzv-backend etcd true
run 2 launch sherd
run 2 launch no-such-program
has err "'no-such-program' cannot be started"
for program in train tiny.yaml; do
    run 2 launch $program
    has err "put sherd before it"
done
run 0 launch --rdzv-backend c10d --rdzv-endpoint localhost:0 true
run 2 launch --nnodes 2 --rdzv-endpoint localhost:0 true
run 2 launch -r 1 true
RANK=0 WORLD_SIZE=1 run 2 launch true
has err "this process was started by RANK and WORLD_SIZE as rank 0 of 1 already"

# The same failure of several ranks is told once, with who they were; another one is told, too.
run 1 launch --nproc-per-node 5 bash -c 'trap "" TERM
    text="the same words"; [ "$RANK" -ne 3 ] || text="other words"
    touch ready-$RANK; while [ "$(ls ready-* | wc -l)" -lt 5 ]; do sleep 0.02; done
    printf %s "$text" >&$SHERD_ERROR_FD; exit 1'
once err "the same words"
grep -qE "ranks 0-2, 4 of 5 \($(uname -n)\) (also )?failed: the same words" err ||
    { complain "the ranks of one failure are not named together"; show err; }
grep -qE "rank 3 of 5 \($(uname -n), pid [0-9]+\) (also )?failed: other words" err ||
    { complain "the other failure is not told"; show err; }
run 2 launch --nproc-per-node 3 sherd train nowhere.yaml
once err nowhere.yaml

for signal in TERM INT HUP USR1; do
    start_endless "on$signal"
    kill -$signal "$launcher"
    ended 75 "on$signal.err"
    run 0 inspect "on$signal" --json
    json 'r["step"] >= 1 and r["world"] == 3'
done
run 0 train tiny.yaml --ranks 2 --resume --set run.dir=onTERM \
    --set train.steps=$(($(ls -d onTERM/step-* | tail -1 | sed 's/.*step-0*//') + 2))

# Not all that is stopped saves.
run 143 launch --nproc-per-node 1 sh -c 'kill -TERM $PPID; sleep 20'
has err "sherd: SIGTERM: asking all ranks to stop (once more ends them at once)"

# A signal to one rank stops all of them.
start_endless one
kill -USR1 "${ranks[2]}"
ended 75 one.err

# A second signal does not wait; here a rank that stands still would let it wait for ever. Batch systems send the first to
# all processes at once, and twice in a row: that is one.
start_endless once
kill -TERM "${ranks[@]}" "$launcher"
kill -TERM "${ranks[@]}" "$launcher"
ended 75 once.err
# SIGUSR1 only ever asks, however often: with a rank that stands still the job waits, and saves when that goes on.
start_endless asked
kill -STOP "${ranks[1]}"
for i in 1 2; do
    kill -USR1 "$launcher"
    sleep 1.2
done
alive "${ranks[0]}" && alive "$launcher" || complain "a second SIGUSR1 ended the job"
kill -CONT "${ranks[1]}"
ended 75 asked.err
ls -d asked/step-* >/dev/null || complain "nothing was saved after two SIGUSR1"
start_endless twice
kill -STOP "${ranks[1]}"
kill -TERM "$launcher"
sleep 1.2
kill -TERM "$launcher"
ended 143 twice.err

# A rank that stands still is named when patience is over.
start_endless still --grace 1 --set run.timeout=2
kill -STOP "${ranks[1]}"
ended 1 still.err
has still.err "rank 1"

# What all ranks say alike is told once, with the ranks that said it. Which of them came first is open.
run 1 train tiny.yaml --ranks 3 --set run.dir=alike --set data.train=nowhere
once err nowhere
grep -qE "^sherd: (rank [0-2] of 3 \($(uname -n), pid [0-9]+\)|ranks ([01]-[12]|0, 2) of 3 \($(uname -n)\)) failed: .*nowhere" err ||
    { complain "the ranks that said the same are not told with it"; show err; }

# The reason of the rank that failed first comes last, not that of those who only noticed.
python3 - <<'END'
import struct
ids = [i % 200 for i in range(16 * 13)]
ids[16 * 7 + 3] = 300
open("bad.bin", "wb").write(struct.pack("<%dH" % len(ids), *ids))
END
run 1 train tiny.yaml --ranks 3 --set run.dir=bad --set data.train=[bad.bin] --set data.shuffle=false
tail -n 1 err >last
has last "rank 0 of 3"
has last "bad.bin: byte 230: token 300"

# With one file left there is no port, with two there is no guard; no job can be begun so, but each is told.
(ulimit -n 4; run 1 launch --nproc-per-node 2 true; [ "$faults" -eq 0 ]) || complain "without a port"
has err "sherd: no port of this host can be had for MASTER_PORT: Too many open files"
(ulimit -n 5; run 1 launch --nproc-per-node 2 true; [ "$faults" -eq 0 ]) || complain "without a guard"
has err "sherd: no guard can be started, so what ranks start themselves may outlive"

# Two jobs at once do not meet.
"$sherd" train tiny.yaml --ranks 2 --set run.dir=a 2>a.err &
"$sherd" train tiny.yaml --ranks 3 --set run.dir=b 2>b.err &
for job in %?run.dir=a %?run.dir=b; do
    wait "$job" || { complain "$job failed"; show a.err b.err; }
done

wait $alone $lonely
has alone.err "waiting "
has alone.err "for 2 of 3 ranks"
has lonely.err "3 ranks, 1 of them on this host, as RANK and WORLD_SIZE told"
has lonely.err "waiting at 127.0.0.1:"
has lonely.err "at most: ranks 1, 2"

new=$(comm -13 <(echo "$before") <(shared)) # others on this machine may come and go: what is new and sherd's counts
! grep -q sherd <<<"$new" || complain "left in /dev/shm: $new"
finish
