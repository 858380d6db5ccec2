# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Thousands of files are looked at in one pass, and pathlib would take most of its time.
# ruff: noqa: PTH116, PTH123, PTH208
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
from .holders_devices import Devices, Node
from .holders_model import NAME_LENGTH

_CONTAINER = re.compile(r"(?:(docker|libpod|crio|cri-containerd|nerdctl)-|/(docker|lxc)/)?\b([0-9a-f]{64})\b")
_NAMED_CONTAINER = re.compile(
    r"/(?:lxc\.payload\.|lxc/|systemd-nspawn@|machine-)([^/\n]+?)(?:\.service|\.scope)?(?:/|$)", re.M
)
_RUNTIMES = {"libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}
_UNIT = re.compile(r"([^/\n]+\.(?:service|scope))(?:/|$)", re.M)
#: A user's own systemd and what it starts: units of their own names, and containers without root.
_OF_USER = re.compile(r"/user@(\d+)\.service(?:/|$)", re.M)
_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.M)
#: Kubernetes puts a pod's cgroup as pod<uid>; the systemd driver writes the uid's dashes as underscores.
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


@dataclass(frozen=True)
class Seen:
    """A process as the pass saw it. `mount_namespace` is None where /proc does not say."""

    pid: int
    name: str
    nodes: tuple[Node, ...] = ()
    mount_namespace: str | None = None


@dataclass(frozen=True)
class Origin:
    """What started a process, as far as its cgroup tells."""

    unit_or_container: str | None = None
    container_id: str | None = None
    job: str | None = None
    pod: str | None = None


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
        runtime = "podman@%s" % owner if owner not in (None, "0") else "podman"
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


def parse_cgroup(text: str, inside: str | None = None) -> Origin:
    """Unit, container, Slurm job and pod from /proc/PID/cgroup, on cgroup v1, v2 and both.

    `inside` is the id of the container that the caller runs in itself: that one is the host, and says nothing. Of what a user's
    own systemd started only that is told, as user@UID.service: a unit of the same name that the system has is another. The
    runtime of a user's container is told with the UID, as podman@1000, for the same reason.
    """
    if inside:
        text = re.sub(r"/[^\n]*%s[^/\n]*" % re.escape(inside), "", text)
    container = _CONTAINER.search(text)
    named = _NAMED_CONTAINER.search(text)
    units = [unit for unit in _UNIT.findall(text) if not unit.startswith(("init.scope", "session-"))]
    job = _SLURM_JOB.search(text)
    pod = _POD.search(text)
    owner = _OF_USER.search(text)
    what = "user@%s.service" % owner.group(1) if owner else units[-1] if units else None
    if named and not container:
        what = "container %s" % named.group(1)
    if container:
        runtime = container.group(1) or container.group(2) or ""
        runtime = _RUNTIMES.get(runtime, runtime) + ("@" + owner.group(1) if owner else "")
        what = ("%s container %s" % (runtime, container.group(3)[:12])).strip()
    return Origin(
        what,
        container.group(3) if container else named.group(1) if named else None,
        job.group(1) if job else None,
        pod.group(1).replace("_", "-") if pod else None,
    )


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
