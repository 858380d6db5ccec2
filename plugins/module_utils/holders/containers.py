# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# One scan reads thousands of files, and pathlib would take most of the time.
# ruff: noqa: PTH121, PTH123
"""Find containers that have a GPU, whether or not they have it open.

Every runtime adds the device node of the GPU to the container's /dev, and every container has its own mount namespace.
/proc/PID/root/dev of a process in the container therefore shows the GPU. This holds for podman, docker, containerd,
CRI-O, LXC and nspawn, and for every mode of the container toolkit (CDI, hook, legacy). Two other sources are not used:
each runtime has its own format of records, and the device cgroup of cgroup v2 is a BPF program that cannot be read
back.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import stat
from typing import Any, Iterator, NamedTuple, Sequence

from ..model import Gpu, Holder
from ..processes.accounts import account_of, is_foreign
from ..processes.command import Run
from ..processes.command import ask as ask_tool
from ..processes.file_worker import NoAnswerError, ask, task
from ..processes.proc_files import LINE_END
from .devices import Devices, Place
from .model import CONTAINER, short, unknown
from .processes import Processes, Seen
from .watchers import UNNAMED, is_named_so, is_watcher

#: Device nodes that may differ between a privileged container and its host, or between two boots.
_OWN_NODES = re.compile(r"^(tty|pty|vcs|pts|ptmx|console|loop\d|dm-|core|fd|std|shm|mqueue|log|nvidia)")
#: Suffixes of `Holder.who`.
WATCHES, HAS_OPEN = ", which only watches the GPU", ", which has its device node open"
_ONLY_WATCHES = " and only watches it"
#: Maximum number of files to read in a container's /dev.
_MOST_NODES = 8192
#: Maximum length of a list of mounts in characters, because a container may have any number of mounts.
_MOST_MOUNTS = 1 << 22
#: Driver files that the container toolkit adds together with a GPU.
_DRIVER_FILES = ("libnvidia-ml.so", "libcuda.so", "nvidia-smi")
#: Lists running containers for `parse_docker`, because a cgroup only has a container's id.
#: https://docs.docker.com/reference/cli/docker/container/ls/ (--no-trunc, --format)
LIST_DOCKER = ["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]


def containers(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...]) -> list[Holder]:
    """Return a holder for each container and each of its GPUs or GPU instances."""
    by_namespace: dict[str, list[Seen]] = {}
    for process in processes.seen.values():
        if process.mount_namespace not in (None, processes.own_mount_namespace):
            by_namespace.setdefault(process.mount_namespace or "", []).append(process)
    holders: list[Holder] = []
    for members in by_namespace.values():
        for member in sorted(members, key=lambda process: process.pid):
            try:
                places = _given(devices, processes.folder(member.pid))
            except (FileNotFoundError, ProcessLookupError):
                # The process has ended or has no /dev. Try another process in the same namespace.
                continue
            except NoAnswerError as error:
                by_user = is_foreign(processes.folder(member.pid)) and not any(one.nodes for one in members)
                if not (by_user and error.asked):
                    problem = "the devices of the container of pid %d, user %s, are not known: its file system does not answer"
                    problem %= (member.pid, processes.user(member.pid))
                    holders += unknown(
                        gpus, problem, "End the process, or the server of its file system.", pid=member.pid
                    )
                # The file system belongs to a user, and no process in the namespace has a GPU open.
                break
            except OSError as error:
                if os.geteuid() == 0 and not any(process.nodes for process in members):
                    # Root can read every normal /dev. It cannot read a /dev that is a link to itself or a user's own
                    # file system. Ignore such a /dev, because no process in the namespace has a GPU open.
                    break
                problem = "the devices of the container of pid %d cannot be seen (%s)" % (member.pid, error.strerror)
                holders += unknown(gpus, problem, "Run as root, with the capability CAP_SYS_PTRACE.", pid=member.pid)
            else:
                # A container with only an exporter or a device plugin does not use the GPU.
                watches = all(is_watcher(processes, process.pid) for process in members)
                holders += [_holder(processes, member, place, watches) for place in places]
            break
    return holders


def _holder(processes: Processes, first: Seen, place: Place, watches: bool) -> Holder:
    origin = processes.origin(first.pid)
    command = processes.command(first.pid)
    what = origin.unit_or_container or "a container"
    who = "%s (pid %d: %s), which was given the device" % (what, first.pid, short(command))
    if watches:
        who += _ONLY_WATCHES
    return Holder(
        place[0],
        place[1],
        CONTAINER,
        who,
        first.pid,
        processes.user(first.pid),
        command,
        origin.unit_or_container,
        origin.job or origin.pod,
        watches,
    )


def _given(devices: Devices, process: str) -> list[Place]:
    """Return the GPUs and GPU instances whose nodes are in the process's /dev.

    Returns an empty list if the process has the host's /dev. Raises OSError if the /dev cannot be read, and
    NoAnswerError if its file system does not answer.
    """
    user = _users_namespace(process)
    wanted = _nodes_of_driver(devices.dev) if user else None
    listing = ask(account_of(process), _read_dev, process + "/root/dev", devices.dev, wanted)
    if listing is None:
        return []
    places = set()
    for name, mode, uid, gid, number, has_list in listing["nodes"]:
        node = devices.node(name, _Node(mode, number))
        place = node and devices.place(node)
        if place and (not user or has_list or user.may_open(mode, uid, gid)):
            places.add(place)
    if places and not user and listing["every"] and not _has_driver(process):
        # A privileged container, such as a node agent or a storage driver, has all of the host's nodes without being
        # assigned a GPU. If it opens a GPU, the scan of open files finds it.
        return []
    inside = {gpu for gpu, instance in places if instance is not None}
    return sorted(
        (place for place in places if place[1] is not None or place[0] not in inside), key=lambda p: (p[0], p[1] or 0)
    )


class _Node(NamedTuple):
    """The fields of os.stat_result that `Devices.node` uses."""

    st_mode: int
    st_rdev: int


@task
def _read_dev(folder: str, dev: str, wanted: list[str] | None) -> dict[str, Any] | None:
    """Return the nodes in a container's /dev.

    Returns the `wanted` nodes, or all nodes if `wanted` is None. Returns None if the /dev is not a directory or is the
    host's /dev.

    Runs in a child process, because the container's root may be a user's own file system, which may hang. Does not
    follow a /dev that is a symbolic link, because its target would be resolved from the host's root.
    """
    if not stat.S_ISDIR(os.lstat(folder).st_mode) or os.path.samefile(folder, dev):
        return None
    names = _names(folder, dev) if wanted is None else wanted
    nodes = []
    for name in names:
        path = "%s/%s" % (folder, name)
        status = _status(path)
        if status is not None and ("nvidia" in name or stat.S_ISCHR(status.st_mode)):
            has_list = wanted is not None and _has_list(path)
            nodes.append((path, status.st_mode, status.st_uid, status.st_gid, status.st_rdev, has_list))
    return {"nodes": nodes, "every": wanted is None and _has_every_device(dev, names)}


def _has_list(path: str) -> bool:
    """Return whether the file has an access control list."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access", follow_symlinks=False))
    except OSError:
        return False


