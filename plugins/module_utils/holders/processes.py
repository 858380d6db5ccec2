# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# One scan reads thousands of files, and pathlib would take most of the time.
# ruff: noqa: PTH119, PTH208
"""Scan /proc once for the open device nodes and mount namespaces of all processes.

See proc(5).
"""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
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

from ..frozen import frozen
from ..processes import child_process
from ..processes.file_worker import memory_of
from ..processes.proc_files import link, read
from .cgroup import Origin, parse_cgroup
from .devices import Devices, Node
from .hidden_files import IN_RING, Process, Suspect, in_flight, mappings, may_be_node, rings_of
from .model import NAME_LENGTH
from .open_files import Opened, RemoteMounts, node_of
from .tasks import can_compare, folder_of, live_task, other_tasks, tables

#: Maximum number of characters of a command line in a holder, and of bytes that are read.
COMMAND_LENGTH, _COMMAND_BYTES = 1000, 1 << 14
#: Maximum number of characters in a holder's command line, and of bytes that are read.
_FEW_FILES = 1 << 10
#: Maximum number of open files per process in the first pass. Processes with more are read in the second pass.
_EVERY = 256
# The time is checked after this many open files.
_MOST_ROUNDS = 3
#: Name of Podman's monitor, the parent process of each container, and a pattern for container names (libpod,
#: define.NameRegex).
_MONITOR = "conmon"
_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


@frozen
class Seen:
    """A scanned process.

    `mount_namespace` is None if /proc does not show it. `task` is a running thread if the main thread has ended,
    otherwise None.
    """

    pid: int
    name: str
    nodes: tuple[Node, ...] = ()
    mount_namespace: str | None = None
    task: int | None = None


@frozen
class Times:
    """The times of a process (proc(5), stat). A time that /proc does not show is None."""

    #: Start as a Unix time.
    started_seconds: float | None = None
    #: Start in clock ticks since the start of the kernel.
    started_ticks: int | None = None
    #: CPU time of all running and ended threads, without child processes.
    cpu_seconds: float | None = None


@frozen
class Processes:
    """All processes of the host.

    `unreadable` has the PIDs of processes whose open files the caller may not read.
    """

    proc: str
    seen: dict[int, Seen]
    unreadable: tuple[int, ...]
    #: Whether /proc shows other users' processes (mount option hidepid).
    complete: bool
    own_mount_namespace: str | None
    #: Id of the container in which this process runs.
    own_container: str | None = None
    #: PIDs of processes whose open files were not all read in time. Partly read processes come first.
    crowded: tuple[int, ...] = ()
    # Processes that may hold a GPU.
    suspects: tuple[Suspect, ...] = ()
    # Open files of the driver, including those of `own` processes: (task id, descriptor, major, minor).
    driver_files: tuple[tuple[int, int, int, int], ...] = ()
    # Number of mappings of the driver's nodes, by device number.
    driver_mappings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # PIDs of this process and its children. Their open files are only compared with the driver's use count.
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
        """Return whether root runs the process and it executes a file named `program`.

        Checks all user ids. Does not use the name, arguments and environment: a process chooses them, and a setuid
        program gets them from its caller.
        """
        return self.runs_as_root(pid) and executable_of(pid, self.proc) == program

    def runs_as_root(self, pid: int) -> bool:
        """Return whether all user ids of the process are root's."""
        ids = re.search(r"^Uid:((?:\s+\d+)+)$", self._text(pid, "status"), re.MULTILINE)
        return ids is not None and set(ids.group(1).split()) == {"0"}

    def was_killed(self, pid: int) -> bool:
        """Return whether the process was killed but hangs in the kernel.

        It may hang for example in a call to the driver.
        """
        return child_process.was_killed(self._text(pid, "status"))

    def in_container(self, pid: int) -> bool:
        return in_container(pid, self.proc)

    def parent(self, pid: int) -> int | None:
        parent = self._status(pid, "PPid")
        return int(parent) if parent else None

    def command(self, pid: int) -> str | None:
        """Return the command line of a process without secrets.

        If the command line is empty, the process name in brackets is returned, as in ps.
        """
        words = self.arguments(pid)
        if words:
            return command_of(words)
        return "[%s]" % self.seen[pid].name if pid in self.seen else None

    def folder(self, pid: int) -> str:
        """Return a process's folder in /proc.

        If its main thread has ended, returns the folder of a running thread.
        """
        return folder_of(self.proc, pid, self.seen[pid].task if pid in self.seen else None)

    def arguments(self, pid: int) -> list[str]:
        return _arguments(self.folder(pid))

    def environment(self, pid: int) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in memory_of(self.folder(pid) + "/environ").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def origin(self, pid: int) -> Origin:
        """Return the unit, container, job and pod of a process.

        They are read from the process's cgroup. For a container without a cgroup, they are read from Podman's monitor.
        """
        origin = parse_cgroup(self._text(pid, "cgroup"), self.own_container)
        monitor = self._monitor(pid)
        words = self.arguments(monitor) if monitor is not None else []
        if monitor is None or "-n" not in words[:-1]:
            return origin
        owner = self._status(monitor, "Uid")
        # Only root's podman is named "podman". A monitor with an unknown owner does not count as root's.
        runtime = "podman" if owner == "0" else "podman@%s" % (owner or "unknown")
        given = words[words.index("-n") + 1]
        name = "%s container %s" % (runtime, given if _CONTAINER_NAME.fullmatch(given) else "of no name")
        return Origin(name, origin.container_id, origin.job, origin.pod)

    def pods(self) -> set[str]:
        """Return the UIDs of the pods that have a running process."""
        origins = (parse_cgroup(self._text(pid, "cgroup"), self.own_container) for pid in self.seen)
        return {origin.pod for origin in origins if origin.pod}

    def booted(self) -> float | None:
        """Return the start time of PID 1 as a Unix time.

        The kernel may have started earlier, because this host may be a container.
        """
        return self.times(1).started_seconds

    def times(self, pid: int) -> Times:
        """Return a process's start time and CPU time.

        Both come from one read of /proc/PID/stat, because another process could get the PID between two reads.
        """
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
        match = re.search(r"^btime (\d+)$", read(self.proc + "/stat"), re.MULTILINE)
        return int(match.group(1)) if match else None

    def _monitor(self, pid: int) -> int | None:
        """Return the podman monitor of a container's process, or None.

        A monitor that runs inside a container is ignored.
        """
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
        match = re.search(r"^%s:\s*(\d+)" % key, self._text(pid, "status"), re.MULTILINE)
        return match.group(1) if match else None

    def _text(self, pid: int, name: str) -> str:
        # `stat` must be the file of the whole process, not of one thread.
        folder = "%s/%d" % (self.proc, pid) if name == "stat" else self.folder(pid)
        return read("%s/%s" % (folder, name))


