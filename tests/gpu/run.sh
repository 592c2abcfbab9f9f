#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# All that needs a GPU, in one go: every operation against its reference in double, f32 and bf16, then again under
# compute-sanitizer, and NCCL and the engine on two GPUs where there are two. Usage: tests/gpu/run.sh BUILD [ops] [nccl] [memcheck]
# [racecheck]; without names, all of them. Ends with "N passed, N failed, N skipped"; the output is in BUILD/gpu/.
set -u
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] && [ -d "$1/tests/ops" ] || { echo "usage: $0 BUILD [ops] [nccl] [memcheck] [racecheck]"; exit 2; }
build=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- ops nccl memcheck racecheck

command -v nvidia-smi >/dev/null && nvidia-smi -L | grep -q GPU || { echo "no GPU here"; exit 77; }
[ -e "$build/libsherd-cuda.so" ] || { echo "$build has no libsherd-cuda.so: configure with -Dcuda=enabled"; exit 1; }
export LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$build/gpu"
passed=0 failed=0 skipped=0

one() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 start=$SECONDS st=0
    shift 2
    timeout "$seconds" "$@" >"$build/gpu/$name.log" 2>&1 || st=$?
    if [ $st -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok     $name ($((SECONDS - start)) s)"
    elif [ $st -eq 77 ]; then
        skipped=$((skipped + 1))
        echo "skip   $name: $(tail -1 "$build/gpu/$name.log")"
    else
        failed=$((failed + 1))
        echo "FAILED $name (status $st), see $build/gpu/$name.log:"
        grep -E '\[  ERROR|---|Error|ERROR SUMMARY|=========|No GPU|device' "$build/gpu/$name.log" | head -12
    fi
}

# The tests of operations that know --device.
op_tests() {
    grep -l 'op_main(argc' tests/ops/test_*.c | sed 's|.*/\(.*\)\.c|\1|'
}

# Races inside NVIDIA's own kernels (their barriers are not all seen by the tool) are not ours to mend. A report goes
# from its first line to the next empty one, and names the kernel in any of its lines. Prints the reports that are ours.
theirs='nvjet_|cudnn|cublas|cutlass|xmma|nccl|splitKreduce'
ours() { # LOG
    awk -v theirs="$theirs" '
        function flush() { if (report != "" && report !~ theirs) { print report; found = 1 } report = "" }
        /^========= (Error|Warning|Invalid|Race|Uninit|Misaligned|Potential)/ { flush(); report = $0; next }
        /^=========[ \t]*$/ || !/^=========/ || /SUMMARY/ { flush(); next }
        report != "" { report = report "\n" $0 }
        END { flush(); exit !found }' "$1"
}

checked() { # TOOL TEST: runs it under the tool; fails if the test does, or for an error in a kernel of ours
    local log=$build/gpu/$1-$2.full
    compute-sanitizer --tool "$1" --report-api-errors no --print-limit 1000 "$build/tests/ops/$2" --device cuda >"$log" 2>&1
    local st=$?
    cat "$log"
    [ $st -eq 0 ] || return $st
    if ours "$log" >"$log.ours"; then
        echo "--- in kernels of ours:"
        cat "$log.ours"
        return 1
    fi
}

sanitizer() { # TOOL
    command -v compute-sanitizer >/dev/null || { failed=$((failed + 1)); echo "FAILED $1: no compute-sanitizer"; return; }
    local test
    export -f checked ours
    export build theirs
    for test in $(op_tests); do
        one "$1-$test" 600 bash -c 'checked "$@"' checked "$1" "$test"
    done
}

for what in "$@"; do
    case $what in
    ops)
        for test in $(op_tests); do
            one "$test" 300 "$build/tests/ops/$test" --device cuda
        done
        ;;
    nccl)
        one plugin 60 "$build/tests/gpu/test_plugin"
        one attention 300 "$build/tests/gpu/test_attention_gpu"
        one tuned 60 "$build/tests/gpu/test_tuned"
        one nccl 600 "$build/tests/gpu/test_nccl"
        one nccl_fail 600 "$build/tests/gpu/test_nccl_fail"
        one exact 300 "$build/tests/ranks/test_exact" cuda
        one engine 900 "$build/tests/gpu/test_engine_gpu"
        ;;
    memcheck | racecheck) sanitizer "$what" ;;
    *) echo "there is no '$what'"; exit 2 ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
