# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Thousands of files are looked at in one pass, and pathlib would take most of its time.
# ruff: noqa: PTH119, PTH208
"""One pass over /proc: which process has which device nodes open, and in which mount namespace it lives (proc(5))."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import time
from functools import cached_property
from typing import Iterable, Iterator, Sequence

from .. import child_process
from ..file_worker import memory_of
from ..frozen import frozen
from ..proc_files import link, read
from .cgroup import Origin, parse_cgroup
from .devices import Devices, Node
from .model import NAME_LENGTH
from .open_files import RemoteMounts, node_of

#: Of a command line, which may have two megabytes: what holders show, and what is read of it.
COMMAND_LENGTH, _COMMAND_BYTES = 1000, 1 << 14
#: Open files of a process that are looked at as it comes: more than most have.
_FEW_FILES = 1 << 10
#: After how many of them the time is looked at.
_EVERY = 256
#: What podman keeps above each container, and the names that it takes (libpod, define.NameRegex).
_MONITOR = "conmon"
_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


@frozen
class Seen:
    """A process as the pass saw it. `mount_namespace` is None where /proc does not say."""

    pid: int
    name: str
    nodes: tuple[Node, ...] = ()
    mount_namespace: str | None = None


@frozen
class Times:
    """Times of a process (proc(5), stat); None where /proc does not say."""

    #: As a Unix time.
    started_seconds: float | None = None
    #: The same, counted by the kernel from its own start.
    started_ticks: int | None = None
    #: All of its threads, those that ended too; not its children.
    cpu_seconds: float | None = None


@frozen
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
    #: Those of which not all open files were looked at in time, the ones with crowds of them first.
    crowded: tuple[int, ...] = ()

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
        return self.runs_as_root(pid) and executable_of(pid, self.proc) == program

    def runs_as_root(self, pid: int) -> bool:
        """Whether all of its user ids are root's."""
        ids = re.search(r"^Uid:((?:\s+\d+)+)$", self._text(pid, "status"), re.MULTILINE)
        return ids is not None and set(ids.group(1).split()) == {"0"}

    def was_killed(self, pid: int) -> bool:
        """Return whether SIGKILL has not ended it yet: it hangs in the kernel, as in a driver call that does not return."""
        return child_process.was_killed(self._text(pid, "status"))

    def in_container(self, pid: int) -> bool:
        return in_container(pid, self.proc)

    def parent(self, pid: int) -> int | None:
        parent = self._status(pid, "PPid")
        return int(parent) if parent else None

    def command(self, pid: int) -> str | None:
        """The command line without its secrets, or the name in brackets where there is none, as ps shows it."""
        words = self.arguments(pid)
        if words:
            return command_of(words)
        return "[%s]" % self.seen[pid].name if pid in self.seen else None

    def arguments(self, pid: int) -> list[str]:
        return arguments_of(pid, self.proc)

    def environment(self, pid: int) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in memory_of("%s/%d/environ" % (self.proc, pid)).split("\0"))
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
        called = words[words.index("-n") + 1]
        name = "%s container %s" % (runtime, called if _CONTAINER_NAME.fullmatch(called) else "of no name")
        return Origin(name, origin.container_id, origin.job, origin.pod)

    def pods(self) -> set[str]:
        """The UIDs of the pods of which a process runs."""
        origins = (parse_cgroup(self._text(pid, "cgroup"), self.own_container) for pid in self.seen)
        return {origin.pod for origin in origins if origin.pod}

    def booted(self) -> float | None:
        """When the host started, as a Unix time: its first process, for the host may itself be a container."""
        return self.times(1).started_seconds

    def times(self, pid: int) -> Times:
        """Return when a process began and its CPU time, of one reading: the pid may be of another process soon."""
        text = self._text(pid, "stat")
        ticks = start_ticks(text)
        if ticks is None:
            return Times()
        second = os.sysconf("SC_CLK_TCK")
        started = None if self._kernel_started is None else self._kernel_started + ticks / second
        user, system = text.rpartition(")")[2].split()[11:13]
        return Times(started, ticks, (int(user) + int(system)) / second)

    @cached_property
    def _kernel_started(self) -> int | None:
        found = re.search(r"^btime (\d+)$", read(self.proc + "/stat"), re.MULTILINE)
        return int(found.group(1)) if found else None

    def _monitor(self, pid: int) -> int | None:
        """The process that podman keeps above a container's. One within a container is that container's own invention."""
        above: int | None = pid
        for _level in range(64):
            if above is None or above <= 1:
                return None
            if above in self.seen and self.seen[above].name == _MONITOR and self._is_monitor(above):
                return above
            above = self.parent(above)
        return None

    def _is_monitor(self, pid: int) -> bool:
        return executable_of(pid, self.proc) == _MONITOR and not self.in_container(pid)

    def _status(self, pid: int, key: str) -> str | None:
        found = re.search(r"^%s:\s*(\d+)" % key, self._text(pid, "status"), re.MULTILINE)
        return found.group(1) if found else None

    def _text(self, pid: int, name: str) -> str:
        return read("%s/%d/%s" % (self.proc, pid, name))


