# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH116, PTH119, PTH208
"""List the tasks (threads) of a process, and find tasks with their own file table.

A thread may have its own table of open files (unshare(2), CLONE_FILES). It may also outlive the main thread. /proc/PID
then shows state Z and no open files, memory, namespaces or root directory.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Callable, Iterable, Iterator, List, Tuple, TypeVar

T = TypeVar("T")

# Numbers of the system call kcmp(2), which the C library does not wrap, and its types (linux/kcmp.h).
_CALL_NUMBER = {"x86_64": 312, "aarch64": 272, "ppc64le": 354, "s390x": 343}.get(os.uname().machine)
_FILE, _FILES = 0, 2
# A task's table is compared with at most this many tables. If a process has more tables, a shared one may be read
# twice.
_MOST_TABLES = 8
# Link count of /proc/PID/task for a process with one task: two plus the number of tasks (fs/proc/base.c,
# proc_task_getattr).
_LINKS_OF_ONE_TASK = 3


def can_compare(proc: str = "/proc") -> bool:
    """Return whether kcmp(2) works in this PID namespace.

    `proc` must show this process's PID namespace.
    """
    own = os.getpid()
    return os.path.basename(os.path.realpath(proc + "/self")) == str(own) and _kcmp(own, own, _FILES) == 0


def tables(proc: str, pid: int, compare: bool) -> Iterator[Tuple[int, str]]:
    """Yield (task id, folder in /proc) once for each table of open files.

    The table of the main thread comes first. Read each table before you request the next one, because tasks are
    compared at that time. Otherwise, a table is missed if the main thread ends between the comparison and the read. If
    `compare` is false (see `can_compare`), every task is yielded.
    """
    folder = "%s/%d" % (proc, pid)
    yield pid, folder
    known = [pid]
    for task in other_tasks(proc, pid):
        if compare and any(_kcmp(task, other, _FILES) == 0 for other in known):
            continue
        if len(known) < _MOST_TABLES:
            known.append(task)
        yield task, "%s/task/%d" % (folder, task)


def other_tasks(proc: str, pid: int) -> List[int]:
    """Return the ids of a process's tasks, without the main thread.

    Returns an empty list if the process has ended.
    """
    folder = "%s/%d/task" % (proc, pid)
    try:
        if os.stat(folder).st_nlink == _LINKS_OF_ONE_TASK:
            return []
        return [task for task in map(int, os.listdir(folder)) if task != pid]
    except (FileNotFoundError, ProcessLookupError):
        return []


def folder_of(proc: str, pid: int, task: int | None) -> str:
    """Return a task's folder in /proc. None means the main thread.

    The folder is /proc/TID, which /proc does not list. Unlike /proc/PID/task/TID, it has map_files.
    """
    folder = "%s/%d" % (proc, pid)
    # The path starts in the process's folder, because `proc` may be a folder with links to only some processes.
    return folder if task is None else "%s/../%d" % (folder, task)


def live_task(proc: str, pid: int) -> int | None:
    """Return a running task if the main thread has ended, otherwise None."""
    if _has_namespaces("%s/%d" % (proc, pid)):
        return None
    tasks = other_tasks(proc, pid)
    return next((task for task in tasks if _has_namespaces(folder_of(proc, pid, task))), None)


def _has_namespaces(folder: str) -> bool:
    """Return whether a task still has its namespaces.

    If so, it has not exited: an exiting task releases its open files first, then its namespaces.
    """
    try:
        os.readlink(folder + "/ns/mnt")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def distinct(files: Iterable[T], place: Callable[[T], Tuple[int, int]]) -> List[T]:
    """Return one file for each open file description.

    Descriptors share an open file description after fork(2) and dup(2). `place` returns (task id, descriptor) of a
    file. A closed file cannot be compared, so it is always returned.
    """

    def order(one: T, other: T) -> int:
        (task, descriptor), (other_task, other_descriptor) = place(one), place(other)
        result = _kcmp(task, other_task, _FILE, descriptor, other_descriptor)
        if result in (0, 1, 2):
            return (0, -1, 1)[result]
        return -1 if (task, descriptor) < (other_task, other_descriptor) else 1

    unique: List[T] = []
    for file in sorted(files, key=functools.cmp_to_key(order)):
        if not unique or order(unique[-1], file) != 0:
            unique.append(file)
    return unique


def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong)
    library.syscall.restype = ctypes.c_long
    return library.syscall


_syscall = _libc()


def _kcmp(task: int, other: int, kind: int, descriptor: int = 0, other_descriptor: int = 0) -> int:
    """Compare two files or tables of two tasks with kcmp(2).

    Returns 0 if they are equal, 1 or 2 for their order, and a negative number on errors.
    """
    if _CALL_NUMBER is None:
        return -1
    return int(_syscall(_CALL_NUMBER, task, other, kind, descriptor, other_descriptor))
