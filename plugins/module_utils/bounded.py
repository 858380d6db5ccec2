# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that may take so long and say so much, and no more, whatever the driver, a tool or a user makes of it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Callable, Sequence

from .child_process import give_up, readable, start, stuck
from .errors import FleetError

_CHUNK = 65536
_DONE, _FAILED, _BROKEN = b"+", b"-", b"!"


def bounded(
    work: Callable[[], str],
    where: str,
    seconds: float,
    most_bytes: int,
    account: int | None = None,
    keep: Sequence[int] = (),
) -> str:
    """Return what `work` returns, done in a child process. Raises FleetError: its own, or that a bound was met.

    The child and what it started are killed then, so that nothing goes on behind the caller's back. It has nothing open that its
    parent has: where it cannot be killed it holds no lock. `account` is whose files it looks at; while an earlier child hangs in
    the kernel for the same account, none is started. `keep` are descriptors that the work needs.
    """
    if account is not None and stuck()[account]:
        cure = "End the processes of uid %d that serve a file system (FUSE), and run again." % account
        raise FleetError(where, "an earlier look at it hangs in the kernel", cure)
    reading, writing = os.pipe()
    child = start(lambda: _work(work, writing), [writing, *keep], account)
    os.close(writing)
    try:
        answer = _read(reading, where, time.monotonic() + seconds, most_bytes)
    finally:
        os.close(reading)
        give_up(child)
    if answer.startswith(_DONE):
        return answer[1:].decode()
    if answer.startswith(_FAILED):
        raise FleetError(*json.loads(answer[1:].decode()))
    if answer.startswith(_BROKEN):
        sys.stderr.write(answer[1:].decode(errors="replace"))
    raise FleetError(where, "the look at it ended without an answer", "Run it as root by hand, and see what it says.")


def _work(work: Callable[[], str], writing: int) -> int:
    """Run it in the child; return its exit status."""
    code = 0
    try:
        answer = _DONE + work().encode()
    except FleetError as error:
        answer = _FAILED + json.dumps([error.where, error.problem, error.cure]).encode()
    except BaseException:
        code, answer = 1, _BROKEN + traceback.format_exc().encode(errors="replace")
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(answer)
    return code


def _read(reading: int, where: str, deadline: float, most_bytes: int) -> bytes:
    chunks, length = [], 0
    while True:
        if not readable(reading, deadline):
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
