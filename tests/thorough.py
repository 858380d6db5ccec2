# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Additions of `make test-thorough` to `make test`: tests marked `thorough`, more random draws, full sweeps."""

from __future__ import annotations

import os
from typing import Sequence, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

#: Set by the Makefile.
THOROUGH = os.environ.get("OPENFLEET_THOROUGH") == "1"


def draws(usual: int) -> settings:
    """Return Hypothesis' settings for a test that `make test` gives `usual` examples, and the thorough run ten times as many."""
    # How long a machine takes to draw says nothing about the product.
    return settings(
        max_examples=usual * (10 if THOROUGH else 1), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def sample(items: Sequence[T], every: int) -> list[T]:
    """Return every n-th of the items and the last one; all of them in the thorough run."""
    return list(items) if THOROUGH else sorted({*items[::every], *items[-1:]})
