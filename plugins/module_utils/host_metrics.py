# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host once and tell what there is to tell of its layout. Changes nothing, and waits for no run that does."""

from __future__ import annotations

import time
from typing import Callable, TypeVar

from . import mig_plan, mps_plan, time_slices
from .errors import FleetError, NvmlError
from .holders import find_holders
from .holders_mark import mark
from .host_metrics_drift import Beside, Standing, compare
from .host_metrics_text import Snapshot
from .layout_types import Layout
from .model import Holder, Host
from .mps_host import MpsHost
from .mps_model import MpsSeen
from .nvml import Session
from .nvml_calls import GPU_IS_LOST
from .ownership import Ownership, Record
from .transaction import changing
from .vgpu_host import VgpuHost, applies

T = TypeVar("T")


def look(read: Callable[[], Layout], directory: str, unlisted: str) -> Snapshot:
    """What the host is, against the layout that `read` gives.

    What cannot be told is a problem of the snapshot, and the rest is told. Raises NvmlError where NVML does not start.
    """
    return _Look(directory, unlisted).at(read)


class _Look:
    def __init__(self, directory: str, unlisted: str) -> None:
        self._directory, self._unlisted = directory, unlisted
        self._problems: list[FleetError] = []

    def at(self, read: Callable[[], Layout]) -> Snapshot:
        busy = self._attempt(lambda: changing(self._directory))
        with Session() as session:
            layout = self._attempt(read)
            session.with_time_slices = bool(self._attempt(lambda: self._has_slices(layout)))
            daemons = () if session.private else self._attempt(MpsHost().observe)
            silent: dict[int, NvmlError] = {}
            host = session.observe(silent=silent)
            # That a GPU is lost is told by whoever watches GPUs, and is no failure of this look.
            self._problems += [error for error in silent.values() if error.code != GPU_IS_LOST]
            holders = _holders(host, daemons or ())
            beside = Beside(daemons, *self._tenants(host)) if applies(session.private) else Beside(daemons)
        # Which a change that began meanwhile may have been at.
        busy = busy or self._attempt(lambda: changing(self._directory))
        standing: tuple[Standing, ...] = ()
        if layout is not None and busy is None:
            standing = self._standing(layout, mark(host, holders), beside, bool(silent))
        return Snapshot(
            time.time(),
            host.gpus,
            standing,
            holders,
            daemons or (),
            beside.tenants or (),
            tuple(self._problems),
            busy,
        )

    def _has_slices(self, layout: Layout | None) -> bool:
        asked = layout is not None and any(entry.time_slicing is not None for entry in layout.entries)
        return asked or time_slices.Record(self._directory).any()

    def _tenants(self, host: Host) -> tuple:
        there = VgpuHost(host.gpus)
        return self._attempt(there.observe), there.dmem, there.available() is None

    def _standing(self, layout: Layout, host: Host, beside: Beside, lost: bool) -> tuple[Standing, ...]:
        ownership = mig_plan.ALL_OURS
        if self._unlisted == "keep":
            owned = self._attempt(Record(self._directory).read)
            if owned is None:
                return ()
            ownership = Ownership("keep", owned)
        standing, problems = compare(layout, host, ownership, beside, lost)
        self._problems += problems
        return standing

    def _attempt(self, what: Callable[[], T]) -> T | None:
        try:
            return what()
        except FleetError as error:
            self._problems.append(error)
            return None


def _holders(host: Host, daemons: tuple[MpsSeen, ...]) -> tuple[Holder, ...]:
    """Those that run something. What a daemon is there with is its own; its clients hold."""
    own = mps_plan.serves(daemons, clients=False)
    return tuple(h for h in find_holders(host) if not h.watches and h.pid not in own.get(h.gpu_uuid, ()))
