# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# One scan reads thousands of files, and pathlib would take most of the time.
# ruff: noqa: PTH116
"""Identify open files that are, or may hold, device nodes of the driver.

Files are queried with statx(2) and AT_STATX_DONT_SYNC, which returns data from the kernel's cache, because a file
system may never answer a stat(2). Python has no function for statx(2), so this module calls the C library.
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
from ..processes.proc_files import link, read
from .devices import Devices, Node

#: The id and mount point of a file system that contacts its server despite AT_STATX_DONT_SYNC (proc(5), mountinfo).
_REMOTE_MOUNT = re.compile(
    r"^(\d+) \d+ \S+ \S+ (\S+) .*? - "
    r"(?:nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|9p|afs|autofs|orangefs|panfs|wekafs) ",
    re.MULTILINE,
)
# The device number, in decimal, of a mount of such a file system.
_REMOTE_DEVICE = re.compile(
    r"^\d+ \d+ (\d+):(\d+) \S+ \S+ .*? - "
    r"(?:nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|9p|afs|autofs|orangefs|panfs|wekafs) ",
    re.MULTILINE,
)
#: Maximum size of a mountinfo in bytes.
_MOST_BYTES = 1 << 22
# Link targets in /proc/PID/fd for rings, sockets and buffers of the driver. Users cannot forge those of rings and
# sockets, because the target of a file with a path begins with a slash.
RING, SOCKET, _BUFFER = "anon_inode:[io_uring]", "socket:[", "/dmabuf:"
#: Constants from linux/fcntl.h and linux/stat.h, and the offsets of stx_mode, stx_rdev_major and stx_rdev_minor in
#: struct statx.
_AT_FDCWD, _DONT_SYNC, _TYPE = -100, 0x4000, 0x1
_SIZE, _MODE_AT, _DEVICE_AT = 256, 28, 128
_MODE, _DEVICE = struct.Struct("=H"), struct.Struct("=II")


class RemoteMounts:
    """Mounts of network file systems, by mount namespace.

    Files on these mounts are not queried, because the server might not answer.
    """

    def __init__(self, proc: str) -> None:
        self.own = link(proc + "/self/ns/mnt")
        self._mounts: dict[str | None, dict[str, str]] = {}
        self._devices: dict[str | None, list[str]] = {}

    def of(self, folder: str, namespace: str | None) -> dict[str, str]:
        """Return the ids of a task's remote mounts, by mount point.

        `folder` is the task's folder in /proc. `namespace` is its mount namespace.
        """
        if namespace not in self._mounts:
            text = read(folder + "/mountinfo", _MOST_BYTES)
            self._mounts[namespace] = {
                re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), where): number
                for number, where in _REMOTE_MOUNT.findall(text)
            }
            self._devices[namespace] = [
                "%02x:%02x" % (int(major), int(minor)) for major, minor in _REMOTE_DEVICE.findall(text)
            ]
        return self._mounts[namespace]

    def devices(self, namespace: str | None) -> list[str]:
        """Return the devices of the remote mounts in a mount namespace.

        The devices have the format of /proc/PID/maps. Returns an empty list if the namespace was not read.
        """
        return self._devices.get(namespace, [])


@frozen
class Opened:
    """Open files of a process that the scan examines later.

    `node_of` adds files to these lists.
    """

    # The driver's files: (task id, descriptor, major, minor). Major and minor are 0 for the driver's buffers.
    driver: List[Tuple[int, int, int, int]]
    # Paths below /proc/PID of io_uring rings, and (link target, path) of sockets.
    rings: List[str]
    sockets: List[Tuple[str, str]]


def node_of(path: str, devices: Devices, remote: Mapping[str, str], opened: Opened | None = None) -> Node | None:
    """Return the GPU node that an open file is, or None.

    On a host with the driver, the device number identifies a node, because mount namespaces, removed mounts and passed
    files can give it any name. The name is only compared with remote mounts, which are not queried. Files of the
    driver, rings and sockets are added to `opened`. Raises OSError if the caller may not read the file.
    """
    try:
        target = os.readlink(path)
    except FileNotFoundError:
        # The file has been closed. Other errors are raised, such as a missing permission.
        return None
    if not target.startswith("/"):
        # The target is not a path. For example, it is a socket or a pipe.
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
    """Return the task id and the descriptor from a path that ends in TID/fd/FD."""
    folder, _fd, descriptor = path.rpartition("/fd/")
    return int(folder.rpartition("/")[2]), int(descriptor)


def _is_drivers_buffer(path: str) -> bool:
    """Return whether a dma-buf was exported by the driver.

    The exporter's name in the fdinfo is defined in the driver's nv-dmabuf.c. Before release 590, it was the module's
    name.
    """
    return bool(re.search(r"^exp_name:\s*(?:nvidia|nv_dmabuf)$", info_of(path), re.MULTILINE))


def info_of(path: str, most: int = -1) -> str:
    """Return at most `most` bytes of the fdinfo for a path in /proc/PID/fd."""
    folder, _fd, descriptor = path.rpartition("/fd/")
    return read("%s/fdinfo/%s" % (folder, descriptor), most)


def _by_name(path: str, target: str, devices: Devices) -> Node | None:
    device = device_of(path)
    return (devices.numbered_node(*device) if device else None) or devices.named_node(target.replace(" (deleted)", ""))


def _is_of_mount(path: str, number: str) -> bool:
    """Return whether an open file is on the mount with this id.

    The path does not show this, because it may be from another mount namespace.
    """
    return "\nmnt_id:\t%s\n" % number in "\n" + info_of(path)


def _statx() -> Any:
    """Return statx from the C library, or None if glibc is older than 2.28."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    return call


_call = _statx()
#: One buffer for all calls, because a scan reads thousands of files.
_buffer = ctypes.create_string_buffer(_SIZE)


def device_of(path: str) -> tuple[int, int] | None:
    """Return (major, minor) of the character device at a path.

    Returns None for other files, and after errors.
    """
    if _call is None:
        return _by_stat(path)
    if _call(_AT_FDCWD, os.fsencode(path), _DONT_SYNC, _TYPE, _buffer) != 0:
        # Old system call filters refuse statx.
        return _by_stat(path) if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM) else None
    if not stat.S_ISCHR(*_MODE.unpack_from(_buffer, _MODE_AT)):
        return None
    major, minor = _DEVICE.unpack_from(_buffer, _DEVICE_AT)
    return major, minor


def _by_stat(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
