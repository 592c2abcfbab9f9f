#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Folders as hosts have them: one that ranks do not share is found before anything is trained, and a checkpoint that
# nobody may write to is read as any other.
. "$(dirname "$0")/lib.sh"
make_tiny
unshare -rm true 2>/dev/null || { echo "no mount namespaces here: nothing was tried"; exit 77; }

# Two ranks, of which the second has a run folder of its own, as on a host without the shared disk. The code is that of
# the first; that of the second is in `code1`.
two_hosts() { # CODE ARGS...
    local want=$1
    shift
    export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 SHERD_JOB="folders-$$"
    RANK=1 LOCAL_RANK=1 unshare -rm sh -c 'mount -t tmpfs tmpfs shared && exec "$0" train tiny.yaml "$@"' "$sherd" "$@" \
        >/dev/null 2>err1 &
    RANK=0 LOCAL_RANK=0 run "$want" train tiny.yaml "$@"
    wait $!
    code1=$?
    unset WORLD_SIZE LOCAL_WORLD_SIZE SHERD_JOB
}
apart() { # ARGS...
    two_hosts 3 "$@"
    [ $code1 -ne 0 ] || complain "the rank with a folder of its own did not fail"
    tail -n 1 err1 >last
    has last "cannot see shared/run/.tmp-step-look-"
    has last "must lie on storage that all ranks share"
    tail -n 1 err >last
    has last "rank 1: cannot see"
    grep -qE '^(\[rank 0\] )?step ' err && complain "it was trained before"
    [ -z "$(find shared -name '.tmp-*')" ] || { complain "what was made to be seen is left"; find shared; }
}
mkdir shared
apart --set run.dir=shared/run
run 0 train tiny.yaml --ranks 2 --set run.dir=shared/run --set save.every=3
cp -r shared/run kept
apart --set run.dir=shared/run --set train.steps=9 --resume
same_bits kept/step-00000006 shared/run/step-00000006
# Where nothing is saved there is nothing to share.
two_hosts 0 --set run.dir=shared/trial --set save.what=nothing
[ $code1 -eq 0 ] || { complain "a trial without a shared folder failed"; show err1; }

# What checkpoints will take is told before anything is trained, and that there is not enough room for them.
# shellcheck disable=SC2016
unshare -rm bash -c 'mount -t tmpfs -o size=800k tmpfs shared && "$0" train tiny.yaml --set run.dir=shared/tight \
    --set save.every=1 --set save.keep=2 --set train.steps=5; code=$?; ls shared/tight; du -sb shared/tight/step-00000005
    exit $code' "$sherd" >out 2>err || { complain "a run that removes old checkpoints has no room for two"; show out err; }
has err "checkpoints: 322 kB each, up to 3 at once: 965 kB; free there: "
has err "shared/tight has less room than the checkpoints of this run will take"
has err "free some, or set save.keep lower"
[ "$(grep -c '^step-' out)" -eq 2 ] && grep -q '^step-00000004' out || { complain "not the two newest are left"; show out; }
[ "$(grep -nE 'has less room|step +1/5' err | sed 's/.*step .*/step/; s/.*room.*/room/' | tr '\n' ' ')" = "room step " ] ||
    { complain "it is told too late"; show err; }

# A run folder, a step folder and a renamed copy on a disk that is mounted to be read only: whoever reads them writes nothing.
run 0 merge kept model
cp -r kept/step-00000003 kept/renamed
# shellcheck disable=SC2016
unshare -rm bash -c 'mount --bind kept kept && mount -o remount,ro,bind kept kept || exit 9
    ! touch kept/x 2>/dev/null || exit 8
    "$0" merge kept readonly && "$0" merge kept/renamed older && "$0" verify kept && "$0" inspect kept &&
    "$0" generate kept --prompt a --tokens 3 && "$0" diff kept kept/step-00000006' "$sherd" >out 2>err
code=$?
[ $code -eq 9 ] && echo "no read-only mounts here: not tried"
[ $code -eq 0 ] || [ $code -eq 9 ] || { complain "what is read only is not read: $code"; show out err; }
if [ $code -eq 0 ]; then
    cmp model/model.safetensors readonly/model.safetensors || complain "another model comes of a read-only folder"
    run 0 merge kept/step-00000003 third
    cmp third/model.safetensors older/model.safetensors || complain "another model comes of a renamed folder"
fi
finish