def _names(folder: str, dev: str) -> list[str]:
    """Return the names in a container's /dev.

    If there are more than _MOST_NODES names, returns the first ones, and all names that the driver's nodes have in the
    host's /dev.
    """
    names = list(itertools.islice(_nodes(folder), _MOST_NODES + 1))
    if len(names) > _MOST_NODES:
        names = [*names[:_MOST_NODES], *_nodes_of_driver(dev)]
    caps = folder + "/nvidia-caps"
    status = _status(caps)
    inside = _nodes(caps) if status is not None and stat.S_ISDIR(status.st_mode) else iter(())
    return names + ["nvidia-caps/" + name for name in itertools.islice(inside, _MOST_NODES)]


def _nodes_of_driver(dev: str) -> list[str]:
    names = [name for name in _nodes(dev) if name.startswith("nvidia")]
    return names + ["nvidia-caps/" + name for name in _nodes(dev + "/nvidia-caps")]


class _User:
    """The user and groups of a process in a user namespace.

    There, any user can create a /dev with any nodes. `may_open` therefore checks the nodes' permissions.
    """

    def __init__(self, status: str) -> None:
        ids = re.findall(r"^(Uid|Gid|Groups):[ \t]*([\d \t]*)$", status, re.MULTILINE)
        by_name = {name: [int(number) for number in numbers.split()] for name, numbers in ids}
        self.uids = by_name.get("Uid", [])[1:2]
        self.gids = {*by_name.get("Gid", [])[1:2], *by_name.get("Groups", [])}

    def may_open(self, mode: int, uid: int, gid: int) -> bool:
        """Return whether a node's mode lets this user open it."""
        shift = 6 if uid in self.uids else 3 if gid in self.gids else 0
        return bool(mode >> shift & 6)


