# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add the lanes' changes to a run."""

from __future__ import annotations

from ...errors import PlanError
from ...plan.metric_family import GAUGE, Family, Sample, labels_of
from ...plan.services import Asked
from .model import KEY, NAME, LanesPlan, Step, observe, pass_point, write

MOST_LANES = 8


def planned(layout, plan, seen, leave_others=True):
    wanted = {}
    for entry in layout.entries if leave_others else ():
        for gpu in plan.gpus:
            if gpu.target.where == entry.where and entry.sharing == KEY:
                if entry.part.count > MOST_LANES:
                    raise PlanError("%s.lanes" % entry.where, "no GPU has %d lanes" % entry.part.count, "Lower count.")
                wanted[gpu.gpu.uuid] = entry.part.count
    named = {gpu.gpu.uuid for gpu in plan.gpus}
    now = {one.gpu_uuid: one.count for one in seen}
    for uuid in now:
        wanted.setdefault(uuid, 0 if uuid in named or not leave_others else now[uuid])
    steps = [Step(uuid, now.get(uuid, 0), count) for uuid, count in wanted.items() if now.get(uuid, 0) != count]
    changed = {step.gpu_uuid for step in steps}
    return LanesPlan(tuple(steps), tuple(one for one in seen if one.gpu_uuid not in changed))


class LanesChange:
    key = KEY

    def __init__(self, part):
        self._steps = part.steps

    @property
    def record(self):
        return {"before": {step.gpu_uuid: step.before for step in self._steps}}

    def stop(self, done):
        pass_point("stop")
        for step in self._steps:
            if step.before:
                write(step.gpu_uuid, 0)

    def start(self, host, done):
        for step in self._steps:
            if step.after:
                write(step.gpu_uuid, step.after)
            done.append("lanes %d" % step.after)
        pass_point("start")

    def clear_away(self):
        pass

    def bring_back(self, host):
        restore(self.record)

    def forget(self):
        pass_point("forget")


def restore(data):
    for uuid, count in data["before"].items():
        write(uuid, count)


class LanesService:
    key = KEY
    name = NAME

    def __init__(self, private):
        self.seen = ()

    @staticmethod
    def asked(layout, plan, driver_version):
        steps = planned(layout, plan, ()).steps
        return [Asked("lanes %s" % step.gpu_uuid, "add", "%d" % step.after, (step.gpu_uuid,)) for step in steps]

    def observe(self):
        self.seen = observe()

    def observe_on(self, gpus):
        pass

    def own(self, part=None, clients=True):
        return {}

    def plan(self, request):
        return planned(request.layout, request.plan, self.seen, leave_others=not request.removes)

    def drift(self, layout, plan, host):
        part = planned(layout, plan, self.seen)
        return [(line, {step.gpu_uuid}) for line, step in zip(part.lines(), part.steps)]

    def families(self, gpus):
        samples = [Sample(one.count, labels_of(one.gpu_uuid, gpus)) for one in self.seen]
        return [Family("openfleet_lanes", GAUGE, "Lanes of the GPU.", tuple(samples))]

    def describe(self, host):
        return ["%d lanes on %s" % (one.count, one.gpu_uuid) for one in self.seen]

    def missing(self, part):
        return None

    def change(self, part, look, clear):
        return LanesChange(part) if part.steps else None

    def unfinished(self, data):
        return True

    def bring_back(self, data, host):
        restore(data)
