# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask what may never answer, in a child process that can be left behind: paths through another root, and others' memory.

In a user namespace any user mounts file systems whose server is the user's own. Root's look at a process then waits for it in the
kernel, where no signal ends the wait. A look happens under the host's lock, so the process that holds the lock asks a child that
has nothing open but its socket. One child serves a whole look while it answers.
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

#: For one question, which takes microseconds, and for all of a look that were not answered.
_SECONDS, _ALL_SECONDS = 2.0, 20.0
#: Unanswered questions of one account in a look, or left from earlier ones, until it is asked no more; and of all accounts.
_MOST_OF_ACCOUNT, _MOST_OF_ROOT, _MOST = 1, 8, 32
#: A /dev of 16,384 nodes says less.
_MOST_BYTES, _CHUNK_BYTES = 1 << 24, 1 << 16
_ROOT = 0
# Kinds of children, by the names that they have in /proc (child_process.mark).
FILES, MAPS = "look", "map"
_tasks: Dict[str, Callable[..., Any]] = {}


class NoAnswerError(Exception):
    """There is no answer. `asked` is False where that is not the doing of the account: others have used up what may hang."""

    def __init__(self, asked: bool) -> None:
        super().__init__("no answer")
        self.asked = asked


def task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function be asked for: of a module, with arguments and a result that JSON knows. It may raise OSError.

    It imports nothing of the collection: the child has closed what that may be read from (install/installed.py).
    """
    _tasks["%s.%s" % (function.__module__, function.__qualname__)] = function
    return function


class Worker:
    """One look's questions."""

    def __init__(self, deadline: float = math.inf, name: str = FILES) -> None:
        self._name = name
        #: In seconds of time.monotonic(); nothing is asked after it.
        self._deadline = deadline
        self._seconds_left = _ALL_SECONDS
        self._unanswered: Counter[int] | None = None
        self._child: Tuple[int, socket.socket] | None = None
        #: The tasks that the child knows: those of modules that were loaded when it started.
        self._known: frozenset[str] = frozenset()

    def ask(self, account: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a task returns, asked in the child. Raises its OSError, and NoAnswerError."""
        if self._unanswered is None:
            self._unanswered = child_process.stuck(self._name)
        if self._unanswered[account] >= _most_of(account):
            raise NoAnswerError(asked=True)
        began = time.monotonic()
        seconds = min(_SECONDS, self._seconds_left, self._deadline - began)
        # One account may leave, or pose as, as many as it likes: that is not to use up what others may.
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
        """End the child, or leave it where it does not end."""
        if self._child is not None:
            child, connection = self._child
            self._child = None
            connection.close()
            child_process.give_up(child)

    def _asked(self, question: bytes, deadline: float) -> bytes | None:
        """The line that the child answers; None if it does not."""
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
    """A forked child has no part in its parent's look: the answers are the parent's."""
    global _current
    _current = None


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def one_look(deadline: float = math.inf) -> Iterator[None]:
    """Let all questions of the block be one look's: one child of each kind, and one bound.

    A look within a look is a part of it.
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
    """Return what a task returns, asked in a child process. Raises its OSError, and NoAnswerError.

    `account` is the uid whose doing it is if nothing answers (`accounts.account_of`). `worker` is FILES, or MAPS for
    what waits for no file system: its questions are counted apart, so that a silent file system leaves no mapping unread.
    """
    with one_look():
        assert _current is not None
        return _current[worker].ask(account, function, *arguments)


def _serve(connection: socket.socket, name_of_child: str) -> int:
    """Answer in the child until the parent closes its end."""
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


#: An environment is read whole.
_MOST_MEMORY_BYTES = 1 << 22
_read = task(read)


def memory_of(path: str, most: int = _MOST_MEMORY_BYTES) -> str:
    """Read a file of /proc that shows a process's own memory, as its arguments, environment and mappings.

    A process may have these pages where nothing need ever answer, as in a file of the user's own file system. Returns nothing if
    that takes too long, or too many others did.
    """
    return memory_or_none(path, most) or ""


def memory_or_none(path: str, most: int = _MOST_MEMORY_BYTES) -> str | None:
    """As memory_of; None where there is no answer."""
    try:
        return str(ask(account_of(os.path.dirname(path)), _read, path, most))  # noqa: PTH120
    except NoAnswerError:
        return None
