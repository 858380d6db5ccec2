# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount a user's file system that never answers requests for its files.

    silent_files.py FUSE root FOLDER      a process whose root is an overlay above the file system, in a user namespace
    silent_files.py FUSE words FOLDER     the same, but the process's arguments are in a file of the file system
    silent_files.py FUSE home FOLDER UID  mounts on an existing folder, as fusermount does, and runs the command that follows

FUSE is a device node like /dev/fuse. The server ends when its standard input ends, which frees all waiting processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NOSUID, NODEV, RDONLY = 2, 4, 1
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, INIT, BATCH_FORGET = 1, 2, 3, 14, 15, 17, 26, 42
#: The only existing file name, and the file's size: one page.
FILE, PAGE = b"words", 4096


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        sys.exit("no mount: %s %s" % (kind, os.strerror(ctypes.get_errno())))


def attributes(inode: int, uid: int) -> bytes:
    mode, links, size = (0o40755, 2, 0) if inode == 1 else (0o100644, 1, PAGE)
    return struct.pack("=6Q10I", inode, size, 0, 0, 0, 0, 0, 0, 0, mode, links, uid, uid, 0, 4096, 0)


def serve(descriptor: int, uid: int) -> None:
    """Respond only to the requests that mounting sends."""
    while True:
        request = os.read(descriptor, 1 << 17)
        _length, operation, unique, node = struct.unpack_from("=IIQQ", request)
        answer, error = b"", 0
        if operation == INIT:
            answer = struct.pack("=4I2H2I2HI7I", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
        elif operation == GETATTR:
            answer = struct.pack("=QII", 3600, 0, 0) + attributes(node, uid)
        elif operation == LOOKUP and request[40:].rstrip(b"\0") == FILE:
            answer = struct.pack("=QQQQII", 2, 1, 3600, 3600, 0, 0) + attributes(2, uid)
        elif operation == OPEN:
            answer = struct.pack("=QII", 1, 0, 0)
        elif operation == STATFS:
            answer = struct.pack("=5Q10I", 1, 1, 1, 1, 1, 4096, 255, 4096, 0, *[0] * 6)
        elif operation in (LOOKUP, READ, FORGET, BATCH_FORGET):
            # Two of these operations expect a response, but never get one.
            continue
        else:
            error = -38
        os.write(descriptor, struct.pack("=IiQ", 16 + len(answer), error, unique) + answer)


def served(fuse: str, folder: str, uid: int, options: str = "") -> None:
    """Mount the file system, and serve it from a child process.

    The child ends when its standard input or its parent ends.
    """
    descriptor = os.open(fuse, os.O_RDWR)
    mount("silent", folder, "fuse", NOSUID | NODEV, "fd=%d,rootmode=40000,user_id=%d,group_id=%d%s" % (
        descriptor, uid, uid, options))  # fmt: skip
    if os.fork() == 0:
        libc.prctl(1, signal.SIGKILL)
        # The server must not have the GPU open.
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, 100)
        serve(descriptor, uid)
    os.close(descriptor)


def arguments_address() -> int:
    """Return the address of this process's arguments in its memory."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45])


def start_on_a_page() -> None:
    """Restart this program until its arguments start at the first byte of a page.

    The program's stack is below the arguments at a random distance, and a page with both cannot be replaced. The
    environment is above the arguments, so each byte that is added to it moves them down by one.
    """
    above = arguments_address() % PAGE
    if above:
        name = "ABOVE_%d" % len(os.environ)
        padding = "x" * ((above - len(name) - 2) % PAGE)
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, name: padding})


def main() -> None:
    fuse, what, folder, *rest = sys.argv[1:]
    if what == "home":
        uid = int(rest.pop(0))
        served(fuse, folder, uid)
        sys.exit(subprocess.run(rest, check=False).returncode)
    if what == "words":
        start_on_a_page()
    mount("none", folder, "tmpfs", 0, "")
    for name in ("files", "none", "root"):
        Path(folder, name).mkdir()
    served(fuse, folder + "/files", 0)
    if what == "root":
        lower = "lowerdir=%s/files:%s/none" % (folder, folder)
        mount("none", folder + "/root", "overlay", RDONLY, lower)
        os.chroot(folder + "/root")
    else:
        # Replace the page that the kernel reads for /proc/PID/cmdline.
        start = arguments_address()
        descriptor = os.open("%s/files/words" % folder, os.O_RDONLY)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        assert libc.mmap(start, PAGE, 1, 0x12, descriptor, 0) == start
    # Use os.write, because Python can import nothing from here on.
    os.write(1, b"open\n")
    os.read(0, 1)
    os._exit(0)


main()