def _users_namespace(process: str) -> _User | None:
    """Return the user of a process that is in another user namespace.

    Returns None if the process is in the host's user namespace or in an unknown one.
    """
    if not is_foreign(process):
        return None
    try:
        with open(process + "/status", errors="replace", newline=LINE_END) as file:
            return _User(file.read())
    except OSError:
        return None


def _has_every_device(dev: str, names: list[str]) -> bool:
    of_host = {name for name in _nodes(dev) if not _OWN_NODES.match(name) and _is_character_device(dev + "/" + name)}
    # Every container has null, zero, full, random, urandom and tty.
    return len(of_host) > 5 and of_host <= set(names)


def _has_driver(process: str) -> bool:
    try:
        with open(process + "/mountinfo", errors="replace", newline=LINE_END) as file:
            mounts = file.read(_MOST_MOUNTS)
    except OSError:
        return True
    # The missing part of a truncated list of mounts may contain the driver.
    return len(mounts) == _MOST_MOUNTS or any(name in mounts for name in _DRIVER_FILES)


def _nodes(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name
    except (FileNotFoundError, NotADirectoryError):
        return


def _is_character_device(path: str) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISCHR(status.st_mode)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def with_names(holders: Sequence[Holder], run: Run) -> list[Holder]:
    """Replace the ids of Docker containers with their names.

    Docker is queried only if a holder is in a Docker container. If Docker does not answer, the ids are kept. If a
    container's name is not the name of a watcher, the holder's mark as a watcher is removed.
    """
    unnamed = {holder.unit_or_container for holder in holders if UNNAMED.fullmatch(holder.unit_or_container or "")}
    if not unnamed:
        return list(holders)
    names = parse_docker(_listed(run))
    found = []
    for holder in holders:
        match = UNNAMED.fullmatch(holder.unit_or_container or "")
        name = names.get(match.group(1)) if match else None
        if name:
            named = "docker container %s" % name
            who = holder.who.replace(str(holder.unit_or_container), named)
            holder = dataclasses.replace(holder, unit_or_container=named, who=who)
        if match and holder.watches and not is_named_so(name and holder.unit_or_container):
            ending, other = (_ONLY_WATCHES, "") if holder.kind == CONTAINER else (WATCHES, HAS_OPEN)
            who = holder.who[: -len(ending)] + other
            holder = dataclasses.replace(holder, watches=False, who=who)
        found.append(holder)
    return found


def _listed(run: Run) -> str:
    try:
        output, _why = ask_tool(run, LIST_DOCKER)
    except FileNotFoundError:
        return ""
    return output or ""


def parse_docker(listed: str) -> dict[str, str]:
    """Return the names of running containers, by the first 12 digits of their ids."""
    names = {}
    for line in listed.splitlines():
        container, _blank, called = line.partition(" ")
        # Docker also lists the container's legacy links (--link) as names, with a slash.
        own = [name for name in called.split(",") if name and "/" not in name]
        if own:
            names[container[:12]] = own[0]
    return names
