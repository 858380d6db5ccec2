# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH116, PTH119, PTH208
"""List the tasks (threads) of a process, and tell which of them share a table of open files.

A thread may have a table of its own (unshare(2), CLONE_FILES), and outlives the main thread of its process. The main thread is
then in state Z, and /proc/PID shows no open files, memory, namespaces or root directory.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Callable, Iterable, Iterator, List, Tuple, TypeVar

T = TypeVar("T")

# Numbers of kcmp(2), which the C library does not wrap, and what it compares (linux/kcmp.h).
_CALL_NUMBER = {"x86_64": 312, "aarch64": 272, "ppc64le": 354, "s390x": 343}.get(os.uname().machine)
_FILE, _FILES = 0, 2
# Tables that a task is compared with. Beyond that its table is read, even if it is shared.
_MOST_TABLES = 8
# Links of /proc/PID/task: two, and one for each task (fs/proc/base.c, proc_task_getattr).
_LINKS_OF_ONE_TASK = 3


def can_compare(proc: str = "/proc") -> bool:
    """Return whether kcmp(2) works here, and this /proc has the process ids of this process's own PID namespace."""
    own = os.getpid()
    return os.path.basename(os.path.realpath(proc + "/self")) == str(own) and _kcmp(own, own, _FILES) == 0


def tables(proc: str, pid: int, compare: bool) -> Iterator[Tuple[int, str]]:
    """Yield (task id, its folder in /proc) once for each table of open files of a process, the main thread's first.

    Read a table before asking for the next one. A task is compared after that, so that a main thread that ends meanwhile hides no
    table. Without `compare` (see `can_compare`) each task is yielded.
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
    """Return the ids of the tasks of a process except the main thread's; none of one that has ended."""
    folder = "%s/%d/task" % (proc, pid)
    try:
        if os.stat(folder).st_nlink == _LINKS_OF_ONE_TASK:
            return []
        return [task for task in map(int, os.listdir(folder)) if task != pid]
    except (FileNotFoundError, ProcessLookupError):
        return []


def folder_of(proc: str, pid: int, task: int | None) -> str:
    """Return the folder in /proc that shows a process by one of its tasks; by the main thread for None.

    /proc/TID is not listed, but exists, and has what /proc/PID/task/TID lacks: map_files.
    """
    folder = "%s/%d" % (proc, pid)
    # By way of the process, since `proc` may be a folder with links to some processes.
    return folder if task is None else "%s/../%d" % (folder, task)


def live_task(proc: str, pid: int) -> int | None:
    """Return a task that shows what the main thread no longer does; None while the main thread runs, or if none is left."""
    if _has_namespaces("%s/%d" % (proc, pid)):
        return None
    tasks = other_tasks(proc, pid)
    return next((task for task in tasks if _has_namespaces(folder_of(proc, pid, task))), None)


def _has_namespaces(folder: str) -> bool:
    """Return whether a task has not exited: it gives up its namespaces after its open files."""
    try:
        os.readlink(folder + "/ns/mnt")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def distinct(files: Iterable[T], place: Callable[[T], Tuple[int, int]]) -> List[T]:
    """Return one of each open file description, which processes share after fork(2) and dup(2).

    `place` gives (task id, descriptor). A file that was closed meanwhile counts as one of its own.
    """

    def order(one: T, other: T) -> int:
        (task, descriptor), (other_task, other_descriptor) = place(one), place(other)
        found = _kcmp(task, other_task, _FILE, descriptor, other_descriptor)
        if found in (0, 1, 2):
            return (0, -1, 1)[found]
        return -1 if (task, descriptor) < (other_task, other_descriptor) else 1

    found: List[T] = []
    for file in sorted(files, key=functools.cmp_to_key(order)):
        if not found or order(found[-1], file) != 0:
            found.append(file)
    return found


def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong)
    library.syscall.restype = ctypes.c_long
    return library.syscall


_syscall = _libc()


def _kcmp(task: int, other: int, kind: int, descriptor: int = 0, other_descriptor: int = 0) -> int:
    """Return 0 for the same, 1 or 2 for the order of two, and a negative number if the kernel does not tell."""
    if _CALL_NUMBER is None:
        return -1
    return int(_syscall(_CALL_NUMBER, task, other, kind, descriptor, other_descriptor))
