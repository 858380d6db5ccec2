# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define devices and their state, which files store."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Mapping

KEY, DIVIDER = "acme", "slices"
COUNTS = (1, 2, 4)
#: The files' folder. The test replaces this text with its own folder.
FOLDER = Path("@FOLDER@")


@dataclass(frozen=True)
class Slices:
    """A device's desired or current slices.

    There are at least two.
    """

    divider: ClassVar[str] = DIVIDER
    instances: ClassVar[tuple[Any, ...]] = ()
    count: int

    def __str__(self):
        return "%d slices" % self.count


@dataclass(frozen=True)
class Device:
    """A device.

    `active` is the device's current number of slices. `requested` is the number after the next reload.
    """

    vendor: ClassVar[str] = KEY
    divider: ClassVar[str] = DIVIDER
    index: int
    uuid: str
    active: int
    requested: int
    name: str = "ACME Quarter"
    pci_address: str | None = None
    memory_total_bytes: int | None = 1 << 34
    numa_node: int | None = None
    processes: tuple[Any, ...] = ()
    held_by: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def division(self):
        return Slices(self.active) if self.active > 1 else None

    @property
    def label(self):
        return "device %d (%s)" % (self.index, self.uuid)

    short_label = label

    def setting(self, name):
        return None


def read():
    """Return the devices."""
    states = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("device-*.json"))]
    return tuple(Device(**state) for state in states)


def write(device, **changed):
    state = {name: getattr(device, name) for name in ("index", "uuid", "active", "requested")}
    path = FOLDER / ("device-%d.json" % device.index)
    path.with_suffix(".new").write_text(json.dumps(dict(state, **changed)))
    path.with_suffix(".new").replace(path)


def users():
    """Return (device UUID, name) for each program that has a device open."""
    path = FOLDER / "users"
    return json.loads(path.read_text()) if path.exists() else []


def pass_point(name):
    """Kill this process if the test requests a kill at this point."""
    asked = FOLDER / "kill"
    if asked.exists() and asked.read_text() == name:
        os.kill(os.getpid(), signal.SIGKILL)
