# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the tenants of a host, and report them as return values of modules.

Light: modules that only look carry it. `host` also changes tenants, and knows which of their files are outdated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import uuid
from pathlib import Path
from typing import Any, Iterator

from ... import durable
from ...errors import FleetError
from .model import (
    MPS,
    SCHEMA,
    VgpuSeen,
    VgpuTenant,
    VgpuUsage,
    VgpuUse,
    applies,
    from_data,
    region_path,
    root_of_files,
    spec_files,
)

_MAGIC, _VERSION, _GPUS, _SLOTS, _LOCK_SLOTS = 0x3155504756464F00, 1, 16, 1024, (1 << 24) + 1
#: magic, version, size, lock, slot_limit; takeovers and what is reserved.
_HEADER = struct.Struct("=QIIII8x8x24x")
#: uuid, taken, total, peak, refused.
_GPU = struct.Struct("=16sI4xQQQ")
#: state; used and context of each GPU.
_SLOT = struct.Struct("=I4x8x8x24x16x%dQ%dQ" % (_GPUS, _GPUS))
_USED = 1
#: struct flock, and F_OFD_GETLK of fcntl.h, which Python names from 3.9 on.
_FLOCK, _GET_LOCK = struct.Struct("@hhqqi4x"), 36

#: Values of a tenant that are returned as its spec has them; and the entry where the tenants cannot be looked at.
_OF_TENANT = ("name", "memory_bytes", "sm_percent", "policy", "priority", "provider", "group", "oversubscribe_managed")
_NO_TENANT = {**dict.fromkeys((*_OF_TENANT, "processes")), "aliases": [], "gpus": []}


class Tenants:
    """The tenants of this host. `root` is where its files are."""

    def __init__(self, root: str | None = None) -> None:
        self._root = root_of_files() if root is None else Path(root)

    def tenants(self) -> list[VgpuTenant]:
        """Return the tenants of this host, by name. Raises ApplyError for files that cannot be read."""
        return sorted(self._tenants(), key=lambda tenant: tenant.name)

    def _tenants(self) -> Iterator[VgpuTenant]:
        for path in sorted(spec_files(self._root)):
            data = durable.read(path, SCHEMA)
            if data is not None:
                try:
                    tenant = from_data(data)
                except (KeyError, TypeError):
                    raise durable.damaged(path) from None
                if tenant.key != path.parent.name:
                    raise durable.damaged(path, 'tells of the tenant "%s"' % tenant.key)
                yield tenant

    def look(self, tenant: VgpuTenant) -> VgpuSeen:
        """Return the tenant with what its processes use."""
        # Tenants of MPS have no library that would count.
        counted = tenant.provider != MPS
        usage = read_region(self._root / region_path(tenant.key)) if counted else None
        return VgpuSeen(tenant, usage=usage)


def look(private: bool) -> tuple[VgpuSeen, ...]:
    """Return the tenants; none where the GPUs are simulated for this process alone. Raises ApplyError."""
    host = Tenants()
    return tuple(map(host.look, host.tenants())) if applies(private) else ()


def report(private: bool) -> list[dict[str, Any]]:
    """Return the collection's tenants on this host; none where the GPUs are simulated for this process alone.

    Where they cannot be looked at, one entry has nothing but the `problem`: that is told, and is no failure.
    """
    try:
        observed = look(private)
    except FleetError as error:
        return [dict(_NO_TENANT, problem=str(error))]
    return [_told_of(seen) for seen in observed]


def _told_of(seen: VgpuSeen) -> dict[str, Any]:
    """Return a tenant as modules return it."""
    tenant, usage = seen.tenant, seen.usage
    used = {each.gpu_uuid: each.used_bytes for each in usage.gpus} if usage is not None else {}
    none = None if usage is None else 0
    return {
        **{name: getattr(tenant, name) for name in _OF_TENANT},
        "aliases": list(tenant.aliases),
        "gpus": [
            {"uuid": seat.gpu_uuid, "seat": seat.seat, "used_bytes": used.get(seat.gpu_uuid, none)}
            for seat in tenant.seats
        ],
        "processes": None if usage is None else usage.processes,
        "problem": None,
    }


def read_region(path: Path) -> VgpuUsage | None:
    """Return what a tenant's processes have, out of the region that they share.

    Its layout is 1, in roles/vgpu_limiter/files/src/formats/region.h.
    Only read: a process that died is left out here, and its slot is cleared by the processes to come. None where there is no
    region, or one that this release does not know. A tenant of which nothing ever ran uses nothing.
    """
    try:
        # Any user may write there; whatever else lies in its place is not waited for.
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.read(descriptor, _HEADER.size + _GPUS * _GPU.size + _SLOTS * _SLOT.size)
        if not data.strip(b"\0"):
            return VgpuUsage()
        with contextlib.suppress(struct.error, OSError):
            return _usage(descriptor, data)
    finally:
        os.close(descriptor)
    return None


def _usage(descriptor: int, data: bytes) -> VgpuUsage | None:
    magic, version, _size, _lock, limit = _HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    used, processes = [0] * _GPUS, 0
    for number in range(min(limit, _SLOTS)):
        state, *figures = _SLOT.unpack_from(data, _HEADER.size + _GPUS * _GPU.size + number * _SLOT.size)
        if state == _USED and held(descriptor, _LOCK_SLOTS + number):
            processes += 1
            used = [sum(each) for each in zip(used, figures[:_GPUS], figures[_GPUS:])]
    gpus = []
    for number, used_bytes in enumerate(used):
        raw, taken, _total, peak, refused = _GPU.unpack_from(data, _HEADER.size + number * _GPU.size)
        if taken:
            gpus.append(VgpuUse("GPU-%s" % uuid.UUID(bytes=raw), used_bytes, peak, refused))
    return VgpuUsage(processes, tuple(gpus))


def held(descriptor: int, byte: int) -> bool:
    """Whether a living process has the lock on the byte."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return _FLOCK.unpack(fcntl.fcntl(descriptor, _GET_LOCK, asked))[0] != fcntl.F_UNLCK
