# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report GPU memory that is missing from the tenants' own accounting.

The service is openfleet-vgpu-agent.service. Contexts and modules use memory that CUDA calls do not show, but NVML does.
A process in a container cannot find itself in NVML's list, because NVML lists host PIDs. So the agent queries NVML once
a second for all processes, and writes one report file per tenant, which only root can change (formats/nvml_report.h in
the role vgpu_limiter).

The agent determines a process's tenant from its mounts, environment and groups in the host's /proc. Data that a process
writes into its tenant's region can only select one of this tenant's slots.

A separate process calls NVML, so that a driver that hangs or crashes does not affect the turnstiles. The process logs
NVML calls that do not return. A call that hangs keeps no lock (nvml/bounded_session.py).
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

from ...durable import replacing
from ...errors import FleetError, NvmlError, UnansweredCallError
from ...frozen import frozen
from ...holders.tasks import live_task
from ...plan.transaction import looking
from ...processes import child_process
from ...processes.file_worker import one_look
from ...processes.log_limit import LimitedLog
from ...processes.proc_files import link, read
from ...vendors.nvidia.nvml.bounded_session import BoundedSession
from . import files as vgpu_files
from .host import VgpuHost
from .model import MPS, VgpuTenant, region_path
from .observe import held

#: Seconds between two reports, between NVML queries while the accounting has no processes, and after a failed NVML
#: query.
_TICK_SECONDS, _IDLE_SECONDS, _FAILED_SECONDS = 1.0, 10.0, 30.0
#: Time limit in seconds for finding processes' tenants, and seconds for which a result is valid.
_WHOSE_SECONDS, _WHOSE_HOLDS_SECONDS = 5.0, 10.0
_REGION_MAGIC, _GPUS, _SLOTS, _LOCK_SLOTS = 0x3155504756464F00, 16, 1024, (1 << 24) + 1
#: Formats from region.h. Region: magic, version, size, lock, slot_limit. GPU: UUID, whether it is used. Slot: state,
#: nonce, pid, start, name, namespace, time of the last context change, and for each GPU the used bytes and the context
#: bytes.
_REGION, _GPU, _SLOT = struct.Struct("=QIIII40x"), struct.Struct("=16sI28x"), struct.Struct("=IIqq24sQq16Q16Q")
_SLOTS_AT = _REGION.size + _GPUS * _GPU.size
_NONCE_AT, _NONCE_MASK, _USED = 4, 0xFFFFF, 1
#: Formats from nvml_report.h. Start: magic, sequence. Then the time of writing. Head: time of the query, number of
#: GPUs, number of rows, slot and nonce for processes without a slot, columns. Then the rows.
_MAGIC = 0x4E55504756464F00
_START, _WRITTEN = struct.Struct("=QQ"), struct.Struct("=q")
_HEAD, _ROW = struct.Struct("=qIIII256s16Q"), struct.Struct("=II16Q16Q")
_NOT_NAMED, _NO_SLOT = (1 << 64) - 1, (1 << 32) - 1
#: struct flock, and fcntl.h's F_OFD_SETLK, which Python only defines since 3.9.
_FLOCK, _SET_LOCK = struct.Struct("@hhqqi4x"), 37
_STATUS = re.compile(r"^(Uid|Gid|Groups|NSpid):[ \t]*(.*)$", re.MULTILINE)

Log = Callable[[str], None]
#: Bytes by PID, by GPU UUID.
Named = Mapping[str, Mapping[int, int]]


@frozen
class Slot:
    """A process's slot in its tenant's region, as the process wrote it."""

    number: int
    nonce: int
    pid: int
    pid_namespace: int
    used: Tuple[int, ...]


@frozen
class Region:
    """The accounting data of a tenant's processes.

    `places` maps each GPU's UUID without `GPU-` to the GPU's position in the slots' lists.
    """

    slots: Tuple[Slot, ...]
    places: Mapping[str, int]


_NO_REGION = Region((), {})


def read_region(path: Path) -> Region:
    """Return the content of a region, or an empty region if it is invalid.

    The content is checked, because any user may have written the file.
    """
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
    """Return the slot if its process is alive, else None.

    The tenant's other processes clear the slots of dead processes.
    """
    state, nonce, pid, _start, _name, namespace, _changed, *figures = _SLOT.unpack_from(data, number * _SLOT.size)
    if state != _USED or not held(descriptor, _LOCK_SLOTS + number):
        return None
    return Slot(number, nonce, pid, namespace, tuple(figures[:_GPUS]))


def _column(gpu_uuid: str) -> str:
    """Return the UUID in hexadecimal digits, as in a region.

    Raises ValueError if `gpu_uuid` is not a UUID.
    """
    return uuid.UUID(gpu_uuid.partition("-")[2]).hex


@frozen
class Process:
    """A process as the kernel reports it.

    `key` is the key of its tenant, or None. `pid_inside` is the PID in its own PID namespace.
    """

    key: str | None
    pid_inside: int
    pid_namespace: int


class Processes:
    """Find the tenants of processes that NVML reports."""

    def __init__(self, root: Path, proc: str = "/proc") -> None:
        self._host, self._proc = VgpuHost(root=str(root), proc=proc), proc
        #: Cached results by PID: when the process started, when the result expires, and the result.
        self._known: Dict[int, Tuple[str, float, Process]] = {}

    def tenants(self) -> list[VgpuTenant]:
        """Return the tenants that the library accounts for. Raises FleetError."""
        return [tenant for tenant in self._host.tenants() if tenant.provider != MPS]

    def of(self, pids: Sequence[int], tenants: Sequence[VgpuTenant]) -> Dict[int, Process]:
        """Return the tenants' processes, by PID.

        Cached results expire, because a process may execute another program.
        """
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
    """Return whether a process's user and groups may write the tenant's region.

    All of the tenant's processes need this permission.
    """
    if tenant.group is None or status.get("Uid", "").split()[1:2] == ["0"]:
        return True
    try:
        group = str(grp.getgrnam(tenant.group).gr_gid)
    except KeyError:
        return False
    return group in (*status.get("Gid", "").split()[1:2], *status.get("Groups", "").split())


