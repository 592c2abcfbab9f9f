#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What a library must not do to its host: print, exit, abort, catch signals, change the environment; and host
# memory has one door. Usage: calls.sh LIBRARY.a
set -eu
. tests/style/files.sh

command -v nm >/dev/null || { echo "nm is missing"; exit 77; }
host='printf|vprintf|puts|putchar|__printf_chk|__vprintf_chk|exit|_exit|_Exit|quick_exit|abort|atexit|signal|sigaction'
host="$host|setenv|putenv|unsetenv|setlocale|srand|rand|random|system|popen|fork"
memory='malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|memalign|free|strdup|strndup|asprintf|vasprintf'
memory="$memory|getline|getdelim|open_memstream"
while read -r object name; do
    if [[ $name =~ ^($host)$ ]]; then
        complain "$object calls $name; a library returns a status, and leaves the process alone"
    elif [[ $name =~ ^($memory)$ && $object != base_mem.c.o ]]; then
        complain "$object calls $name; use base/mem.h"
    fi
done < <(nm -A -u "$1" 2>/dev/null | sed -nE 's|^.*[:/]([^:/]+\.o):.* U ([^@]+).*|\1 \2|p')
finish
