# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the leases of a fleet from the server, and write them as a page."""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping

from .asking import Asking
from .lease_model import Lease, LeaseEntry, Leases, Waiting
from .prometheus import Sample
from .report_html import environment

#: Several exporters can report the same lease. The maximum counts it once.
_POOL = "sum by (host, entry) (max by (host, entry, gpu_uuid) (gpu:lease_pool_gpus{%(where)s}))"
_AMOUNTS = (
    "sum by (host, entry) (max by (host, entry, account) (gpu:lease_gpus{%(where)s}))",
    "sum by (host, entry) (max by (host, entry, account) (gpu:lease_waiting_gpus{%(where)s}))",
)
_ENDS = "max by (host, account, lease, size, entry, gpu_index) (gpu:lease_end_timestamp_seconds{%(where)s})"
_WAITING = "max by (host, account) (gpu:lease_waiting{%(where)s}) > 0"
_NAMES = ("host", "lease", "account", "size", "entry")
#: Maximum number of rows in a table.
_TOP = 2000


def leases(asking: Asking) -> Leases | None:
    """Return a fleet's leases, or None if no entry offers leases.

    Raises PrometheusError.
    """
    offered = {_place(sample.labels): sample.value for sample in asking.ask(_POOL)}
    if not offered:
        return None
    leased, waits = ({_place(sample.labels): sample.value for sample in answer} for answer in asking.ask_all(_AMOUNTS))
    ends, waiting = asking.ask_all((_ENDS, _WAITING))
    of_lease: dict[tuple[str, ...], list[Sample]] = defaultdict(list)
    for sample in ends:
        of_lease[tuple(sample.labels.get(name, "") for name in _NAMES)].append(sample)
    found = [
        Lease(
            *(host, number, account, size, entry),
            gpus=tuple(sorted((sample.labels.get("gpu_index", "") for sample in samples), key=_by_number)),
            ends_seconds=max(sample.value for sample in samples),
        )
        for (host, number, account, size, entry), samples in of_lease.items()
    ]
    return Leases(
        asking.end_seconds,
        tuple(sorted(found, key=lambda one: (one.ends_seconds, one.host, _by_number(one.number)))),
        tuple(
            LeaseEntry(*place, value, leased.get(place, 0.0), waits.get(place, 0.0))
            for place, value in sorted(offered.items())
        ),
        tuple(
            Waiting(sample.labels.get("host", ""), sample.labels.get("account", ""), int(sample.value))
            for sample in sorted(waiting, key=lambda sample: sorted(sample.labels.items()))
        ),
    )


def to_text(found: Leases) -> str:
    """Return the HTML page."""
    return environment().get_template("leases.html.j2").render(found=found, kinds=(), top=_TOP)


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("host", ""), labels.get("entry", "")


def _by_number(text: str) -> tuple[int, str]:
    return (int(text) if text.isascii() and text.isdigit() else -1, text)