class OthersSlot:
    """A slot in a tenant's region for all its processes without a slot.

    The agent locks the slot. As for other slots, the lock shows that the owner is alive.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor, self._inode = path, -1, 0
        self.number, self.nonce = _NO_SLOT, 0

    def take(self) -> None:
        """Take a free slot if there is one."""
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
        """Lock the slot if it is free, and write a new nonce.

        The nonce distinguishes this owner from earlier owners of the slot.
        """
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
        """Release the slot. The tenant's processes clear it later."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.number = -1, _NO_SLOT


@frozen
class Found:
    """The result of an NVML query, and one tenant's processes.

    `named` has the reported bytes by column and PID.
    """

    columns: Sequence[str]
    named: Named
    processes: Mapping[int, Process]

    def bytes_of(self, pid: int, column: str) -> int | None:
        return self.named[column].get(pid)


class Report:
    """A tenant's report file."""

    def __init__(self, root: Path, key: str) -> None:
        self._path = root / vgpu_files.nvml_report_path(key)
        self._others = OthersSlot(root / region_path(key))
        self._sequence = 0
        #: The file's content after its timestamp. Empty before the first NVML query.
        self._content = b""
        #: Bytes in the last report: in `_beyond` by slot, nonce and column, and in `_unslotted` by PID and column for
        #: processes without a slot.
        self._beyond: Dict[Tuple[int, int, str], int] = {}
        self._unslotted: Dict[Tuple[int, str], int] = {}

    @property
    def names_others(self) -> bool:
        """Return whether NVML reported processes of the tenant without a slot."""
        return bool(self._unslotted)

    def tell(self, asked_ns: int, before: Region, after: Region, found: Found) -> None:
        """Update the content from an NVML query.

        `before` and `after` have the region before and after the query.
        """
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
                # Allocations may change during the query. Subtract the larger of the two counts, to count no memory
                # twice.
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
        """Return the bytes of processes without a slot, by column.

        Bytes count only if two queries in a row reported them for the process, because a new process takes a slot
        before the second query.
        """
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
        """Write the file. Raises OSError.

        Even without a new query, the file shows processes that the agent runs.
        """
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
            # After a write that failed for lack of space, the odd sequence number marks the file as incomplete.
            if os.pwrite(descriptor, content, _START.size) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            self._sequence += 2
            os.pwrite(descriptor, _START.pack(_MAGIC, self._sequence), 0)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the slot after the tenant was removed."""
        self._others.leave()


def _slots_of(processes: Mapping[int, Process], region: Region) -> Dict[int, Slot]:
    """Return the slots by PID.

    A process writes its slot itself, and can write any PID. So a PID is compared only with processes of the same
    tenant.
    """
    by_number = {(slot.pid_namespace, slot.pid): slot for slot in region.slots}
    slots = {pid: by_number.get((each.pid_namespace, each.pid_inside)) for pid, each in processes.items()}
    return {pid: slot for pid, slot in slots.items() if slot is not None}


class Reporter:
    """Query NVML for all of the host's tenants, and write their reports.

    `root` is the host's root folder.
    """

    def __init__(self, root: Path, state_directory: str, log: Log = print) -> None:
        self._root, self._state_directory, self._log = root, state_directory, LimitedLog(log)
        self._processes = Processes(root)
        self._reports: Dict[str, Report] = {}
        self._logged = ""
        #: Times (time.monotonic()) before which NVML is not queried: while the accounting has no processes, and after a
        #: failure.
        self._idle_until = self._failed_until = 0.0

    def serve(self, parent: int) -> int:
        """Write reports once a second until the agent that started this process ends."""
        while os.getppid() == parent:
            began = time.monotonic()
            self.look()
            time.sleep(max(0.0, began + _TICK_SECONDS - time.monotonic()))
        return 0

    def look(self) -> None:
        """Query NVML and write the reports.

        If NVML does not answer, no report is written, and the processes query NVML themselves.
        """
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
                # The folder may be missing briefly, while the tenant is written or removed.
                with contextlib.suppress(FileNotFoundError):
                    report.write()
            self._logged = ""
        except (OSError, FleetError, ValueError) as error:
            if isinstance(error, NvmlError):
                self._failed_until = time.monotonic() + _FAILED_SECONDS
            text = (
                "the agent reports no memory, so processes query NVML themselves, which fails in containers: %s" % error
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
        """Return whether NVML must be queried now.

        Queries open the GPUs, so they are rare while the accounting has no processes.
        """
        used = any(region.slots for region in regions.values()) or any(
            one.names_others for one in self._reports.values()
        )
        if not used and time.monotonic() < self._idle_until:
            return False
        self._idle_until = time.monotonic() + _IDLE_SECONDS
        return True

    def _named(self, tenants: Sequence[VgpuTenant]) -> Named | None:
        """Return each process's memory on the tenants' GPUs.

        Returns None while a run changes the host. Raises NvmlError or ValueError.
        """
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
                        # The report has no column for a lost GPU.
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
    """Start a process that reports until the current process ends.

    Returns the PID of the new process.
    """
    parent = os.getpid()
    return child_process.start(lambda: Reporter(root, state_directory, log).serve(parent), [1, 2])
