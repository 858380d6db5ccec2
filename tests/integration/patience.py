# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for certain events on a machine of unknown load."""

from __future__ import annotations

import time
from typing import Callable

#: Timeout of all waits: a missing event takes this long to be reported, and a late one is still accepted.
PATIENCE_SECONDS = 180.0


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Look again and again until it holds; `what` is said of what never did."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.05)
