# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Thousands of files are looked at in one pass, and pathlib would take most of its time.
# ruff: noqa: PTH119, PTH208
"""Scan /proc once: which process keeps which device nodes open, and in which mount namespace it lives (proc(5))."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import time
from dataclasses import field, replace
from functools import cached_property
from typing import Iterator, Mapping, Sequence

from .. import child_process
from ..file_worker import memory_of
from ..frozen import frozen
from ..proc_files import link, read
from .cgroup import Origin, parse_cgroup
from .devices import Devices, Node
from .hidden_files import IN_RING, Process, Suspect, in_flight, mappings, may_be_node, rings_of
from .model import NAME_LENGTH
from .open_files import Opened, RemoteMounts, node_of
from .tasks import can_compare, folder_of, live_task, other_tasks, tables

#: Of a command line, which may have two megabytes: what holders show, and what is read of it.
COMMAND_LENGTH, _COMMAND_BYTES = 1000, 1 << 14
#: Open files of a process that are looked at as it comes: more than most have.
_FEW_FILES = 1 << 10
#: After how many of them the time is looked at.
_EVERY = 256
# Scans for processes that started during a scan.
_MOST_ROUNDS = 3
#: What podman keeps above each container, and the names that it takes (libpod, define.NameRegex).
_MONITOR = "conmon"
_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


@frozen
class Seen:
    """A process as the scan saw it. `mount_namespace` is None where /proc does not say.

    `task` is a running thread of a process whose main thread has ended, None of any other process.
    """

    pid: int
    name: str
    nodes: tuple[Node, ...] = ()
    mount_namespace: str | None = None
    task: int | None = None


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
    # Processes that may hold a GPU, which cannot be told.
    suspects: tuple[Suspect, ...] = ()
    # Open files of the driver, those of `own` processes too: (task id, descriptor, major and minor number).
    driver_files: tuple[tuple[int, int, int, int], ...] = ()
    # Mappings of the driver's nodes, by device number.
    driver_mappings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # This process and its children, whose open files are counted only.
    own: frozenset[int] = frozenset()

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

    def folder(self, pid: int) -> str:
        """Return the folder in /proc that shows a process: a running thread's if its main thread has ended."""
        return folder_of(self.proc, pid, self.seen[pid].task if pid in self.seen else None)

    def arguments(self, pid: int) -> list[str]:
        return _arguments(self.folder(pid))

    def environment(self, pid: int) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in memory_of(self.folder(pid) + "/environ").split("\0"))
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
        # Start and CPU time of the process, and not of one thread.
        folder = "%s/%d" % (self.proc, pid) if name == "stat" else self.folder(pid)
        return read("%s/%s" % (folder, name))


def start_ticks(text: str) -> int | None:
    """Return when the process with this text in /proc/PID/stat began, in the kernel's count; None if it has ended.

    A process has ended when all of its threads have: a main thread that ended is in state Z while others run.
    """
    # The name may have blanks and brackets in it. The third field is the state, the 20th the threads, the 22nd the start.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= 19 or (fields[0] in "ZX" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


def started_ticks_of(pid: int, proc: str = "/proc") -> int | None:
    """Return when a process began, in the kernel's count; None if there is no such process, or all of its threads have ended."""
    text = read("%s/%d/stat" % (proc, pid))
    if _state(text) in _ENDED and not any(_runs(proc, pid, task) for task in other_tasks(proc, pid)):
        # Threads that a debugger has not waited for are counted, and have ended.
        return None
    return start_ticks(text)


_ENDED = ("Z", "X", "")


def _runs(proc: str, pid: int, task: int) -> bool:
    return _state(read("%s/%d/task/%d/stat" % (proc, pid, task))) not in _ENDED


def _state(text: str) -> str:
    """Return the state of a task by its text in /proc/PID/stat; empty if it is gone."""
    return text.rpartition(")")[2][1:2]


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
    return _arguments("%s/%d" % (proc, pid))


def _arguments(folder: str) -> list[str]:
    return [word for word in memory_of(folder + "/cmdline", _COMMAND_BYTES).split("\0") if word]


