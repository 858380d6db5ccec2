# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the tenants of a host and report them as return values of modules.

This module must stay small, because modules that only read send it to hosts. host.py also changes tenants and finds
outdated files.
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
#: Header: magic, version, size, lock, slot_limit, takeovers and reserved bytes.
_HEADER = struct.Struct("=QIIII8x8x24x")
#: GPU: UUID, whether it is used, total, peak and refused.
_GPU = struct.Struct("=16sI4xQQQ")
#: Slot: state, and for each GPU the used bytes and the context bytes.
_SLOT = struct.Struct("=I4x8x8x24x16x%dQ%dQ" % (_GPUS, _GPUS))
_USED = 1
#: struct flock, and fcntl.h's F_OFD_GETLK, which Python only defines since 3.9.
_FLOCK, _GET_LOCK = struct.Struct("@hhqqi4x"), 36

#: Fields that results have in the same form as a tenant's spec, and the only entry in a result if the tenants cannot be
#: read.
_OF_TENANT = ("name", "memory_bytes", "sm_percent", "policy", "priority", "provider", "group", "oversubscribe_managed")
_NO_TENANT = {**dict.fromkeys((*_OF_TENANT, "processes")), "aliases": [], "gpus": []}


class Tenants:
    """Read the tenants of this host. `root` is the root folder of their files."""

    def __init__(self, root: str | None = None) -> None:
        self._root = root_of_files() if root is None else Path(root)

    def tenants(self) -> list[VgpuTenant]:
        """Return the tenants of this host, sorted by name.

        Raises ApplyError if a file cannot be read.
        """
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
                    raise durable.damaged(path, 'contains the tenant "%s"' % tenant.key)
                yield tenant

    def look(self, tenant: VgpuTenant) -> VgpuSeen:
        """Return the tenant with its usage."""
        # Under MPS, the library does not count usage.
        counted = tenant.provider != MPS
        usage = read_region(self._root / region_path(tenant.key)) if counted else None
        return VgpuSeen(tenant, usage=usage)


def look(private: bool) -> tuple[VgpuSeen, ...]:
    """Return the tenants of this host. Raises ApplyError.

    Returns an empty tuple if only this process simulates the GPUs.
    """
    host = Tenants()
    return tuple(map(host.look, host.tenants())) if applies(private) else ()


def report(private: bool) -> list[dict[str, Any]]:
    """Return the tenants of this host as module results.

    Returns an empty list if only this process simulates the GPUs. If the tenants cannot be read, raises no error, and
    returns one entry that only has a `problem`.
    """
    try:
        observed = look(private)
    except FleetError as error:
        return [dict(_NO_TENANT, problem=str(error))]
    return [_tenant_data(seen) for seen in observed]


def _tenant_data(seen: VgpuSeen) -> dict[str, Any]:
    """Return a tenant as module result."""
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
    """Return the usage of a tenant's processes, from the tenant's region.

    Returns None if the tenant has no region, or one of unknown format. The format is version 1 in
    roles/vgpu_limiter/files/src/formats/region.h. Ignores slots of dead processes, which later processes clear. A
    tenant that never ran has no usage.
    """
    try:
        # Open without blocking, because any user may have replaced the file with a FIFO or a device.
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
    """Return whether a living process holds the lock on the byte."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return _FLOCK.unpack(fcntl.fcntl(descriptor, _GET_LOCK, request))[0] != fcntl.F_UNLCK
