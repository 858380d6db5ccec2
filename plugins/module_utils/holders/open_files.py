# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Thousands of files are looked at in one pass, and pathlib would take most of its time.
# ruff: noqa: PTH116
"""Identify open files of processes that are device nodes of the driver, or that may hold one, by what the kernel attests.

A file system's server may be a user's own, or gone, and never answer. So the kernel is asked for what it knows already: statx(2)
with AT_STATX_DONT_SYNC, for which Python has no call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
from typing import Any, List, Mapping, Tuple

from ..frozen import frozen
from ..proc_files import link, read
from .devices import Devices, Node

#: The id of a mount of a file system whose server is asked all the same, and where it is mounted (proc(5), mountinfo).
_REMOTE_MOUNT = re.compile(
    r"^(\d+) \d+ \S+ \S+ (\S+) .*? - "
    r"(?:nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|9p|afs|autofs|orangefs|panfs|wekafs) ",
    re.MULTILINE,
)
# The device of such a mount, as /proc/PID/maps has it but in decimal digits.
_REMOTE_DEVICE = re.compile(
    r"^\d+ \d+ (\d+):(\d+) \S+ \S+ .*? - "
    r"(?:nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|9p|afs|autofs|orangefs|panfs|wekafs) ",
    re.MULTILINE,
)
#: Of a mountinfo.
_MOST_BYTES = 1 << 22
# What links in /proc/PID/fd say of files that can hold others: rings with registered files, sockets with files in flight, and of
# buffers of the driver. A path begins with a slash, so no user can give a file the name of a ring or socket.
RING, SOCKET, _BUFFER = "anon_inode:[io_uring]", "socket:[", "/dmabuf:"
#: linux/fcntl.h and linux/stat.h; struct statx, with stx_mode, and stx_rdev_major and stx_rdev_minor, at these places.
_AT_FDCWD, _DONT_SYNC, _TYPE = -100, 0x4000, 0x1
_SIZE, _MODE_AT, _DEVICE_AT = 256, 28, 128
_MODE, _DEVICE = struct.Struct("=H"), struct.Struct("=II")


class RemoteMounts:
    """Mounts of file systems whose server may not answer, by mount namespace: what is open there is not asked what it is."""

    def __init__(self, proc: str) -> None:
        self.own = link(proc + "/self/ns/mnt")
        self._found: dict[str | None, dict[str, str]] = {}
        self._devices: dict[str | None, list[str]] = {}

    def of(self, folder: str, namespace: str | None) -> dict[str, str]:
        """Return the ids of the mounts by their paths, as the task with this folder and mount namespace has them."""
        if namespace not in self._found:
            text = read(folder + "/mountinfo", _MOST_BYTES)
            self._found[namespace] = {
                re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), where): number
                for number, where in _REMOTE_MOUNT.findall(text)
            }
            self._devices[namespace] = [
                "%02x:%02x" % (int(major), int(minor)) for major, minor in _REMOTE_DEVICE.findall(text)
            ]
        return self._found[namespace]

    def devices(self, namespace: str | None) -> list[str]:
        """Return the devices of these mounts as /proc/PID/maps has them; none of a namespace that was not read."""
        return self._devices.get(namespace, [])


@frozen
class Opened:
    """Open files of all processes besides nodes of GPUs. Lists are filled while processes are scanned."""

    # Files of the driver: (task id, descriptor, major and minor number; 0 and 0 for a buffer that may be the driver's).
    driver: List[Tuple[int, int, int, int]]
    # Rings of io_uring and sockets: paths below /proc/PID.
    rings: List[str]
    sockets: List[Tuple[str, str]]


def node_of(path: str, devices: Devices, remote: Mapping[str, str], opened: Opened | None = None) -> Node | None:
    """Return the node behind an open file of a process; None for all others. Raises OSError if that may not be read.

    Any user may have a node under any name: in a mount namespace of his own, by a mount that is gone again, from another process.
    So with a driver the number of every open file counts, and its name only tells where not to ask for it. Other files that
    matter are added to `opened`.
    """
    try:
        target = os.readlink(path)
    except FileNotFoundError:
        # Closed meanwhile. A refusal is none of these: root may list what it may not look at.
        return None
    if not target.startswith("/"):
        # A socket, a pipe.
        if opened is not None and target.startswith(SOCKET):
            opened.sockets.append((target, path))
        elif opened is not None and target == RING:
            opened.rings.append(path)
        return None
    if not devices.has_driver:
        return _by_name(path, target, devices) if target.startswith((devices.dev + "/", "/dev/")) else None
    if any(target.startswith(where + "/") and _is_of_mount(path, number) for where, number in remote.items()):
        return None
    device = device_of(path)
    if opened is not None and device is not None and device[0] in devices.majors:
        opened.driver.append((*_place(path), *device))
    elif opened is not None and target.startswith(_BUFFER) and _is_drivers_buffer(path):
        opened.driver.append((*_place(path), 0, 0))
    return devices.numbered_node(*device) if device else None


def _place(path: str) -> tuple[int, int]:
    """Return the task id and descriptor of a path that ends in TID/fd/DESCRIPTOR."""
    folder, _fd, descriptor = path.rpartition("/fd/")
    return int(folder.rpartition("/")[2]), int(descriptor)


def _is_drivers_buffer(path: str) -> bool:
    """Return whether the driver exported a dma-buf (nv-dmabuf.c; before release 590 by the name of the module)."""
    return bool(re.search(r"^exp_name:\s*(?:nvidia|nv_dmabuf)$", info_of(path), re.MULTILINE))


def info_of(path: str, most: int = -1) -> str:
    """Return what /proc/PID/fdinfo has of the open file with this path in /proc/PID/fd; at most so many bytes."""
    folder, _fd, descriptor = path.rpartition("/fd/")
    return read("%s/fdinfo/%s" % (folder, descriptor), most)


def _by_name(path: str, target: str, devices: Devices) -> Node | None:
    device = device_of(path)
    return (devices.numbered_node(*device) if device else None) or devices.named_node(target.replace(" (deleted)", ""))


def _is_of_mount(path: str, number: str) -> bool:
    """Return whether an open file is of the mount with that id, by the kernel's word: a path may be another namespace's."""
    return "\nmnt_id:\t%s\n" % number in "\n" + info_of(path)


def _statx() -> Any:
    """The C library's call; None before glibc 2.28."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    return call


_call = _statx()
#: Made once: a look asks of thousands of files.
_found = ctypes.create_string_buffer(_SIZE)


def device_of(path: str) -> tuple[int, int] | None:
    """Return (major, minor) of the character device that a path leads to.

    None for anything else, and where it may not be looked at.
    """
    if _call is None:
        return _by_stat(path)
    if _call(_AT_FDCWD, os.fsencode(path), _DONT_SYNC, _TYPE, _found) != 0:
        # Filters of system calls that do not know it yet refuse it.
        return _by_stat(path) if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM) else None
    if not stat.S_ISCHR(*_MODE.unpack_from(_found, _MODE_AT)):
        return None
    major, minor = _DEVICE.unpack_from(_found, _DEVICE_AT)
    return major, minor


def _by_stat(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
