#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Who may include whom: rooms by docs/layers.txt, foreign headers by the list below.
set -eu
. tests/style/files.sh

# Header pattern, and the files that may include it.
foreign='yaml.h runtime/yaml.c
jansson.h base/json.h tools/out.h
xxhash.h base/sum.c
cblas.h device/cpu/blas_shim.c bench/cpu_ops.c
cuda*.h device/cuda/* comm/nccl*
cublas*.h device/cuda/* comm/nccl*
cudnn*.h device/cuda/* comm/nccl*
nccl.h device/cuda/* comm/nccl*'
mapfile -t rules <<<"$foreign"

declare -A may
while IFS=: read -r room list; do
    room=${room//[[:space:]]/}
    [[ -z $room || $room == \#* ]] && continue
    may[$room]=" $list "
done <docs/layers.txt

check_foreign() { # PLACE PATH HEADER
    local rule pattern allowed one ok
    for rule in "${rules[@]}"; do
        pattern=${rule%% *} allowed=${rule#* }
        # shellcheck disable=SC2053
        [[ $3 == $pattern ]] || continue
        ok=0
        set -f
        for one in $allowed; do
            # shellcheck disable=SC2053
            [[ $2 == $one ]] && ok=1
        done
        set +f
        [ $ok -eq 1 ] || complain "$1: <$3> may be included by $allowed only"
    done
}

while IFS= read -r hit; do
    path=${hit%%:*} rest=${hit#*:}
    place=$path:${rest%%:*}
    header=${rest#*[\"<]} header=${header%%[\">]*}
    room=${path%%/*} target=${header%%/*}
    check_foreign "$place" "$path" "$header"
    if [[ $room == include ]]; then
        if [[ $rest == *\"* || -n ${may[$target]+x} ]]; then
            complain "$place: a public header includes only <sherd/...> and C headers, not $header"
        fi
    elif [[ -z ${may[$room]+x} ]]; then
        complain "$place: docs/layers.txt knows no room '$room'"
    elif [[ $rest != *\"* ]]; then
        [[ -z ${may[$target]+x} || $header == sherd/* ]] || complain "$place: rooms are included as \"$header\""
    elif [[ $header != */* ]]; then
        complain "$place: name the room: \"$room/$header\""
    elif [[ $target != "$room" && ${may[$room]} != *" $target "* && ${may[$room]} != *" $header "* &&
        ${may[$room]} != *" * "* ]]; then
        complain "$place: $room may not include $target (docs/layers.txt)"
    fi
done < <(files '*.c' '*.h' '*.cu' '*.cuh' | xargs grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]')
finish