def command_of(words: Sequence[str]) -> str:
    """Return a command line as holders have it: without its secrets, and not longer than people read."""
    from ..command_line import shown

    # No more words than letters: to look through tens of thousands takes a second.
    line = shown(words[:COMMAND_LENGTH])
    return line if len(line) <= COMMAND_LENGTH else line[: COMMAND_LENGTH - 3] + "..."


def scan(devices: Devices, proc: str = "/proc", deadline: float = math.inf) -> Processes:
    """Examine every process but this one and its children once. Processes that end meanwhile are left out.

    `deadline` ends the scan, in seconds of time.monotonic(). Processes that are not reached by then are `crowded`.
    """
    return _Scan(devices, proc, deadline).run()


class _Scan:
    """One scan."""

    def __init__(self, devices: Devices, proc: str, deadline: float) -> None:
        self._devices, self._proc, self._deadline = devices, proc, deadline
        # A child has the GPUs open for this process (nvml/bounded_session.py). One that was given up and hangs in the driver
        # still holds them, so it counts.
        self._own = frozenset({os.getpid(), *child_process.running()} if proc == "/proc" else ())
        self._mounts = RemoteMounts(proc)
        self._compare = can_compare(proc)
        self._seen: dict[int, Seen] = {}
        self._opened: dict[int, Opened] = {}
        self._unreadable: list[int] = []
        self._crowded: list[int] = []
        # Those that had no turn at all.
        self._missed: list[int] = []
        self._done: set[int] = set()

    def run(self) -> Processes:
        for _round in range(_MOST_ROUNDS):
            started = [pid for pid in _pids(self._proc) if pid not in self._done]
            if not started:
                break
            for pid in started:
                self._examine(pid)
        # Behind all others, so that they hide no other holder.
        slow = []
        for pid in self._crowded:
            with contextlib.suppress(OSError):
                process, whole = self._see(pid, None)
                self._seen[pid] = process
                if not whole:
                    slow.append(pid)
        driver_mappings, suspects = self._hidden(slow)
        files = {file for opened in self._opened.values() for file in opened.driver}
        for pid in self._own:
            self._seen.pop(pid, None)
        # Processes that took the time are named before those that had no turn.
        crowded = tuple(pid for pid in slow + self._missed if pid not in self._own)
        complete = os.geteuid() == 0 or 1 in self._seen
        container = parse_cgroup(read(self._proc + "/self/cgroup")).container_id
        return Processes(
            self._proc,
            self._seen,
            tuple(self._unreadable),
            complete,
            self._mounts.own,
            container,
            crowded,
            suspects,
            tuple(sorted(files)),
            driver_mappings,
            self._own,
        )

    def _examine(self, pid: int) -> None:
        self._done.add(pid)
        if pid in self._own and not self._devices.has_driver:
            return
        if time.monotonic() > self._deadline:
            self._seen[pid] = self._unseen(pid)
            self._missed.append(pid)
            return
        try:
            process, whole = self._see(pid, _FEW_FILES)
        except (FileNotFoundError, ProcessLookupError):
            # It has ended.
            return
        except OSError:
            # Not allowed, or no descriptors or memory left for it here: none of these says that it holds nothing.
            self._unreadable.append(pid)
            process, whole = self._unseen(pid), True
        self._seen[pid] = process
        if not whole:
            self._crowded.append(pid)

    def _unseen(self, pid: int) -> Seen:
        """Return a process of which no open files were read."""
        return Seen(pid, self._name(pid), (), _mount_namespace("%s/%d" % (self._proc, pid)))

    def _name(self, pid: int) -> str:
        return read("%s/%d/comm" % (self._proc, pid)).rstrip("\n")

    def _see(self, pid: int, most: int | None) -> tuple[Seen, bool]:
        """Return (the process, whether all of its open files were read). Raises OSError."""
        nodes: set[Node] = set()
        opened = self._opened[pid] = Opened([], [], [])
        namespace = _mount_namespace("%s/%d" % (self._proc, pid))
        task = live_task(self._proc, pid) if namespace is None else None
        if task is not None:
            namespace = _mount_namespace(folder_of(self._proc, pid, task))
        count, whole = 0, True
        for each, folder in tables(self._proc, pid, self._compare):
            try:
                its = namespace if each == pid else _mount_namespace(folder)
                remote = self._mounts.of(folder, its)
                with os.scandir(folder + "/fd") as entries:
                    for entry in entries:
                        if count == most or (count % _EVERY == 0 and time.monotonic() > self._deadline):
                            whole = False
                            break
                        count += 1
                        node = node_of(entry.path, self._devices, remote, opened)
                        if node is not None:
                            nodes.add(node)
            except (FileNotFoundError, ProcessLookupError):
                if each == pid:
                    raise
                # The thread has ended.
            if not whole:
                break
        return Seen(pid, self._name(pid), tuple(sorted(nodes)), namespace, task), whole

    def _hidden(self, slow: list[int]) -> tuple[dict[tuple[int, int], int], tuple[Suspect, ...]]:
        """Add nodes that are open without a descriptor to processes; return mappings by device, and suspects."""
        if not self._devices.can_be_open:
            return {}, ()
        skip = {*self._own, *self._unreadable, *self._missed}
        members = [self._member(seen) for pid, seen in self._seen.items() if pid not in skip]
        mapped = mappings(members, sorted(self._devices.majors), self._deadline)
        suspects = list(mapped.suspects)
        counts: dict[tuple[int, int], int] = {}
        for pid, numbers in mapped.devices.items():
            for number in numbers:
                counts[number] = counts.get(number, 0) + 1
            self._add(pid, [self._devices.numbered_node(*number) for number in numbers])
            self._add(pid, [self._by_name(path) for path in mapped.paths[pid]])
        for member in members:
            rings = self._opened[member.pid].rings if member.pid in self._opened else []
            if rings or mapped.rings.get(member.pid):
                suspects += self._of_rings(member, rings, mapped.rings.get(member.pid, ()))
        # The init process passes its sockets to the host's own services, which receive as fast as the host lets them. The journal
        # gets long messages as files.
        inits = {target for target, _path in self._opened[1].sockets} if 1 in self._opened else set()
        sockets = [
            (pid, target, path)
            for pid, opened in self._opened.items()
            if pid not in skip
            for target, path in opened.sockets
            if target not in inits
        ]
        suspects += in_flight(sockets, self._deadline)
        if time.monotonic() > self._deadline:
            slow += [one.pid for one in suspects if one.pid not in slow]
        return counts, tuple(suspects)

    def _member(self, seen: Seen) -> Process:
        # The main thread may have ended since.
        task = live_task(self._proc, seen.pid) if seen.task is None else seen.task
        folder = folder_of(self._proc, seen.pid, task)
        return Process(seen.pid, folder, self._mounts.devices(seen.mount_namespace))

    def _of_rings(self, member: Process, paths: Sequence[str], mapped: Sequence[int]) -> list[Suspect]:
        """Return whether the rings of a process make it a suspect. On a host without a driver names are nodes."""
        names, inodes = rings_of(member.folder, paths) if paths else ([], [])
        known = [name for one in names if one is not None for name in one]
        if not self._devices.has_driver:
            self._add(member.pid, [self._by_name(name) for name in known])
            known = []
        # A ring that is mapped and has no descriptor (IORING_REGISTER_RING_FDS) tells nothing of its files.
        if None in names or set(mapped) - set(inodes) or any(map(may_be_node, known)):
            return [Suspect(member.pid, IN_RING)]
        return []

    def _by_name(self, path: str) -> Node | None:
        """Return the node that a path or a file's name names; None outside of the folders of nodes."""
        folders = (self._devices.dev + "/", "/dev/")
        if "/" in path and not path.startswith(folders):
            return None
        return self._devices.named_node("/" + path.replace(" (deleted)", ""))

    def _add(self, pid: int, nodes: Sequence[Node | None]) -> None:
        seen = self._seen[pid]
        self._seen[pid] = replace(seen, nodes=tuple(sorted({*seen.nodes, *(node for node in nodes if node)})))


def _mount_namespace(folder: str) -> str | None:
    return link(folder + "/ns/mnt")


def _pids(proc: str) -> Iterator[int]:
    for name in os.listdir(proc):
        if name.isdigit():
            yield int(name)
