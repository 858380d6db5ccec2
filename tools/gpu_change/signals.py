# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert signals to exceptions, so that cleanup code runs."""

from __future__ import annotations

import contextlib
import signal
from typing import Any, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal ended the run.

    The class is not an Exception, so that no step treats the signal as a failure.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def as_exceptions() -> Iterator[None]:
    """Raise Ended in the block if a signal would end the run.

    Only the first signal raises it. The block ignores later signals, so that they do not interrupt the restoration.
    """
    seen: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        if not seen:
            seen.append(number)
            raise Ended(number)

    # nohup ignores SIGHUP, so it stays ignored.
    wanted = [number for number in _SIGNALS if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN)]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
