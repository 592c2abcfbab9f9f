#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Builds the Debian packages of this source tree (needs dpkg-dev and debhelper) and leaves them in FOLDER.
#   packaging/deb.sh FOLDER [dpkg-buildpackage options]       DEB_BUILD_OPTIONS=nocheck leaves the tests out
set -eu
cd "$(dirname "$0")/.."
out=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sherd"
git archive HEAD | tar -x -C "$work/sherd"
cp -r "$work/sherd/packaging/debian" "$work/sherd/debian"
(cd "$work/sherd" && dpkg-buildpackage -us -uc -b "$@")
cp "$work"/*.deb "$out"