def start_ticks(text: str) -> int | None:
    """Return the start time in clock ticks from the text of /proc/PID/stat.

    Returns None if the process, which means all its threads, has ended. State Z alone means only that the main thread
    has ended.
    """
    # The name may contain blanks and brackets. The fields are: 3 the state, 20 the number of threads, 22 the start
    # time.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= 19 or (fields[0] in "ZX" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


def started_ticks_of(pid: int, proc: str = "/proc") -> int | None:
    """Return the start time of a process in clock ticks.

    Returns None if the process does not exist or has ended.
    """
    text = read("%s/%d/stat" % (proc, pid))
    if _state(text) in _ENDED and not any(_runs(proc, pid, task) for task in other_tasks(proc, pid)):
        # The number of threads includes ended threads that a debugger has not reaped.
        return None
    return start_ticks(text)


_ENDED = ("Z", "X", "")


def _runs(proc: str, pid: int, task: int) -> bool:
    return _state(read("%s/%d/task/%d/stat" % (proc, pid, task))) not in _ENDED


def _state(text: str) -> str:
    """Return the state of a task from its stat file, or "" if it has ended."""
    return text.rpartition(")")[2][1:2]


def executable_of(pid: int, proc: str = "/proc") -> str:
    """Return the name of the file that a process executes.

    Removes the suffix " (deleted)" of a replaced file.
    """
    return os.path.basename(link("%s/%d/exe" % (proc, pid)) or "").split(" ", 1)[0]


def in_container(pid: int, proc: str = "/proc") -> bool:
    """Return whether a process is in another PID namespace (proc(5), NSpid)."""
    return bool(re.search(r"^NSpid:\s*\d+\s+\d", read("%s/%d/status" % (proc, pid)), re.MULTILINE))


def owner_of(pid: int, proc: str = "/proc") -> int | None:
    """Return the real user id of a process, or None if it does not exist."""
    match = re.search(r"^Uid:\s*(\d+)", read("%s/%d/status" % (proc, pid)), re.MULTILINE)
    return int(match.group(1)) if match else None


def arguments_of(pid: int, proc: str = "/proc") -> list[str]:
    """Return the words of a command line.

    Returns an empty list if the process has ended or does not answer.
    """
    return _arguments("%s/%d" % (proc, pid))


def _arguments(folder: str) -> list[str]:
    return [word for word in memory_of(folder + "/cmdline", _COMMAND_BYTES).split("\0") if word]


def command_of(words: Sequence[str]) -> str:
    """Return a command line for a holder, truncated and without secrets."""
    from ..processes.command_line import shown

    # Limit the number of words too, because searching tens of thousands of words for secrets takes a second.
    line = shown(words[:COMMAND_LENGTH])
    return line if len(line) <= COMMAND_LENGTH else line[: COMMAND_LENGTH - 3] + "..."


