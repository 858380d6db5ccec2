# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do where something that a plan would end is in use: refuse, wait for it to end, or end it."""

from __future__ import annotations

import time
from typing import Callable, Sequence, TypeVar

from .disturbance import Disturbance
from .errors import BusyError
from .frozen import frozen
from .holders.model import CONTAINER, UNKNOWN
from .model import Holder, Process

T = TypeVar("T")

FAIL, WAIT, FORCE = POLICIES = ("fail", "wait", "force")

_LOOK_SECONDS = 5.0
#: How often those in the way are ended before it is said that they come back.
_ROUNDS = 3


@frozen
class OnBusy:
    """A policy, how long to wait under WAIT, and how long a process has to end by itself under FORCE.

    `tell` is called with who is waited for, whenever that changes.
    """

    policy: str = FAIL
    timeout_seconds: float = 0.0
    grace_seconds: float = 30.0
    tell: Callable[[str], None] = lambda text: None


REFUSE = OnBusy()


def wait_until_free(attempt: Callable[[], T], on_busy: OnBusy) -> T:
    """The attempt's result; under WAIT it is made again while it raises BusyError, until the time is over.

    Nothing is held in between, neither lock nor driver: others may work on the host, and waiting blocks none of them.
    """
    deadline = time.monotonic() + on_busy.timeout_seconds
    told = None
    while True:
        try:
            return attempt()
        except BusyError as error:
            left = deadline - time.monotonic()
            if on_busy.policy != WAIT or left <= 0:
                raise
            if error.where != told:
                told = error.where
                on_busy.tell("waiting: %s" % told)
        time.sleep(min(_LOOK_SECONDS, left))


def make_way(look: Callable[[], Sequence[Disturbance]], clear: Callable[[Sequence[Disturbance]], bool] | None) -> None:
    """Look whom a step would disturb, right before it, and refuse, or end them where there is leave to.

    Returns with holders left only where none of them could be ended. Raises BusyError.
    """
    came_back = False
    for rounds_left in range(_ROUNDS, -1, -1):
        disturbs = look()
        if not disturbs:
            return
        if clear is None:
            raise BusyError(disturbs, "it came into use while the run went on", "Run again.")
        ended = rounds_left and clear(disturbs)
        if rounds_left and not ended and not any(can_be_ended(holder) for one in disturbs for holder in one.who):
            return
        came_back = came_back or bool(ended)
    if not came_back:
        raise BusyError(disturbs, "it holds the GPU and could not be ended", "End it by hand, and run again.")
    raise BusyError(disturbs, "it was ended and came back", "Stop the service that starts it (gpu_drain_services).")


def can_be_ended(holder: Holder | Process) -> bool:
    """Whether it is a process that uses the GPU itself, and not an allocation, a device that was given, or a guess."""
    return bool(holder.pid) and holder.kind not in (CONTAINER, UNKNOWN)
