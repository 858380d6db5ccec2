# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that may take so long and say so much, and no more, whatever the driver, a tool or a user makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import traceback
from typing import Callable

from .errors import FleetError

#: How long a process is waited for that was killed. One that hangs in the kernel does not end, and is left.
_REAP_SECONDS = 2.0
_POLL_SECONDS = 0.01
_CHUNK = 65536
_DONE, _FAILED = b"+", b"-"


def bounded(work: Callable[[], str], where: str, seconds: float, most_bytes: int) -> str:
    """Return what `work` returns, done in a child process. Raises FleetError: its own, or that a bound was met.

    The child and what it started are killed then, so that nothing goes on behind the caller's back.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    # By both, for either may come first.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    try:
        answer = _read(reading, where, time.monotonic() + seconds, most_bytes)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _reap(child)
    if answer.startswith(_DONE):
        return answer[1:].decode()
    if answer.startswith(_FAILED):
        raise FleetError(*json.loads(answer[1:].decode()))
    raise FleetError(where, "the look at it ended without an answer", "Run it as root by hand, and see what it says.")


def _work(work: Callable[[], str], writing: int) -> None:
    """Run it in the child, which ends here."""
    code = 1
    try:
        os.setpgid(0, 0)
        # As the caller's handlers would raise it where nobody awaits it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            answer = _DONE + work().encode()
        except FleetError as error:
            answer = _FAILED + json.dumps([error.where, error.problem, error.cure]).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _read(reading: int, where: str, deadline: float, most_bytes: int) -> bytes:
    chunks, length = [], 0
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise FleetError(
                where, "the look at it takes too long", "See whether its GPUs and tools answer (nvidia-smi)."
            )
        chunk = os.read(reading, _CHUNK)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        length += len(chunk)
        if length > most_bytes:
            raise FleetError(
                where,
                "there is more to tell than %d bytes" % most_bytes,
                "See who has so many processes on its GPUs (gpu-layout show).",
            )


def _reap(child: int) -> None:
    deadline = time.monotonic() + _REAP_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
