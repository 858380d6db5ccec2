# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply or predict a layout with slices, and print the result as JSON.

The layout has entries that `gpu_layout` cannot express, so this program builds them. Arguments as JSON: `counts`
(slices by index of the device, 1 for a whole device), `directory`, `check` and `saved`.
"""

from __future__ import annotations

import json
import sys

from ...change import plan_file
from ...change.converge import Request, converge, predict
from ...change.layout_module import report
from ...errors import FleetError
from ...layout.types import Entry, Layout, Selector
from .model import DIVIDER, Slices


def entry(number, index, count):
    selectors = (Selector("index", int(index)),)
    return Entry(number, selectors, DIVIDER, Slices(count)) if count > 1 else Entry(number, selectors, "shared")


def main():
    told = json.loads(sys.stdin.read())
    entries = [entry(number, *each) for number, each in enumerate(sorted(told["counts"].items()))]
    request = Request(Layout(tuple(entries)), told["directory"], "fail", saved=told.get("saved"))
    try:
        run = predict(request) if told.get("check") else converge(request, 5)
    except FleetError as error:
        return {"failed": True, "msg": str(error), "outcome": getattr(error, "outcome", None)}
    gpus = {gpu.uuid: gpu for gpu in run.host.gpus}
    return {
        "changed": run.changed,
        "plan": run.lines(),
        "recovered": run.recovered,
        "gpus": report(run.plan, gpus),
        "saved": plan_file.save(run.plan, run.host),
    }


print(json.dumps(main()))
