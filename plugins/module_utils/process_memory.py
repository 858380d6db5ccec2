# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files of /proc that show a process's own memory: its arguments and its environment.

A process may have these pages where nothing need ever answer. So each read, and all of a look together, take only so long: a look
happens under the host's lock.
"""

from __future__ import annotations

import threading
import time

from .proc_files import read

#: An environment is read whole.
MOST_BYTES = 1 << 22
#: For one read, which takes microseconds, and for all of a look.
_SECONDS, _ALL_SECONDS = 2.0, 20.0
#: Readers that may be stuck at a time, each with a file open.
_MOST_STUCK = 8


class _Memory:
    """Reads files of /proc that show a process's own memory, each and all of them only for so long.

    A process may have its pages where nothing need ever answer. The thread that waits for them ends with this process.
    """

    def __init__(self) -> None:
        self._stuck: list[threading.Thread] = []
        self._seconds_left = _ALL_SECONDS

    def begin_pass(self) -> None:
        self._seconds_left = _ALL_SECONDS

    def read(self, path: str, most: int) -> str:
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if self._seconds_left <= 0 or len(self._stuck) >= _MOST_STUCK:
            return ""
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(read(path, most)), daemon=True)
        began = time.monotonic()
        thread.start()
        thread.join(min(_SECONDS, self._seconds_left))
        if thread.is_alive():
            self._stuck.append(thread)
        self._seconds_left -= time.monotonic() - began
        return found[0] if found else ""


_memory = _Memory()


def begin_pass() -> None:
    """Let the processes of another look take their time. Readers that are stuck count on."""
    _memory.begin_pass()


def memory_of(path: str, most: int = MOST_BYTES) -> str:
    """Read a file of /proc that shows a process's own memory; nothing where that takes too long, or too many others did."""
    return _memory.read(path, most)
