# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Sourced by the other scripts, which run in the source folder. files PATTERN... lists the source files whose
# path matches one of the shell patterns; complain TEXT prints and remembers; finish ends the script.

all_files=$(git ls-files -co --exclude-standard 2>/dev/null || true)
if [ -z "$all_files" ]; then
    all_files=$(find . \( -name .git -o -path './build*' -o -path ./runs \) -prune -o -type f -print | sed 's|^\./||')
fi

files() {
    local path pattern
    while IFS= read -r path; do
        for pattern in "$@"; do
            # shellcheck disable=SC2053
            if [[ $path == $pattern && -f $path ]]; then
                printf '%s\n' "$path"
                break
            fi
        done
    done <<<"$all_files" | sort
}

faults=0
complain() {
    printf '%s\n' "$*"
    faults=$((faults + 1))
}

finish() {
    [ "$faults" -eq 0 ] || { echo "$faults faults"; exit 1; }
    exit 0
}
