# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# .lab/bin/podman sources this file before it runs `podman exec`. enter.c runs the command, in 3 ms of CPU time.
# runc's own exec needs 60 ms, and podman needs more. If the container is not running, or if there are options, this
# function returns and podman runs the command.
#
# The caller defines `podman` (a function), `enter` (the program) and `ids` (a directory for the ids of containers).

enter_host() {
    input=/dev/null
    case $1 in -i | --interactive) input=/dev/fd/0; shift ;; esac
    case ${1-} in openfleet-*) ;; *) return ;; esac
    id=
    read -r id 2>/dev/null <"$ids/$1" || :
    # A container that was recreated under the same name has another id. A container that has ended has no state.
    if [ ! -e "/run/runc/${id:-none}/state.json" ]; then
        id=$(podman inspect --type container --format '{{.ID}}' "$1" 2>/dev/null) && [ -e "/run/runc/$id/state.json" ] || return
        mkdir -p "$ids" && echo "$id" >"$ids/$1.$$" && mv "$ids/$1.$$" "$ids/$1"
    fi
    shift
    exec "$enter" "/run/runc/$id/state.json" "$@" <$input
}
