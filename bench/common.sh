# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What the measurements on GPUs share; they source this in the repository's root and set $sherd and $gpus. Environment:
# TRIAL (no GPU is asked for), PYTHON, SCRATCH (a folder for token files), LOGS (a folder in which all output is kept).
python=${PYTHON:-python3}
trial=${TRIAL:-}
watcher='' job='' limit='' failed=0
used=(nvidia-smi --query-gpu=memory.used "--format=csv,noheader,nounits") # MiB, a line for each GPU

start() { # GPUS: checks the host; $work is then a scratch folder, $out the folder of the logs
    if [ -z "$trial" ]; then
        command -v nvidia-smi >/dev/null || { echo "no nvidia-smi here"; exit 77; }
        [ "$(nvidia-smi -L | grep -c '^GPU')" -ge "$1" ] || { echo "fewer than $1 GPUs here"; exit 77; }
    fi
    work=$(mktemp -d "${SCRATCH:-${TMPDIR:-/tmp}}/sherd-compare-XXXXXX")
    trap leave EXIT
    out=${LOGS:-$work}
    mkdir -p "$out"
    out=$(realpath "$out")
    [ -n "$trial" ] || "${used[@]}" >"$out/idle.txt"
}

leave() { # $job is a job in the background, if one runs
    unwatch
    end "$job"
    rm -rf "$work"
}

end() { # PID
    [ -z "$1" ] || kill "$1" 2>/dev/null || true
    [ -z "$1" ] || wait "$1" 2>/dev/null || true
}

unwatch() {
    end "$watcher"
    watcher=
}

# Writes stdin to FILE.log, and to FILE.first the seconds from START to the first line that matches.
stamp() { # FILE START PATTERN
    local line seen=
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
        if [ -z "$seen" ] && [[ $line =~ $3 ]]; then
            seen=$EPOCHREALTIME
            awk -v a="$2" -v b="$seen" 'BEGIN { printf "%.2f\n", b - a }' >"$1.first"
        fi
    done >"$1.log"
}

# Runs the command; its memory goes to NAME.used, its output to NAME.log, when it said PATTERN first to NAME.first. It is
# told to end after $limit seconds, if that is set; launchers pass that on to their ranks.
watched() { # NAME PATTERN COMMAND...
    local name=$1 pattern=$2 st=0
    shift 2
    rm -f "$out/$name".{used,first,log,err}
    if [ -z "$trial" ]; then
        stdbuf -oL "${used[@]}" -lms 200 >"$out/$name.used" &
        watcher=$!
    fi
    ${limit:+timeout --foreground -k 15 "$limit"} "$@" 2>"$out/$name.err" |
        stamp "$out/$name" "$EPOCHREALTIME" "$pattern"
    st=${PIPESTATUS[0]}
    unwatch
    [ -z "$limit" ] || [ "$st" -ne 124 ] || echo "ended: it was given $limit s" >>"$out/$name.err"
    return "$st"
}

tell() { # NAME WHAT: the end of what the command said
    echo "$2 failed:"
    tail -n 15 "$out/$1.err" "$out/$1.log" 2>/dev/null || true
}

random_tokens() { # FILE COUNT VOCAB: with the header of llm.c, 16 or 32 bits a token
    "$python" - "$@" <<'PY'
import array, random, struct, sys
path, count, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
magic, version, code = (20240520, 1, "H") if vocab <= 65536 else (20240801, 7, "I")
draw = random.Random(1).random
with open(path, "wb") as f:
    f.write(struct.pack("<256i", magic, version, count, *([0] * 253)))
    array.array(code, (int(draw() * vocab) for _ in range(count))).tofile(f)
PY
}

shape_of() { # SHAPE: sets seq and vocab, and small: the settings of a trial
    local s
    case $1 in
    1b) seq=2048 vocab=32000 ;;
    8b) seq=4096 vocab=128256 ;;
    *) echo "no shape '$1': there are 1b and 8b"; exit 2 ;;
    esac
    small=()
    if [ -n "$trial" ]; then
        seq=64 vocab=512
        for s in run.device=cpu model.vocab=512 model.width=64 model.layers=2 model.heads=4 model.kv_heads=2 \
            model.mlp_width=160 model.context=64; do
            small+=(--set "$s")
        done
    fi
}

# What all runs of sherd have in common, in settings: no checkpoint, no evaluation, a few steps. Later ones win.
sherd_settings() { # RANKS STEPS SEQUENCES SEQ TOKENS ["--set X"...]
    local ranks=$1 steps=$2 micro=$3 seq=$4 file=$5
    shift 5
    settings=(--set run.dir="$work/run" --set batch.global=$((micro * ranks)) --set batch.micro="$micro"
        --set batch.seq="$seq" --set train.steps="$steps" --set schedule.warmup=1 --set "data.train=[$file]"
        --set data.format=llmc --set "data.val=[]" --set train.eval_every=0 --set save.every=0 --set save.what=nothing
        --set log.every=5 "$@")
}

sherd_train() { # NAME CONFIG RANKS STEPS SEQUENCES SEQ TOKENS ["--set X"...]
    local name=$1 config=$2 ranks=$3 settings st=0
    shift 2
    sherd_settings "$@"
    # shellcheck disable=SC2016,SC2154
    watched "$name" '^step +1/' bash -c 'exec "$@" 2>&1' - "$sherd" train "$config" --ranks "$ranks" \
        "${settings[@]}" || st=$?
    [ ! -e "$work/run/metrics.jsonl" ] || mv "$work/run/metrics.jsonl" "$out/$name.jsonl"
    rm -rf "$work/run"
    return $st
}

sherd_plan() { # NAME DEVICE CONFIG RANKS ["--set X"...]: the forecast, as JSON in the file NAME; none if it fails
    local name=$1 device=$2 config=$3 ranks=$4
    shift 4
    "$sherd" plan "$config" --gpus "$ranks" --device "$device" --json "$@" >"$out/$name" 2>"$out/$name.err" ||
        [ -s "$out/$name" ] || { # what does not fit is forecast all the same
        rm -f "$out/$name"
        return 1
    }
}

run_peer() { # NAME SHAPE OPTION...: a failure is told, and left in failed
    local name=$1 shape=$2 st=0
    shift 2
    echo "FSDP2, $name"
    # shellcheck disable=SC2154
    watched "$name" '"first step"' "$python" -m torch.distributed.run --nproc-per-node "$gpus" bench/fsdp2.py \
        --shape "$shape" "$@" ${trial:+--trial} || st=$?
    [ $st -eq 0 ] || { tell "$name" "bench/fsdp2.py, $name,"; failed=1; }
}