def scan(devices: Devices, proc: str = "/proc", deadline: float = math.inf) -> Processes:
    """Examine every process once, except this process and its children.

    Processes that end during the scan are left out. The scan ends at `deadline` (seconds of time.monotonic()). The
    result's `crowded` has the processes that were not read by then.
    """
    return _Scan(devices, proc, deadline).run()


class _Scan:
    """The state of one scan."""

    def __init__(self, devices: Devices, proc: str, deadline: float) -> None:
        self._devices, self._proc, self._deadline = devices, proc, deadline
        # Running children of this process have the GPUs open for it (nvml/bounded_session.py), so they are no holders.
        # An abandoned child that hangs is a holder.
        self._own = frozenset({os.getpid(), *child_process.running()} if proc == "/proc" else ())
        self._mounts = RemoteMounts(proc)
        self._compare = can_compare(proc)
        self._seen: dict[int, Seen] = {}
        self._opened: dict[int, Opened] = {}
        self._unreadable: list[int] = []
        self._crowded: list[int] = []
        # PIDs of processes that were not examined before the deadline.
        self._missed: list[int] = []
        self._done: set[int] = set()

    def run(self) -> Processes:
        for _round in range(_MOST_ROUNDS):
            started = [pid for pid in _pids(self._proc) if pid not in self._done]
            if not started:
                break
            for pid in started:
                self._examine(pid)
        # Read processes with many files last, so that the time limit does not hide other holders.
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
        # List partly read processes first, because they took the most time.
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
            # The process has ended.
            return
        except OSError:
            # Either the caller may not read the process, or this process lacks descriptors or memory. In both cases,
            # the process may hold a GPU.
            self._unreadable.append(pid)
            process, whole = self._unseen(pid), True
        self._seen[pid] = process
        if not whole:
            self._crowded.append(pid)

    def _unseen(self, pid: int) -> Seen:
        """Return a process whose files were not read, with no nodes."""
        return Seen(pid, self._name(pid), (), _mount_namespace("%s/%d" % (self._proc, pid)))

    def _name(self, pid: int) -> str:
        return read("%s/%d/comm" % (self._proc, pid)).rstrip("\n")

    def _see(self, pid: int, most: int | None) -> tuple[Seen, bool]:
        """Return (process, whether all its open files were read). Raises OSError."""
        nodes: set[Node] = set()
        opened = self._opened[pid] = Opened([], [], [])
        namespace = _mount_namespace("%s/%d" % (self._proc, pid))
        task = live_task(self._proc, pid) if namespace is None else None
        if task is not None:
            namespace = _mount_namespace(folder_of(self._proc, pid, task))
        count, whole = 0, True
        for task_id, folder in tables(self._proc, pid, self._compare):
            try:
                task_namespace = namespace if task_id == pid else _mount_namespace(folder)
                remote = self._mounts.of(folder, task_namespace)
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
                if task_id == pid:
                    raise
                # The thread has ended.
            if not whole:
                break
        return Seen(pid, self._name(pid), tuple(sorted(nodes)), namespace, task), whole

    def _hidden(self, slow: list[int]) -> tuple[dict[tuple[int, int], int], tuple[Suspect, ...]]:
        """Add the nodes that processes keep open without a file descriptor.

        Returns (number of mappings of the driver's nodes by device number, suspects).
        """
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
        # Skip sockets that the init process also has open. They belong to the host's services, which receive their
        # files eventually. For example, the journal receives long messages as files.
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
        # The main thread may have ended during the scan.
        task = live_task(self._proc, seen.pid) if seen.task is None else seen.task
        folder = folder_of(self._proc, seen.pid, task)
        return Process(seen.pid, folder, self._mounts.devices(seen.mount_namespace))

    def _of_rings(self, member: Process, paths: Sequence[str], mapped: Sequence[int]) -> list[Suspect]:
        """Return a suspect if a process's rings may hold a node.

        Without a driver, nodes are identified by name.
        """
        names, inodes = rings_of(member.folder, paths) if paths else ([], [])
        known = [name for one in names if one is not None for name in one]
        if not self._devices.has_driver:
            self._add(member.pid, [self._by_name(name) for name in known])
            known = []
        # A mapped ring may have no descriptor (IORING_REGISTER_RING_FDS). /proc then does not show its registered
        # files.
        if None in names or set(mapped) - set(inodes) or any(map(may_be_node, known)):
            return [Suspect(member.pid, IN_RING)]
        return []

    def _by_name(self, path: str) -> Node | None:
        """Return the node for a path or file name.

        Returns None for a path outside the folders with device nodes.
        """
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