def start_ticks(text: str) -> int | None:
    """When the process with this text in /proc/PID/stat began, in the kernel's count; None where it has ended."""
    # The name may have blanks and brackets in it. The third field is the state, the 22nd the start.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def started_ticks_of(pid: int, proc: str = "/proc") -> int | None:
    """Return when a process began, in the kernel's count; None where there is no such process."""
    return start_ticks(read("%s/%d/stat" % (proc, pid)))


def executable_of(pid: int, proc: str = "/proc") -> str:
    """Return the name of the file that a process executes. One that was replaced has " (deleted)" behind it."""
    return os.path.basename(link("%s/%d/exe" % (proc, pid)) or "").split(" ", 1)[0]


def in_container(pid: int, proc: str = "/proc") -> bool:
    """Return whether it has a PID namespace that is not the caller's: its pid is another one there (proc(5), NSpid)."""
    return bool(re.search(r"^NSpid:\s*\d+\s+\d", read("%s/%d/status" % (proc, pid)), re.MULTILINE))


def owner_of(pid: int, proc: str = "/proc") -> int | None:
    """Return the real user id of a process; None where there is no such process."""
    found = re.search(r"^Uid:\s*(\d+)", read("%s/%d/status" % (proc, pid)), re.MULTILINE)
    return int(found.group(1)) if found else None


def arguments_of(pid: int, proc: str = "/proc") -> list[str]:
    """Return the words of its command line; none of a process that is gone, or whose memory cannot be read in time."""
    return [word for word in memory_of("%s/%d/cmdline" % (proc, pid), _COMMAND_BYTES).split("\0") if word]


def command_of(words: Sequence[str]) -> str:
    """Return a command line as holders have it: without its secrets, and not longer than people read."""
    from ..command_line import shown

    # No more words than letters: to look through tens of thousands takes a second.
    line = shown(words[:COMMAND_LENGTH])
    return line if len(line) <= COMMAND_LENGTH else line[: COMMAND_LENGTH - 3] + "..."


def scan(devices: Devices, proc: str = "/proc", deadline: float = math.inf) -> Processes:
    """Look once at every process except this one and its children. Processes that end meanwhile are left out.

    `deadline` ends the look, in seconds of time.monotonic(). What is not reached by then is `crowded`.
    """
    seen: dict[int, Seen] = {}
    unreadable = []
    crowded = []
    mounts = RemoteMounts(proc)
    own = {os.getpid(), *child_process.running()}
    missed = []
    for pid in _pids(proc):
        if pid in own and proc == "/proc":
            # A child has the GPUs open for this process (nvml/bounded_session.py). One that was given up and hangs in the driver
            # still holds them, so it counts.
            continue
        if time.monotonic() > deadline:
            seen[pid] = _unseen(proc, pid)
            missed.append(pid)
            continue
        try:
            process, whole = _see(devices, proc, pid, mounts, _FEW_FILES, deadline)
        except (FileNotFoundError, ProcessLookupError):
            # It has ended.
            continue
        except OSError:
            # Not allowed, or no descriptors or memory left for it here: none of these says that it holds nothing.
            unreadable.append(pid)
            process, whole = _unseen(proc, pid), True
        seen[pid] = process
        if not whole:
            crowded.append(pid)
    # Behind all others, so that they hide no other holder.
    slow = []
    for pid in crowded:
        with contextlib.suppress(OSError):
            process, whole = _see(devices, proc, pid, mounts, None, deadline)
            seen[pid] = process
            if not whole:
                slow.append(pid)
    # Those that had no turn at all are named behind those that took the time.
    slow += missed
    complete = os.geteuid() == 0 or 1 in seen
    container = parse_cgroup(read(proc + "/self/cgroup")).container_id
    return Processes(proc, seen, tuple(unreadable), complete, mounts.own, container, tuple(slow))


def _unseen(proc: str, pid: int) -> Seen:
    """A process of which no open files were looked at."""
    return _named(proc, pid, (), _mount_namespace(proc, pid))


def _named(proc: str, pid: int, nodes: Iterable[Node], namespace: str | None) -> Seen:
    name = read("%s/%d/comm" % (proc, pid)).rstrip("\n")
    return Seen(pid, name, tuple(sorted(set(nodes))), namespace)


def _mount_namespace(proc: str, pid: int) -> str | None:
    return link("%s/%d/ns/mnt" % (proc, pid))


def _see(
    devices: Devices, proc: str, pid: int, mounts: RemoteMounts, most: int | None, deadline: float = math.inf
) -> tuple[Seen, bool]:
    """(the process, whether all of its open files were looked at). Raises OSError."""
    found: list[Node] = []
    whole = True
    namespace = _mount_namespace(proc, pid)
    remote = mounts.of(pid, namespace)
    with os.scandir("%s/%d/fd" % (proc, pid)) as entries:
        for count, entry in enumerate(entries):
            if count == most or (count % _EVERY == 0 and time.monotonic() > deadline):
                whole = False
                break
            node = node_of(entry.path, devices, remote)
            if node is not None:
                found.append(node)
    return _named(proc, pid, found, namespace), whole


def _pids(proc: str) -> Iterator[int]:
    for name in os.listdir(proc):
        if name.isdigit():
            yield int(name)
