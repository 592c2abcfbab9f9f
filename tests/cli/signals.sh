# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Sourced first, before lib.sh, by tests that send signals. Whoever started the test may ignore some (nohup does), and
# what is ignored stays ignored in all that the test starts; only a new process gets over that.
if [ -z "${SIGNALS_RESET:-}" ]; then
    SIGNALS_RESET=1 exec env --default-signal=HUP,INT,TERM,USR1 bash "$0" "$@"
fi
