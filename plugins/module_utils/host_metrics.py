# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host once and tell what there is to tell of its layout. Changes nothing, and waits for no run that does."""

from __future__ import annotations

import contextlib
import time
from typing import Callable, TypeVar

from . import mig_plan, mps_plan
from .errors import ApplyError, FleetError, NvmlError
from .holders import find_holders
from .holders_mark import mark
from .host_metrics_drift import Beside, Standing, compare
from .host_metrics_text import Snapshot
from .layout_types import Layout
from .model import Holder, Host
from .mps_host import MpsHost
from .mps_model import MpsSeen
from .nvml import Session
from .ownership import Ownership, Record
from .techniques.registry import observers_for
from .transaction import looking
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
        layout = self._attempt(read)
        observers = self._attempt(lambda: observers_for(layout, self._directory))
        silent: dict[int, NvmlError] = {}
        with contextlib.ExitStack() as held:
            busy = self._attempt(lambda: held.enter_context(looking(self._directory)))
            if busy is not None:
                # It may be about to reset GPUs, and is told of none who has them open.
                return Snapshot(time.time(), changing=busy)
            session = held.enter_context(Session())
            session.observers = observers or ()
            host, private = session.observe(silent=silent), session.private
        # Lost GPUs are no failure of this look: monitoring has an alert for them.
        self._problems += silent.values()
        daemons = () if private else self._attempt(MpsHost().observe)
        holders = _holders(host, daemons or ())
        beside = Beside(daemons, *self._tenants(host)) if applies(private) else Beside(daemons)
        busy = self._attempt(self._changing)
        standing: tuple[Standing, ...] = ()
        if layout is not None and busy is None:
            standing = self._standing(layout, mark(host, holders), beside, bool(silent or host.lost))
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

    def _changing(self) -> ApplyError | None:
        with looking(self._directory) as busy:
            return busy

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
