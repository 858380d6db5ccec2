# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a GPU's lanes in layouts and files."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...plan.disturbance import Disturbance

KEY = NAME = "lanes"
#: The files' folder. The test replaces this text with its own folder.
FOLDER = Path("@FOLDER@")


@dataclass(frozen=True)
class Lanes:
    """The desired number of lanes on each GPU."""

    count: int


@dataclass(frozen=True)
class Seen:
    """A GPU's current lanes."""

    gpu_uuid: str
    count: int


@dataclass(frozen=True)
class Step:
    """Set the number of lanes on a GPU. 0 removes the lanes."""

    gpu_uuid: str
    before: int
    after: int


@dataclass(frozen=True)
class LanesPlan:
    """The lanes that change and the lanes that stay."""

    key: ClassVar[str] = KEY
    steps: tuple[Step, ...] = ()
    kept: tuple[Seen, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()

    def lines(self):
        return ["lanes: %d instead of %d on %s" % (step.after, step.before, step.gpu_uuid) for step in self.steps]

    def planned(self):
        return [*self.kept, *(Seen(step.gpu_uuid, step.after) for step in self.steps)]

    def to_data(self):
        return [{"gpu": step.gpu_uuid, "count": step.after} for step in self.steps]

    def gpus_changed(self):
        return frozenset(step.gpu_uuid for step in self.steps)

    def before(self, gpu_uuid):
        counts = {**{one.gpu_uuid: one.count for one in self.kept}, **{s.gpu_uuid: s.before for s in self.steps}}
        return in_words(counts.get(gpu_uuid, 0))

    def after(self, gpu_uuid):
        counts = {**{one.gpu_uuid: one.count for one in self.kept}, **{s.gpu_uuid: s.after for s in self.steps}}
        return in_words(counts.get(gpu_uuid, 0))


def in_words(count):
    return "%d lanes" % count if count else ""


def observe():
    files = sorted(path for path in FOLDER.iterdir() if path.name.startswith("GPU-"))
    return tuple(Seen(path.name, int(path.read_text())) for path in files)


def write(gpu_uuid, count):
    pass_point("before %d" % count)
    path = FOLDER / gpu_uuid
    if count:
        path.write_text(str(count))
    elif path.exists():
        path.unlink()
    pass_point("after %d" % count)


def pass_point(name):
    """Kill this process if the test requests a kill at this point."""
    asked = FOLDER / "kill"
    if asked.exists() and asked.read_text() == name:
        os.kill(os.getpid(), signal.SIGKILL)


def look(private):
    return observe()


def report(private):
    return [{"gpu": one.gpu_uuid, "count": one.count} for one in observe()]
