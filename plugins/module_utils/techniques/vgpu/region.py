# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a tenant's processes use, out of the region that they share (roles/vgpu_limiter/files/src/region.h, layout 1).

Only read: a process that died is left out here, and its slot is cleared by the processes to come.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import uuid
from pathlib import Path

from .model import VgpuUsage, VgpuUse

#: Below the root of the host: what changes, and of it what each tenant has.
STATE = "run/openfleet-gpu/vgpu"
TENANTS = STATE + "/tenants"
#: Of the layout of the files below /run.
REGION_VERSION = 1

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


def region_path(key: str) -> str:
    """Return the path of the region of the tenant of this key."""
    return "%s/%s/region.%d" % (TENANTS, key, REGION_VERSION)


def read(path: Path) -> VgpuUsage | None:
    """None where there is no region, or one that this release does not know. A tenant of which nothing ever ran uses nothing."""
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
        if state == _USED and _held(descriptor, _LOCK_SLOTS + number):
            processes += 1
            used = [sum(each) for each in zip(used, figures[:_GPUS], figures[_GPUS:])]
    gpus = []
    for number, used_bytes in enumerate(used):
        raw, taken, _total, peak, refused = _GPU.unpack_from(data, _HEADER.size + number * _GPU.size)
        if taken:
            gpus.append(VgpuUse("GPU-%s" % uuid.UUID(bytes=raw), used_bytes, peak, refused))
    return VgpuUsage(processes, tuple(gpus))


def _held(descriptor: int, byte: int) -> bool:
    """Whether a living process has the lock on the byte."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return _FLOCK.unpack(fcntl.fcntl(descriptor, _GET_LOCK, asked))[0] != fcntl.F_UNLCK
