# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report to each tenant the memory that NVML sees beyond its own accounting (openfleet-vgpu-agent.service).

Contexts and modules use memory that no CUDA call shows. NVML identifies processes by host PIDs, which a process in a container
does not know, so it cannot ask NVML itself. The agent asks once a second for all processes and writes a file per tenant that
only root can write (formats/nvml_report.h of the role vgpu_limiter).

The tenant of a process is determined from the host's /proc: its mounts, environment and groups. Data that a process writes into
its tenant's region only selects a slot of that tenant.

A separate process calls NVML, so a hanging or crashing driver does not affect the turnstiles. It reports calls that do not
return, and they hold no lock (nvml/bounded_session.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import re
import stat
import struct
import time
import uuid
from pathlib import Path
from typing import Callable, Dict, Mapping, Sequence, Tuple

from ... import child_process
from ...durable import replacing
from ...errors import FleetError, NvmlError, UnansweredCallError
from ...file_worker import one_look
from ...frozen import frozen
from ...holders.tasks import live_task
from ...log_limit import LimitedLog
from ...nvml.bounded_session import BoundedSession
from ...proc_files import link, read
from ...transaction import looking
from . import files as vgpu_files
from .host import VgpuHost
from .model import MPS, VgpuTenant, region_path
from .observe import held

#: Seconds between runs, between NVML queries while no tenant has a counted process, and after an NVML failure.
_TICK_SECONDS, _IDLE_SECONDS, _FAILED_SECONDS = 1.0, 10.0, 30.0
#: Seconds for finding the tenants of processes, and validity of a result in seconds.
_WHOSE_SECONDS, _WHOSE_HOLDS_SECONDS = 5.0, 10.0
_REGION_MAGIC, _GPUS, _SLOTS, _LOCK_SLOTS = 0x3155504756464F00, 16, 1024, (1 << 24) + 1
#: region.h: magic, version, size, lock, slot_limit. GPU: uuid, whether it is used. Slot: state, nonce, pid, start, name,
#: namespace, time of the last context change, used and context bytes of each GPU.
_REGION, _GPU, _SLOT = struct.Struct("=QIIII40x"), struct.Struct("=16sI28x"), struct.Struct("=IIqq24sQq16Q16Q")
_SLOTS_AT = _REGION.size + _GPUS * _GPU.size
_NONCE_AT, _NONCE_MASK, _USED = 4, 0xFFFFF, 1
#: nvml_report.h: magic, sequence. Written, asked, GPUs, rows, slot and nonce of unslotted processes, columns. A row.
_MAGIC = 0x4E55504756464F00
_START, _WRITTEN = struct.Struct("=QQ"), struct.Struct("=q")
_HEAD, _ROW = struct.Struct("=qIIII256s16Q"), struct.Struct("=II16Q16Q")
_NOT_NAMED, _NO_SLOT = (1 << 64) - 1, (1 << 32) - 1
#: struct flock, and F_OFD_SETLK of fcntl.h, named by Python since 3.9.
_FLOCK, _SET_LOCK = struct.Struct("@hhqqi4x"), 37
_STATUS = re.compile(r"^(Uid|Gid|Groups|NSpid):[ \t]*(.*)$", re.MULTILINE)

Log = Callable[[str], None]
#: Bytes by pid, by UUID of the GPU.
Named = Mapping[str, Mapping[int, int]]


@frozen
class Slot:
    """A process's slot in its tenant's region, as written by the process."""

    number: int
    nonce: int
    pid: int
    pid_namespace: int
    used: Tuple[int, ...]


@frozen
class Region:
    """The accounting of a tenant's processes: slots, and GPU indexes by UUID without `GPU-`."""

    slots: Tuple[Slot, ...]
    places: Mapping[str, int]


_NO_REGION = Region((), {})


def read_region(path: Path) -> Region:
    """Return a region's content, empty if invalid. Any user may have written it."""
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _NO_REGION
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _NO_REGION
        head = os.pread(descriptor, _SLOTS_AT, 0)
        magic, version, _size, _lock, limit = _REGION.unpack_from(head)
        if (magic, version) != (_REGION_MAGIC, vgpu_files.REGION_VERSION):
            return _NO_REGION
        gpus = [_GPU.unpack_from(head, _REGION.size + place * _GPU.size) for place in range(_GPUS)]
        data = os.pread(descriptor, min(limit, _SLOTS) * _SLOT.size, _SLOTS_AT)
        slots = (_slot(descriptor, number, data) for number in range(len(data) // _SLOT.size))
        places = {raw.hex(): place for place, (raw, taken) in enumerate(gpus) if taken}
        return Region(tuple(filter(None, slots)), places)
    except (OSError, struct.error):
        return _NO_REGION
    finally:
        os.close(descriptor)


def _slot(descriptor: int, number: int, data: bytes) -> Slot | None:
    """Return the slot of a living process, else None. The tenant's processes clear slots of dead processes."""
    state, nonce, pid, _start, _name, namespace, _changed, *figures = _SLOT.unpack_from(data, number * _SLOT.size)
    if state != _USED or not held(descriptor, _LOCK_SLOTS + number):
        return None
    return Slot(number, nonce, pid, namespace, tuple(figures[:_GPUS]))


def _column(gpu_uuid: str) -> str:
    """Return the UUID in hexadecimal digits, as in a region. Raises ValueError if it is not a UUID."""
    return uuid.UUID(gpu_uuid.partition("-")[2]).hex


@frozen
class Process:
    """A process as the kernel reports it: tenant key (None without a tenant), and PID in its PID namespace."""

    key: str | None
    pid_inside: int
    pid_namespace: int


class Processes:
    """Find the tenants of processes reported by NVML."""

    def __init__(self, root: Path, proc: str = "/proc") -> None:
        self._host, self._proc = VgpuHost(root=str(root), proc=proc), proc
        #: By PID: start time, expiry of the result, result.
        self._known: Dict[int, Tuple[str, float, Process]] = {}

    def tenants(self) -> list[VgpuTenant]:
        """Return the tenants accounted by the library. Raises FleetError."""
        return [tenant for tenant in self._host.tenants() if tenant.provider != MPS]

    def of(self, pids: Sequence[int], tenants: Sequence[VgpuTenant]) -> Dict[int, Process]:
        """Return the processes that belong to tenants, by PID. Results expire, because a process may exec another program."""
        now = time.monotonic()
        known, self._known = self._known, {}
        with one_look(now + _WHOSE_SECONDS):
            for pid in pids:
                started = read("%s/%d/stat" % (self._proc, pid)).rpartition(")")[2].split(" ")[20:21]
                if not started:
                    continue
                entry = known.get(pid)
                if entry is None or entry[0] != started[0] or entry[1] < now:
                    entry = (started[0], now + _WHOSE_HOLDS_SECONDS, self._look(pid, tenants))
                self._known[pid] = entry
        return {pid: entry[2] for pid, entry in self._known.items() if entry[2].key is not None}

    def _look(self, pid: int, tenants: Sequence[VgpuTenant]) -> Process:
        status = dict(_STATUS.findall(read("%s/%d/status" % (self._proc, pid))))
        names = self._host.names_of(pid) or set()
        owner = next((one for one in tenants if names.intersection(one.names) and _may_be(one, status)), None)
        task = live_task(self._proc, pid) or pid
        namespace = re.search(r"\d+", link("%s/%d/ns/pid" % (self._proc, task)) or "")
        inside = status.get("NSpid", str(pid)).split()
        return Process(
            None if owner is None else owner.key,
            int(inside[-1]) if inside else pid,
            int(namespace.group()) if namespace else 0,
        )


def _may_be(tenant: VgpuTenant, status: Mapping[str, str]) -> bool:
    """Return whether the user and group IDs allow the process to write the tenant's region, as its processes must."""
    if tenant.group is None or status.get("Uid", "").split()[1:2] == ["0"]:
        return True
    try:
        group = str(grp.getgrnam(tenant.group).gr_gid)
    except KeyError:
        return False
    return group in (*status.get("Gid", "").split()[1:2], *status.get("Groups", "").split())


class OthersSlot:
    """A slot for the tenant's processes without a slot. A lock keeps it alive, as for slots of processes."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor, self._inode = path, -1, 0
        self.number, self.nonce = _NO_SLOT, 0

    def take(self) -> None:
        """Take a free slot, if any."""
        with contextlib.suppress(OSError):
            if self._descriptor >= 0 and self._path.stat().st_ino == self._inode:
                return
            self.leave()
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._descriptor = os.open(str(self._path), flags)
            self._inode = os.fstat(self._descriptor).st_ino
            # Search from the end, because processes take the first free slot.
            if not any(self._lock(number) for number in reversed(range(_SLOTS))):
                self.leave()

    def _lock(self, number: int) -> bool:
        """Lock the slot if it is free. A new nonce distinguishes this owner from earlier ones."""
        at = _SLOTS_AT + number * _SLOT.size
        if self._state(at)[0] == _USED:
            return False
        lock = [_LOCK_SLOTS + number, 1, 0]
        try:
            fcntl.fcntl(self._descriptor, _SET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *lock))
        except OSError:
            return False
        state, nonce = self._state(at)
        if state == _USED:
            fcntl.fcntl(self._descriptor, _SET_LOCK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, *lock))
            return False
        self.number, self.nonce = number, (nonce + 1) & _NONCE_MASK
        os.pwrite(self._descriptor, struct.pack("=I", self.nonce), at + _NONCE_AT)
        return True

    def _state(self, at: int) -> Tuple[int, int]:
        state, nonce = struct.unpack("=II", os.pread(self._descriptor, 8, at).ljust(8, b"\0"))
        return state, nonce

    def leave(self) -> None:
        """Release the slot. The tenant's processes clear it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.number = -1, _NO_SLOT


@frozen
class Found:
    """Bytes reported by NVML for each column and PID, and the processes of one tenant."""

    columns: Sequence[str]
    named: Named
    processes: Mapping[int, Process]

    def bytes_of(self, pid: int, column: str) -> int | None:
        return self.named[column].get(pid)


class Report:
    """The report file of one tenant."""

    def __init__(self, root: Path, key: str) -> None:
        self._path = root / vgpu_files.nvml_report_path(key)
        self._others = OthersSlot(root / region_path(key))
        self._sequence = 0
        #: Content after the time of writing, empty before the first NVML query.
        self._content = b""
        #: Last reported bytes by slot, nonce and column, and for processes without a slot by PID and column.
        self._beyond: Dict[Tuple[int, int, str], int] = {}
        self._unslotted: Dict[Tuple[int, str], int] = {}

    @property
    def names_others(self) -> bool:
        """Return whether NVML reported processes of the tenant without a slot."""
        return bool(self._unslotted)

    def tell(self, asked_ns: int, before: Region, after: Region, found: Found) -> None:
        """Update the content from an NVML query made between the two region reads."""
        slots = _slots_of(found.processes, after)
        counted = {(slot.number, slot.nonce): slot.used for slot in before.slots}
        rows, beyond = [], {}
        for pid, slot in slots.items():
            earlier = counted.get((slot.number, slot.nonce), slot.used)
            now, steady = [_NOT_NAMED] * _GPUS, [0] * _GPUS
            for index, column in enumerate(found.columns):
                memory, place = found.bytes_of(pid, column), after.places.get(column)
                if memory is None or place is None:
                    continue
                # Allocations may change during the query. Use the smaller excess, so that no memory counts twice.
                now[index] = max(0, memory - max(earlier[place], slot.used[place]))
                beyond[slot.number, slot.nonce, column] = now[index]
                steady[index] = min(now[index], self._beyond.get((slot.number, slot.nonce, column), 0))
            if now != [_NOT_NAMED] * _GPUS:
                rows.append(_ROW.pack(slot.number, slot.nonce, *now, *steady))
        self._beyond = beyond
        others = self._others_of([pid for pid in found.processes if pid not in slots], found)
        uuids = b"".join(map(bytes.fromhex, found.columns))
        counts = (len(found.columns), len(rows), self._others.number, self._others.nonce)
        self._content = _HEAD.pack(asked_ns, *counts, uuids, *others) + b"".join(rows)

    def _others_of(self, pids: Sequence[int], found: Found) -> list[int]:
        """Return bytes by column of processes without a slot, if reported twice. Starting processes take a slot soon."""
        others, now = [0] * _GPUS, {}
        for index, column in enumerate(found.columns):
            for pid in pids:
                memory = found.bytes_of(pid, column)
                if memory is not None:
                    now[pid, column] = memory
                    others[index] += min(memory, self._unslotted.get((pid, column), 0))
        self._unslotted = now
        if any(others):
            self._others.take()
        else:
            self._others.leave()
        return others

    def write(self) -> None:
        """Write the file, also without a new query, so that processes know that the agent runs. Raises OSError."""
        if not self._content:
            return
        content = _WRITTEN.pack(time.monotonic_ns()) + self._content
        if self._sequence == 0 or not self._path.exists():
            self._sequence = 2
            with replacing(self._path, 0o644) as file:
                file.write(_START.pack(_MAGIC, self._sequence) + content)
            return
        descriptor = os.open(str(self._path), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, _START.pack(_MAGIC, self._sequence + 1), 0)
            # Without free space, the odd sequence marks the file as incomplete.
            if os.pwrite(descriptor, content, _START.size) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            self._sequence += 2
            os.pwrite(descriptor, _START.pack(_MAGIC, self._sequence), 0)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the slot of a removed tenant."""
        self._others.leave()


def _slots_of(processes: Mapping[int, Process], region: Region) -> Dict[int, Slot]:
    """Return slots by PID. The PID in a slot is trusted only among one tenant's processes."""
    by_number = {(slot.pid_namespace, slot.pid): slot for slot in region.slots}
    slots = {pid: by_number.get((each.pid_namespace, each.pid_inside)) for pid, each in processes.items()}
    return {pid: slot for pid, slot in slots.items() if slot is not None}


class Reporter:
    """Query NVML for all tenants of the host below `root`, and write their reports."""

    def __init__(self, root: Path, state_directory: str, log: Log = print) -> None:
        self._root, self._state_directory, self._log = root, state_directory, LimitedLog(log)
        self._processes = Processes(root)
        self._reports: Dict[str, Report] = {}
        self._logged = ""
        #: Next NVML query without counted processes, and after a failure, in seconds of time.monotonic().
        self._idle_until = self._failed_until = 0.0

    def serve(self, parent: int) -> int:
        """Report once a second until the agent that started this process ends."""
        while os.getppid() == parent:
            began = time.monotonic()
            self.look()
            time.sleep(max(0.0, began + _TICK_SECONDS - time.monotonic()))
        return 0

    def look(self) -> None:
        """Query NVML and write the reports. Without an answer, nothing is written, and processes ask NVML themselves."""
        if time.monotonic() < self._failed_until:
            return
        try:
            tenants = self._processes.tenants()
            self._follow(tenants)
            before = self._regions()
            asked_ns = time.monotonic_ns()
            named = self._named(tenants) if self._is_due(before) else None
            if named is not None:
                self._tell(tenants, asked_ns, before, named)
            for report in self._reports.values():
                # While a tenant is being written or removed, its folder may be missing.
                with contextlib.suppress(FileNotFoundError):
                    report.write()
            self._logged = ""
        except (OSError, FleetError, ValueError) as error:
            if isinstance(error, NvmlError):
                self._failed_until = time.monotonic() + _FAILED_SECONDS
            text = (
                "processes ask NVML themselves, and those in containers do not know the cost of their contexts: %s"
                % error
            )
            if text != self._logged:
                self._logged = text
                self._log.write("NVML", text)

    def _follow(self, tenants: Sequence[VgpuTenant]) -> None:
        keys = {tenant.key for tenant in tenants}
        for key in set(self._reports) - keys:
            self._reports.pop(key).close()
        for key in keys.difference(self._reports):
            self._reports[key] = Report(self._root, key)

    def _regions(self) -> Dict[str, Region]:
        return {key: read_region(self._root / region_path(key)) for key in self._reports}

    def _is_due(self, regions: Mapping[str, Region]) -> bool:
        """Return whether to query now. Each query opens the GPUs, so it runs rarely without counted processes."""
        used = any(region.slots for region in regions.values()) or any(
            one.names_others for one in self._reports.values()
        )
        if not used and time.monotonic() < self._idle_until:
            return False
        self._idle_until = time.monotonic() + _IDLE_SECONDS
        return True

    def _named(self, tenants: Sequence[VgpuTenant]) -> Named | None:
        """Return the processes on the tenants' GPUs, None while a run changes the host. Raises NvmlError, ValueError."""
        with looking(self._state_directory) as busy:
            if busy is not None:
                return None
            named: Dict[str, Mapping[int, int]] = {}
            with BoundedSession() as session:
                for gpu_uuid in sorted({each for tenant in tenants for each in tenant.gpus}):
                    try:
                        named[_column(gpu_uuid)] = session.memory_by_process(gpu_uuid)
                    except UnansweredCallError:
                        raise
                    except NvmlError:
                        # A lost GPU has no column.
                        continue
            return named

    def _tell(self, tenants: Sequence[VgpuTenant], asked_ns: int, before: Mapping[str, Region], named: Named) -> None:
        after = self._regions()
        pids = sorted({pid for memory in named.values() for pid in memory})
        whose = self._processes.of(pids, tenants)
        for tenant in tenants:
            columns = [column for column in map(_column, tenant.gpus) if column in named]
            own = {pid: process for pid, process in whose.items() if process.key == tenant.key}
            self._reports[tenant.key].tell(asked_ns, before[tenant.key], after[tenant.key], Found(columns, named, own))


def start(root: Path, state_directory: str, log: Log = print) -> int:
    """Start a process that reports until this process ends, and return its PID."""
    parent = os.getpid()
    return child_process.start(lambda: Reporter(root, state_directory, log).serve(parent), [1, 2])
