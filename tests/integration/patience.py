# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for events that will certainly happen, on a machine with unknown load."""

from __future__ import annotations

import time
from typing import Callable

#: Timeout in seconds for all waits. The tests accept late events, and report a missing event after this time.
PATIENCE_SECONDS = 180.0


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Poll until `holds` returns a true value.

    `what` names the event in the error.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.05)
