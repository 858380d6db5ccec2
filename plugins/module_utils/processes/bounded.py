# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a function in a child process with time and output limits."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Callable, Sequence

from ..errors import FleetError
from .child_process import give_up, readable, start, stuck

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
    """Run `work` in a child process and return its result.

    Raises the FleetError of `work`, or a FleetError for an exceeded limit. The child and its own children are killed at
    the end. The child inherits only the descriptors in `keep`, so that it holds no lock if it cannot be killed.

    `account` owns the files that the child reads. If an earlier child for the same account still hangs in the kernel,
    no child is started.
    """
    if account is not None and stuck()[account]:
        cure = "End the processes of uid %d that serve a file system (FUSE), and run again." % account
        raise FleetError(where, "an earlier query hangs in the kernel", cure)
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
    raise FleetError(where, "the query ended without a result", "Run the command by hand as root to see its error.")


def _work(work: Callable[[], str], writing: int) -> int:
    """Run `work` in the child and write the result. Return the exit status."""
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
                where, "the query takes too long", "Check that the GPUs and tools of the host answer (nvidia-smi)."
            )
        chunk = os.read(reading, _CHUNK)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        length += len(chunk)
        if length > most_bytes:
            raise FleetError(
                where,
                "the result is larger than %d bytes" % most_bytes,
                "Check which user has so many processes on its GPUs (gpu-layout show).",
            )
