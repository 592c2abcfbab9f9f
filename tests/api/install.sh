#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What `meson install` leaves is complete: installed into a folder of its own, the program runs, and the examples compile and
# run by what pkg-config says. Usage: install.sh BUILD PREFIX LIBDIR
set -eu
build=$1 prefix=$2 libdir=$3
export LC_ALL=C
command -v pkg-config >/dev/null || { echo "pkg-config is missing"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
root=$dir/root$prefix
fail() { echo "$*"; exit 1; }

DESTDIR=$dir/root meson install -C "$build" --no-rebuild --quiet >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }

for path in bin/sherd include/sherd/sherd.h include/sherd/forecast.h "$libdir/libsherd.so" "$libdir/libsherd.so.0" \
    "$libdir/pkgconfig/sherd.pc" share/man/man1/sherd.1 share/bash-completion/completions/sherd \
    share/zsh/site-functions/_sherd share/doc/sherd/README.md share/doc/sherd/format.md share/doc/sherd/examples/own_model.c \
    share/sherd/configs/reference.yaml share/sherd/devices/h200.json; do
    [ -s "$root/$path" ] || fail "$path is not installed"
done
for plugin in "$build"/libsherd-*.so; do
    [ ! -e "$plugin" ] || [ -e "$root/$libdir/$(basename "$plugin")" ] || fail "$(basename "$plugin") is not beside the library"
done
soname=$(objdump -p "$root/$libdir/libsherd.so" | awk '/SONAME/ { print $2 }')
[ "$soname" = libsherd.so.0 ] || fail "soname $soname"

# The program, without any path set; a page and completion for every command that it lists.
env -u LD_LIBRARY_PATH "$root/bin/sherd" --version >"$dir/version"
for command in $("$root/bin/sherd" --help | awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'); do
    page=$root/share/man/man1/sherd-$command.1
    [ -s "$page" ] || fail "no man page for sherd $command"
    for option in $("$root/bin/sherd" "$command" --help | sed -nE 's/^  (-., )?--([a-z_-]+).*/\2/p'); do
        grep -qF -- "\\-\\-${option//-/\\-}" "$page" || fail "sherd-$command.1 does not know --$option"
        grep -q -- "--$option" "$root/share/bash-completion/completions/sherd" || fail "bash does not complete --$option"
        grep -q -- "--$option" "$root/share/zsh/site-functions/_sherd" || fail "zsh does not complete --$option"
    done
    if command -v man >/dev/null; then
        MANROFFSEQ='' MANWIDTH=80 man --warnings -l "$page" >/dev/null 2>"$dir/warnings"
        [ ! -s "$dir/warnings" ] || fail "$(cat "$dir/warnings")"
    fi
done
bash -c ". '$root/share/bash-completion/completions/sherd'
    COMP_WORDS=(sherd plan --gp); COMP_CWORD=2; _sherd; [ \"\${COMPREPLY[*]}\" = --gpus ]
    COMP_WORDS=(sherd tra); COMP_CWORD=1; _sherd; [ \"\${COMPREPLY[*]}\" = train ]" || fail "completion for bash does not work"
! command -v zsh >/dev/null || zsh -n "$root/share/zsh/site-functions/_sherd"

# The library, by pkg-config.
export PKG_CONFIG_PATH=$root/$libdir/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir/root
[ "sherd $(pkg-config --modversion sherd)" = "$(cat "$dir/version")" ] || fail "pkg-config: $(pkg-config --modversion sherd)"
for example in own_model train_loop; do
    # shellcheck disable=SC2046
    "${CC:-cc}" ${CFLAGS:-} -o "$dir/$example" "$root/share/doc/sherd/examples/$example.c" $(pkg-config --cflags --libs sherd) \
        -pthread -Wl,-rpath,"$root/$libdir"
done
"$dir/own_model" 3 2 >"$dir/out"
cat >"$dir/c.yaml" <<Y
run: {dir: $dir/run, threads: 1}
model: {family: gpt2, vocab: 31, width: 16, layers: 1, heads: 2, context: 16}
batch: {micro: 2, seq: 8}
schedule: {warmup: 0}
train: {steps: 2}
Y
"$dir/train_loop" "$dir/c.yaml" >"$dir/out"
[ "$(wc -l <"$dir/out")" -eq 2 ] || fail "train_loop: $(cat "$dir/out")"
"$root/bin/sherd" plan "$dir/c.yaml" --device h200 >/dev/null

# A plugin that is there and cannot be opened is named with what it lacks, as where CUDA's libraries are missing.
"${CC:-cc}" -shared -fPIC -o "$dir/libnotthere.so.7" -Wl,-soname,libnotthere.so.7 -x c /dev/null
"${CC:-cc}" -shared -fPIC -o "$root/$libdir/libsherd-cuda.so" -x c /dev/null -x none -Wl,--no-as-needed "$dir/libnotthere.so.7"
! "$root/bin/sherd" selftest --device cuda --ranks 1 >"$dir/out" 2>&1 || fail "a plugin without its libraries was used"
grep -q "libnotthere.so.7: cannot open shared object file" "$dir/out" || fail "not named: $(cat "$dir/out")"
