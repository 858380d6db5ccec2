# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of the leases of a fleet at one time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lease:
    """A current lease. `gpus` has the indices of its GPUs."""

    host: str
    number: str
    account: str
    size: str
    entry: str
    gpus: tuple[str, ...]
    ends_seconds: float


@dataclass(frozen=True)
class LeaseEntry:
    """An entry that offers leases. Amounts are in GPUs (docs/gpu-layout-metrics.md)."""

    host: str
    entry: str
    offered_gpus: float
    leased_gpus: float
    waiting_gpus: float


@dataclass(frozen=True)
class Waiting:
    """The waiting requests of an account on a host."""

    host: str
    account: str
    requests: int


@dataclass(frozen=True)
class Leases:
    """All leases of a fleet, sorted by their end. `at_seconds` is the metrics' time."""

    at_seconds: float
    leases: tuple[Lease, ...]
    entries: tuple[LeaseEntry, ...]
    waiting: tuple[Waiting, ...]
