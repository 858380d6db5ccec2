# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH116, PTH123
"""Find files that are open without a file descriptor.

Such files are mapped, registered with io_uring, or in flight in a Unix socket. The kernel shows the device of a mapped
file. For a registered file, it shows only the name, which users can choose. For files in flight, it shows only their
number. So a process whose ring or socket may hold a GPU node is a suspect, not a known holder.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from ..frozen import frozen
from ..processes.accounts import account_of
from ..processes.file_worker import MAPS, NoAnswerError, ask, task
from ..processes.proc_files import read
from .open_files import RING, device_of, info_of
from .tasks import can_compare, distinct

# Reasons why a process is a suspect.
IN_RING, IN_SOCKET, IN_MAPS, NO_RIGHT = "ring", "socket", "mapping", "right"
_ROOT = 0
# Number of processes per query. A query of this size ends within its time limit.
_BATCH = 16
# Maximum size of a list of mappings in bytes. Some lists are longer: a process may have vm.max_map_count mappings, each
# with a path of up to one page.
_MOST_BYTES = 1 << 24
_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+:[0-9a-f]+) ([1-9][0-9]*) +(.*)$", re.MULTILINE)
_NODE_NAME = re.compile(r"/nvidia(?:-cap)?\d+(?: \(deleted\))?$")
# Nodes that only a process that uses a GPU maps.
_USED_NODE = re.compile(r"/nvidia\d+$|/nvidia-uvm$")
_ANONYMOUS_DEVICE = "00:"
# How often to try to read a ring, and the pause in between. The kernel lists no files while another thread holds the
# ring's lock (io_uring/fdinfo.c).
_RING_TRIES, _RING_PAUSE_SECONDS = 20, 0.005
_MOST_RING_BYTES = 1 << 20
_REGISTERED = re.compile(r"^UserFiles:\s*(\d+)$(.*?)(?=^UserBufs:|\Z)", re.MULTILINE | re.DOTALL)
_SLOT = re.compile(r"^\s*\d+: (.*)$", re.MULTILINE)
_NO_FILE = "<none>"
# Names that Linux 6.10 and later show for registered files outside of file systems.
_NOT_OF_FILE_SYSTEM = re.compile(r"(?:socket|pipe):\[\d+\]|anon_inode:\[?\w+\]?")
_IN_FLIGHT = re.compile(r"^scm_fds:\s*[1-9]", re.MULTILINE)
# Seconds after which files in flight make a process a suspect, and the interval of checks. A working receiver takes its
# files sooner.
_IN_FLIGHT_SECONDS, _POLL_SECONDS = 1.0, 0.05


@frozen
class Suspect:
    """A process that may hold a GPU.

    `reason` is IN_RING, IN_SOCKET, IN_MAPS (the mappings did not answer) or NO_RIGHT (no permission to read them).
    """

    pid: int
    reason: str


@frozen
class Process:
    """A process to examine.

    `folder` is its folder in /proc. `remote` has the devices of the remote file systems that it has mounted.
    """

    pid: int
    folder: str
    remote: Sequence[str] = ()


@frozen
class Mappings:
    """The mapped files of each process.

    `devices` has the device numbers of mapped nodes. On a host without a driver, `paths` has their paths instead.
    `rings` has the inodes of mapped io_uring rings.
    """

    devices: Mapping[int, Sequence[Tuple[int, int]]]
    paths: Mapping[int, Sequence[str]]
    rings: Mapping[int, Sequence[int]]
    suspects: Sequence[Suspect]


def mappings(processes: Sequence[Process], majors: Sequence[int], deadline: float) -> Mappings:
    """Return the mapped nodes of processes.

    Nodes are matched by the driver's major numbers, or by path if `majors` is empty. A child process reads the mappings
    in batches for each account, because a page fault on a user's own file system can block the read forever. `deadline`
    is in seconds of time.monotonic().
    """
    by_account: Dict[int, List[Process]] = {}
    for one in processes:
        # A kernel thread has no memory.
        if _has_memory(one.folder):
            by_account.setdefault(account_of(one.folder), []).append(one)
    devices: Dict[int, List[Tuple[int, int]]] = {}
    paths: Dict[int, List[str]] = {}
    rings: Dict[int, List[int]] = {}
    suspects = []
    for account, members in by_account.items():
        for one, row in _asked(account, members, majors, deadline):
            if isinstance(row, str):
                suspects.append(Suspect(one.pid, row))
            elif row is not None:
                devices[one.pid] = list(map(tuple, row[0]))
                paths[one.pid], rings[one.pid] = row[1], row[2]
    return Mappings(devices, paths, rings, suspects)


def _asked(
    account: int, members: Sequence[Process], majors: Sequence[int], deadline: float
) -> List[Tuple[Process, Any]]:
    """Return (process, its row from `_mapped`) for each process.

    If a row cannot be read, a reason (IN_MAPS or NO_RIGHT) replaces it.
    """
    rows: List[Tuple[Process, Any]] = []
    batches = [members[at : at + _BATCH] for at in range(0, len(members), _BATCH)]
    while batches:
        batch = batches.pop(0)
        try:
            if time.monotonic() > deadline:
                raise NoAnswerError(asked=False)
            answer = ask(account, _mapped, [[one.folder, *one.remote] for one in batch], list(majors), worker=MAPS)
        except NoAnswerError:
            if len(batch) > 1:
                # The batch did not answer. Retry its processes one at a time, so that only those that do not answer
                # become suspects.
                batches[:0] = [[one] for one in batch]
            else:
                rows.append((batch[0], IN_MAPS))
        else:
            rows += zip(batch, answer)
    return rows


def _has_memory(folder: str) -> bool:
    try:
        os.readlink(folder + "/exe")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


# (device, inode) of files on block devices that were checked and are not the driver's nodes. Inodes on a block device
# are unique.
_known: Set[Tuple[str, str]] = set()
# Fields of a line in /proc/PID/maps: start, end, device, inode and path.
_Line = Tuple[str, str, str, str, str]


@task
def _mapped(processes: List[List[str]], majors: List[int]) -> List[Any]:
    """Return a row with the mapped nodes for each process.

    A row is [device numbers, paths, inodes of rings], None if the process has ended, or a reason of `Suspect`.
    """
    allowed = not majors or _may_follow()
    rows: List[Any] = []
    for folder, *remote in processes:
        try:
            text = _beginning(folder + "/maps")
        except (FileNotFoundError, ProcessLookupError):
            rows.append(None)
            continue
        except OSError:
            rows.append(NO_RIGHT)
            continue
        if len(text) > _MOST_BYTES:
            rows.append(IN_MAPS)
            continue
        row, files = _sorted_lines(text)
        if majors and files and not allowed:
            rows.append(NO_RIGHT)
            continue
        if not majors:
            row[1] = sorted({line[-1] for line in files if _NODE_NAME.search(line[-1])})
        else:
            row[0] = _devices_of(folder, files, remote, set(majors))
        rows.append(row)
    return rows


def has_mapped_node(folder: str, majors: List[int]) -> bool:
    """Return whether a process maps one of the driver's nodes.

    Nodes are matched by major number, or by name if `majors` is empty. Call this in a child process, because the read
    may hang. Raises OSError.
    """
    _row, files = _sorted_lines(_beginning(folder + "/maps"))
    if majors:
        return bool(_devices_of(folder, files, [], set(majors)))
    return any(_USED_NODE.search(line[-1]) for line in files)


def _beginning(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        chunks = []
        size = 0
        while size <= _MOST_BYTES:
            # Read until the end, because the kernel returns at most one page per read.
            chunk = file.read(1 << 20)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
    return b"".join(chunks).decode(errors="replace")


def _sorted_lines(text: str) -> Tuple[List[Any], List[_Line]]:
    """Return a row with only the inodes of mapped rings, and all other lines."""
    lines = _MAPPED.findall(text)
    rings = {int(line[3]) for line in lines if line[4] == RING}
    return [[], [], sorted(rings)], [line for line in lines if line[4].startswith("/")]


def _devices_of(folder: str, files: List[_Line], remote: List[str], majors: Set[int]) -> List[List[int]]:
    """Return (major, minor) of each mapping of a node with one of these majors."""
    numbers = []
    # On overlay, btrfs and tmpfs, two different files may have the same device and inode, but not the same path too.
    own: Dict[Tuple[str, str, str], Any] = {}
    for start, end, device, inode, path in files:
        if (device, inode) in _known or device in remote:
            continue
        key = (device, inode, path)
        if key not in own:
            # The names in map_files have no leading zeros.
            own[key] = device_of("%s/map_files/%s-%s" % (folder, start.lstrip("0") or "0", end.lstrip("0") or "0"))
        number = own[key]
        if number is not None and number[0] in majors:
            numbers.append([number[0], number[1]])
        elif not device.startswith(_ANONYMOUS_DEVICE):
            _known.add((device, inode))
    return numbers


def _may_follow() -> bool:
    """Return whether this process may follow links in map_files.

    This needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (proc_pid_map_files(5)).
    """
    first = _MAPPED.search(read("/proc/self/maps", 1 << 16))
    try:
        if first is not None:
            os.stat("/proc/self/map_files/%s-%s" % (first.group(1).lstrip("0"), first.group(2).lstrip("0")))
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def registered(text: str) -> List[str] | None:
    """Return the names of the files that are registered with a ring.

    `text` is the fdinfo of the ring. Returns None if the kernel does not list the files.
    """
    match = _REGISTERED.search(text)
    if match is None:
        return None
    slots = _SLOT.findall(match.group(2))
    if int(match.group(1)) and not slots:
        return None
    return [name for name in slots if name != _NO_FILE]


def may_be_node(name: str) -> bool:
    """Return whether a registered file may be a device node.

    Users can choose the names of files in file systems. So only a name from outside of file systems proves that a file
    is no node.
    """
    return not _NOT_OF_FILE_SYSTEM.fullmatch(name)


def rings_of(folder: str, paths: Sequence[str]) -> Tuple[List[List[str] | None], List[int]]:
    """Return the registered file names of each ring, and the rings' inodes.

    A list of names is None if the names are unknown.
    """
    try:
        rows = ask(account_of(folder), _rings, list(paths), worker=MAPS)
    except NoAnswerError:
        return [None], []
    return [row[0] for row in rows], [row[1] for row in rows]


@task
def _rings(paths: List[str]) -> List[Any]:
    """Read rings. Call this in a child process, because the read may hang.

    Linux before 5.13 waits for the ring's lock.
    """
    rows = []
    for path in paths:
        try:
            inode = os.stat(path).st_ino
        except OSError:
            # The ring has been closed.
            continue
        names = None
        for _again in range(_RING_TRIES):
            names = registered(info_of(path, _MOST_RING_BYTES))
            if names is not None:
                break
            time.sleep(_RING_PAUSE_SECONDS)
        rows.append([names, inode])
    return rows


def in_flight(sockets: Sequence[Tuple[int, str, str]], deadline: float) -> List[Suspect]:
    """Return processes with files in flight in a Unix socket.

    Files in flight were sent but not yet received (unix(7), SCM_RIGHTS). `sockets` has (PID, link, path) for each open
    socket. Linux 5.6 and later show the number of files in flight. Files that are received within _IN_FLIGHT_SECONDS
    are ignored.
    """
    once = {link: (pid, path) for pid, link, path in sockets}
    waiting = {link: where for link, where in once.items() if _IN_FLIGHT.search(info_of(where[1]))}
    end = min(deadline, time.monotonic() + _IN_FLIGHT_SECONDS)
    while waiting and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        waiting = {link: where for link, where in waiting.items() if _IN_FLIGHT.search(info_of(where[1]))}
    return [Suspect(pid, IN_SOCKET) for pid in sorted({pid for pid, _path in waiting.values()})]


def distinct_files(files: Sequence[Tuple[int, int, int, int]]) -> List[Tuple[int, int, int, int]] | None:
    """Return one file for each open file description.

    A file is (task id, descriptor, major, minor). Returns None if kcmp(2) is not available. The comparison runs in a
    child process, because kcmp(2) waits while the process is in execve(2), and a file system can block execve(2)
    forever.
    """
    if not files or not can_compare():
        return None if files else []
    try:
        return [
            (one[0], one[1], one[2], one[3])
            for one in ask(_ROOT, _distinct, [list(file) for file in files], worker=MAPS)
        ]
    except NoAnswerError:
        return None


@task
def _distinct(files: List[List[int]]) -> List[List[int]]:
    found = []
    by_device: Dict[Tuple[int, int], List[List[int]]] = {}
    for file in files:
        by_device.setdefault((file[2], file[3]), []).append(file)
    for members in by_device.values():
        found += distinct(members, lambda file: (file[0], file[1]))
    return found
