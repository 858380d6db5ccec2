# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Differences between `make test-thorough` and `make test`.

The former runs tests marked `thorough`, more random examples and full sweeps.
"""

from __future__ import annotations

import os
from typing import Sequence, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

#: Set by the Makefile.
THOROUGH = os.environ.get("OPENFLEET_THOROUGH") == "1"


def draws(usual: int) -> settings:
    """Return Hypothesis settings with `usual` examples.

    The thorough run has ten times as many.
    """
    # The speed of a machine says nothing about the tested code.
    return settings(
        max_examples=usual * (10 if THOROUGH else 1), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def sample(items: Sequence[T], every: int) -> list[T]:
    """Return every n-th item and the last one. The thorough run gets all items."""
    return list(items) if THOROUGH else sorted({*items[::every], *items[-1:]})
