# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle workloads that a plan would interrupt: refuse, wait, or end them."""

from __future__ import annotations

import time
from typing import Callable, Sequence, TypeVar

from ..errors import BusyError
from ..frozen import frozen
from ..holders.model import CONTAINER, UNKNOWN
from ..model import Holder, Process
from .disturbance import Disturbance

T = TypeVar("T")

FAIL, WAIT, FORCE = POLICIES = ("fail", "wait", "force")

_LOOK_SECONDS = 5.0
#: How often blocking processes are ended. If new ones block again after that, the step fails.
_ROUNDS = 3


@frozen
class OnBusy:
    """The policy for blocking holders, with its timeout and grace period.

    The timeout is for WAIT, the grace period for FORCE. `tell` is called each time the holders of a waiting run change.
    """

    policy: str = FAIL
    timeout_seconds: float = 0.0
    grace_seconds: float = 30.0
    tell: Callable[[str], None] = lambda text: None


REFUSE = OnBusy()


def wait_until_free(attempt: Callable[[], T], on_busy: OnBusy) -> T:
    """Return the result of `attempt`.

    With the policy WAIT, retries after a BusyError until the timeout. Between attempts, neither the lock nor the driver
    is held, so that waiting blocks no other run.
    """
    deadline = time.monotonic() + on_busy.timeout_seconds
    reported = None
    while True:
        try:
            return attempt()
        except BusyError as error:
            left = deadline - time.monotonic()
            if on_busy.policy != WAIT or left <= 0:
                raise
            if error.where != reported:
                reported = error.where
                on_busy.tell("waiting: %s" % reported)
        time.sleep(min(_LOOK_SECONDS, left))


def make_way(look: Callable[[], Sequence[Disturbance]], clear: Callable[[Sequence[Disturbance]], bool] | None) -> None:
    """Check for blocking holders right before a step, and end them with `clear`.

    If `clear` is None, raises BusyError. Returns if none of the remaining holders can be ended (`can_be_ended`). Raises
    BusyError if a holder could not be ended or was started again.
    """
    returned = False
    for rounds_left in range(_ROUNDS, -1, -1):
        disturbs = look()
        if not disturbs:
            return
        if clear is None:
            raise BusyError(disturbs, "it came into use during this run", "Run again.")
        ended = rounds_left and clear(disturbs)
        if rounds_left and not ended and not any(can_be_ended(holder) for one in disturbs for holder in one.who):
            return
        returned = returned or bool(ended)
    if not returned:
        raise BusyError(disturbs, "it holds the GPU and could not be ended", "End it by hand, and run again.")
    raise BusyError(disturbs, "it was ended and started again", "Stop the service that starts it (gpu_drain_services).")


def can_be_ended(holder: Holder | Process) -> bool:
    """Return whether the holder is a process that uses the GPU.

    Allocations, containers with the device, and unknown holders are no processes.
    """
    return bool(holder.pid) and holder.kind not in (CONTAINER, UNKNOWN)
