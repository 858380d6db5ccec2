# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Divide a device into slices."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import PlanError
from ...plan.parts import RELOAD, GpuStep
from .model import COUNTS, DIVIDER, Slices, pass_point, read, write


@dataclass(frozen=True)
class Request(GpuStep):
    """The step that requests a number of slices for a device.

    If another number is active, the driver must reload.
    """

    technique: ClassVar[str] = DIVIDER
    changes_devices: ClassVar[bool] = True
    count: int
    active: int

    @property
    def needs(self):
        return RELOAD if self.count != self.active else ""

    def __str__(self):
        return "split into %d" % self.count


@dataclass(frozen=True)
class SlicesPart:
    """One device's steps."""

    device: Any
    count: int
    steps: tuple[Request, ...] = ()
    kept: tuple[Any, ...] = ()
    left: tuple[Any, ...] = ()
    disturbs: tuple[Any, ...] = ()

    def kept_uuids(self):
        return []

    def planned(self):
        return ()

    def before(self):
        return "%d slices" % self.device.active

    def after(self):
        return "%d slices" % self.count


class SlicesDivider:
    """Documented in `protocol.Divider`."""

    key = DIVIDER
    target_keys = (DIVIDER,)

    def wanted(self, part):
        return Slices(part.count) if part.count > 1 else None

    def current(self, device):
        return device.division

    def plan(self, device, target, ownership, undivided):
        count = 1 if target.division is None else target.division.count
        if count not in COUNTS:
            raise PlanError(
                "%s on %s" % (target.where, device.label),
                "it cannot have %d slices" % count,
                "Write 2 or 4, or choose another sharing (%s)." % ", ".join(undivided),
            )
        same = count == device.active == device.requested
        return SlicesPart(device, count, () if same else (Request(count, device.active),))

    def disturbed(self, device, steps):
        # Only the driver's reload ends programs.
        return ()

    def apply(self, session, gpu_uuid, steps, done):
        for step in steps:
            device = next(each for each in read() if each.uuid == gpu_uuid)
            pass_point("before request %d" % device.index)
            write(device, requested=step.count)
            pass_point("after request %d" % device.index)
            done(step)

    def reload(self, session):
        pass_point("before reload")
        session.reload()
        pass_point("after reload")

    def leave_pending(self, session, plans):
        raise NotImplementedError

    def reboot_line(self, device):
        return ""

    def untouched(self, device, wanted):
        return device.division in (None, wanted)

    def only(self, device, parts):
        return device

    def report(self, planned, device):
        return {"slices": device.active}

    def target_data(self, division):
        return {} if division is None else {DIVIDER: division.count}

    def from_target_data(self, data):
        return Slices(int(data[DIVIDER])) if DIVIDER in data else None

    def pinned(self, division, planned):
        return division

    def observed_data(self, device):
        return {DIVIDER: [device.active, device.requested]}

    def differences(self, then, now):
        same = then[DIVIDER] == now[DIVIDER]
        return ([] if same else ["the slices were %s and are %s" % (then[DIVIDER][0], now[DIVIDER][0])], [])

    def after(self, device, part):
        return dataclasses.replace(device, active=part.count, requested=part.count)
