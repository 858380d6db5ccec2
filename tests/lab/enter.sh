# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Read by .lab/bin/podman ahead of `podman exec`: run the command by enter.c, in 3 ms of CPU instead of the 60 of runc's own exec
# and more of podman's. It returns, and podman goes on, where the container does not run or where there are options.
# Expects `podman`, a function; `enter`, the program; and `ids`, a directory for the ids of containers.

enter_host() {
    input=/dev/null
    case $1 in -i | --interactive) input=/dev/fd/0; shift ;; esac
    case ${1-} in openfleet-*) ;; *) return ;; esac
    id=
    read -r id 2>/dev/null <"$ids/$1" || :
    # A container that was made again under the same name has another id; one that has ended has no state.
    if [ ! -e "/run/runc/${id:-none}/state.json" ]; then
        id=$(podman inspect --type container --format '{{.ID}}' "$1" 2>/dev/null) && [ -e "/run/runc/$id/state.json" ] || return
        mkdir -p "$ids" && echo "$id" >"$ids/$1.$$" && mv "$ids/$1.$$" "$ids/$1"
    fi
    shift
    exec "$enter" "/run/runc/$id/state.json" "$@" <$input
}
