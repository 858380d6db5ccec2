# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Thousands of files are looked at in one pass, and pathlib would take most of its time.
# ruff: noqa: PTH116, PTH119, PTH123, PTH208
"""One pass over /proc: which process has which device nodes open, and in which mount namespace it lives (proc(5))."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Iterator

from .command_line import shown
from .holders_cgroup import Origin, parse_cgroup
from .holders_devices import Devices, Node
from .holders_model import NAME_LENGTH


@dataclass(frozen=True)
class Seen:
    """A process as the pass saw it. `mount_namespace` is None where /proc does not say."""

    pid: int
    name: str
    nodes: tuple[Node, ...] = ()
    mount_namespace: str | None = None


@dataclass(frozen=True)
class Processes:
    """All processes. `unreadable` are those whose open files this caller may not see."""

    proc: str
    seen: dict[int, Seen]
    unreadable: tuple[int, ...]
    #: Whether /proc shows the processes of others at all (mount option hidepid).
    complete: bool
    own_mount_namespace: str | None
    #: The container that this process runs in.
    own_container: str | None = None

    def named(self, name: str) -> list[Seen]:
        return [process for process in self.seen.values() if process.name == name[:NAME_LENGTH]]

    def user(self, pid: int) -> str | None:
        uid = self._status(pid, "Uid")
        if uid is None:
            return None
        try:
            return pwd.getpwuid(int(uid)).pw_name
        except (KeyError, ValueError):
            return uid

    def is_roots(self, pid: int, program: str) -> bool:
        """Whether root runs it, by the kernel's word: all of its user ids, and the file that it executes.

        Name, arguments and environment are the process's own to choose, and a setuid program has them from its caller.
        """
        ids = re.search(r"^Uid:((?:\s+\d+)+)$", self._text(pid, "status"), re.MULTILINE)
        executed = os.path.basename(_link("%s/%d/exe" % (self.proc, pid)) or "")
        return ids is not None and set(ids.group(1).split()) == {"0"} and executed.split(" ", 1)[0] == program

    def in_container(self, pid: int) -> bool:
        """Whether it has a PID namespace that is not the caller's: its pid is another one there (proc(5), NSpid)."""
        return bool(re.search(r"^NSpid:\s*\d+\s+\d", self._text(pid, "status"), re.MULTILINE))

    def parent(self, pid: int) -> int | None:
        parent = self._status(pid, "PPid")
        return int(parent) if parent else None

    def command(self, pid: int) -> str | None:
        """The command line without its secrets, or the name in brackets where there is none, as ps shows it."""
        words = self.arguments(pid)
        if words:
            return shown(words)
        return "[%s]" % self.seen[pid].name if pid in self.seen else None

    def arguments(self, pid: int) -> list[str]:
        return [word for word in self._text(pid, "cmdline").split("\0") if word]

    def environment(self, pid: int) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in self._text(pid, "environ").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def origin(self, pid: int) -> Origin:
        """From the cgroup; for a container without cgroups of its own, from the monitor that podman keeps above it."""
        origin = parse_cgroup(self._text(pid, "cgroup"), self.own_container)
        monitor = self._monitor(pid)
        words = self.arguments(monitor) if monitor is not None else []
        if monitor is None or "-n" not in words[:-1]:
            return origin
        owner = self._status(monitor, "Uid")
        # Only root's podman goes by that name; an owner that is gone is not taken for root.
        runtime = "podman" if owner == "0" else "podman@%s" % (owner or "unknown")
        name = "%s container %s" % (runtime, words[words.index("-n") + 1])
        return Origin(name, origin.container_id, origin.job, origin.pod)

    def pods(self) -> set[str]:
        """The UIDs of the pods of which a process runs."""
        origins = (parse_cgroup(self._text(pid, "cgroup"), self.own_container) for pid in self.seen)
        return {origin.pod for origin in origins if origin.pod}

    def booted(self) -> float | None:
        """When the host started, as a Unix time: its first process, for the host may itself be a container."""
        return self.started(1)

    def started(self, pid: int) -> float | None:
        """When a process began, as a Unix time (proc(5)); None where /proc does not say."""
        # The name may have blanks and brackets in it. The 22nd field of all, the 20th after the name.
        fields = self._text(pid, "stat").rpartition(")")[2].split()
        if self._kernel_started is None or len(fields) < 20:
            return None
        return self._kernel_started + int(fields[19]) / os.sysconf("SC_CLK_TCK")

    @cached_property
    def _kernel_started(self) -> int | None:
        found = re.search(r"^btime (\d+)$", _read(self.proc + "/stat"), re.MULTILINE)
        return int(found.group(1)) if found else None

    def _monitor(self, pid: int) -> int | None:
        """The process that podman keeps above a container's."""
        above: int | None = pid
        for _level in range(64):
            if above is None or above <= 1:
                return None
            if above in self.seen and self.seen[above].name == "conmon":
                return above
            above = self.parent(above)
        return None

    def _status(self, pid: int, key: str) -> str | None:
        found = re.search(r"^%s:\s*(\d+)" % key, self._text(pid, "status"), re.MULTILINE)
        return found.group(1) if found else None

    def _text(self, pid: int, name: str) -> str:
        return _read("%s/%d/%s" % (self.proc, pid, name))


def scan(devices: Devices, proc: str = "/proc") -> Processes:
    """Look at every process but this one once. Processes that end meanwhile are left out."""
    seen: dict[int, Seen] = {}
    unreadable = []
    own = os.getpid()
    for pid in _pids(proc):
        if pid == own and proc == "/proc":
            # This process has the GPUs open itself, through NVML.
            continue
        folder = "%s/%d" % (proc, pid)
        nodes: tuple[Node, ...] = ()
        try:
            nodes = tuple(sorted(set(_open_nodes(folder + "/fd", devices))))
        except PermissionError:
            unreadable.append(pid)
        except OSError:
            continue
        name = _read(folder + "/comm").rstrip("\n")
        seen[pid] = Seen(pid, name, nodes, _link(folder + "/ns/mnt"))
    complete = os.geteuid() == 0 or 1 in seen
    container = parse_cgroup(_read(proc + "/self/cgroup")).container_id
    return Processes(proc, seen, tuple(unreadable), complete, _link(proc + "/self/ns/mnt"), container)


def _pids(proc: str) -> Iterator[int]:
    for name in os.listdir(proc):
        if name.isdigit():
            yield int(name)


def _open_nodes(folder: str, devices: Devices) -> Iterator[Node]:
    prefixes = (devices.dev + "/", "/dev/")
    for descriptor in os.listdir(folder):
        path = "%s/%s" % (folder, descriptor)
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            # Closed meanwhile. A refusal is none of these: root may list what it may not look at.
            continue
        if not target.startswith(prefixes) or target.startswith(("/dev/null", "/dev/pts/")):
            continue
        status = None
        with contextlib.suppress(OSError):
            status = os.stat(path)
        node = devices.node(target.replace(" (deleted)", ""), status)
        if node is not None:
            yield node


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
