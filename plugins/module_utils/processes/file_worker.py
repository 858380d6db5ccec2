# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files that may never answer, in a child process that can be abandoned.

Examples are paths through another root directory, and other processes' memory. In a user namespace, any user can mount
a file system that never answers. Root's read then hangs in the kernel, and no signal ends it. So a scan, which holds
the host's lock, reads such files in a child process that only has its socket open. One child serves the whole scan as
long as it answers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections import Counter
from typing import Any, Callable, Dict, Iterator, Tuple

from . import child_process
from .accounts import account_of
from .proc_files import read

#: Time limits in seconds: for one query, which normally takes microseconds, and for all unanswered queries of a scan.
_SECONDS, _ALL_SECONDS = 2.0, 20.0
#: Maximum number of unanswered queries of one account, of root, and of all accounts. Queries of earlier scans that
#: still hang count too.
_MOST_OF_ACCOUNT, _MOST_OF_ROOT, _MOST = 1, 8, 32
#: Maximum size of an answer, and bytes per read. The answer for a /dev with 16,384 nodes is smaller.
_MOST_BYTES, _CHUNK_BYTES = 1 << 24, 1 << 16
_ROOT = 0
# Kinds of children. A child has this name in /proc (child_process.mark).
FILES, MAPS = "look", "map"
_tasks: Dict[str, Callable[..., Any]] = {}


class NoAnswerError(Exception):
    """A query was not answered.

    `asked` is False if the query was not sent, because other accounts have used up the limits.
    """

    def __init__(self, asked: bool) -> None:
        super().__init__("no answer")
        self.asked = asked


def task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a module-level function for use with `ask`.

    Arguments and result must be JSON values. The function may raise OSError. It must not import modules of the
    collection, because the child has closed the archive with these modules (install/installed.py).
    """
    _tasks["%s.%s" % (function.__module__, function.__qualname__)] = function
    return function


class Worker:
    """Run the queries of one scan in a child."""

    def __init__(self, deadline: float = math.inf, name: str = FILES) -> None:
        self._name = name
        #: No query is sent after this deadline, in seconds of time.monotonic().
        self._deadline = deadline
        self._seconds_left = _ALL_SECONDS
        self._unanswered: Counter[int] | None = None
        self._child: Tuple[int, socket.socket] | None = None
        #: Tasks that were registered when the child started.
        self._known: frozenset[str] = frozenset()

    def ask(self, account: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task in the child and return its result.

        Raises the OSError of the task, or NoAnswerError.
        """
        if self._unanswered is None:
            self._unanswered = child_process.stuck(self._name)
        if self._unanswered[account] >= _most_of(account):
            raise NoAnswerError(asked=True)
        began = time.monotonic()
        seconds = min(_SECONDS, self._seconds_left, self._deadline - began)
        # Count each account only up to its own limit, because one account can cause or fake any number of hanging
        # children.
        together = sum(min(count, _most_of(one)) for one, count in self._unanswered.items())
        if together >= _MOST or seconds <= 0:
            raise NoAnswerError(asked=False)
        name = "%s.%s" % (function.__module__, function.__qualname__)
        if name not in self._known:
            self.close()
        answer = self._asked(json.dumps([account, name, arguments]).encode() + b"\n", began + seconds)
        if answer is None:
            self.close()
            self._unanswered[account] += 1
            self._seconds_left -= time.monotonic() - began
            raise NoAnswerError(asked=True)
        error, value = json.loads(answer)
        if error is not None:
            raise OSError(*error)
        return value

    def close(self) -> None:
        """End the child, or abandon it if it hangs."""
        if self._child is not None:
            child, connection = self._child
            self._child = None
            connection.close()
            child_process.give_up(child)

    def _asked(self, question: bytes, deadline: float) -> bytes | None:
        """Return the child's answer, or None if it does not answer."""
        if self._child is None:
            self._known = frozenset(_tasks)
            near, far = socket.socketpair()
            with far:
                self._child = (child_process.start(lambda: _serve(far, self._name), [far.fileno()]), near)
        connection = self._child[1]
        answer = bytearray()
        try:
            connection.sendall(question)
            while not answer.endswith(b"\n"):
                chunk = connection.recv(_CHUNK_BYTES) if child_process.readable(connection, deadline) else b""
                if not chunk or len(answer) > _MOST_BYTES:
                    return None
                answer += chunk
        except OSError:
            return None
        return bytes(answer)


def _most_of(account: int) -> int:
    return _MOST_OF_ROOT if account == _ROOT else _MOST_OF_ACCOUNT


_current: Dict[str, Worker] | None = None


def _forget() -> None:
    """Detach a forked child from its parent's scan.

    Answers on the socket are for the parent.
    """
    global _current
    _current = None


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def one_look(deadline: float = math.inf) -> Iterator[None]:
    """Share children and limits among all queries in the block.

    A nested block belongs to the outer one.
    """
    global _current
    if _current is not None:
        yield
        return
    _current = {name: Worker(deadline, name) for name in (FILES, MAPS)}
    try:
        yield
    finally:
        for worker in _current.values():
            worker.close()
        _current = None


def ask(account: int, function: Callable[..., Any], *arguments: Any, worker: str = FILES) -> Any:
    """Run a task in a child process and return its result.

    `account` is the account that is responsible if there is no answer (`accounts.account_of`). `worker` is FILES, or
    MAPS for reads that do not wait for a file system. MAPS has its own limits, so that mappings can be read while a
    file system hangs. Raises the OSError of the task, or NoAnswerError.
    """
    with one_look():
        if _current is None:
            raise AssertionError("no file worker")
        return _current[worker].ask(account, function, *arguments)


def _serve(connection: socket.socket, name_of_child: str) -> int:
    """Answer queries in the child until the parent closes its end of the socket."""
    os.chdir("/")
    marked = None
    with connection.makefile("rwb") as lines:
        for line in lines:
            account, name, arguments = json.loads(line)
            if account != marked:
                child_process.mark(account, name_of_child)
                marked = account
            try:
                answer = [None, _tasks[name](*arguments)]
            except OSError as error:
                answer = [[error.errno or 0, error.strerror or str(error)], None]
            lines.write(json.dumps(answer).encode() + b"\n")
            lines.flush()
    return 0


#: Limit in bytes, which is enough for a whole environment.
_MOST_MEMORY_BYTES = 1 << 22
_read = task(read)


def memory_of(path: str, most: int = _MOST_MEMORY_BYTES) -> str:
    """Read a file in /proc that shows a process's memory.

    This can be its arguments, environment or mappings. The memory may be mapped from a file system that never answers.
    Returns "" if the read takes too long or a limit is reached.
    """
    return memory_or_none(path, most) or ""


def memory_or_none(path: str, most: int = _MOST_MEMORY_BYTES) -> str | None:
    """Read like `memory_of`, but return None if there is no answer."""
    try:
        return str(ask(account_of(os.path.dirname(path)), _read, path, most))  # noqa: PTH120
    except NoAnswerError:
        return None
