# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print what the controller decides about a fleet with lanes, as JSON.

The test runs this program in a copy of the collection that has the technique `lanes`. Standard input has gpu_info's
result for a host with lanes on its first GPU.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.plugin_utils import host_results
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import holdings, hosts_of, is_held
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Audit,
    Finding,
    Sources,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import check
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.layouts import layouts
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import (
    FleetGpu,
    Problem,
    Shape,
    Workload,
    share,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.pack import pack
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.mode import decide
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import Need, Occupant, Wish
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.overlay import planned
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.risk import risk
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.today import fleet_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.wishes import wishes
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.registry import KEYS
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.request import Request, answer

GIB = 1 << 30
MODEL = "L40S-48GB"
NEED = Need(4 * GIB, 10, 0.9, "measured")


def lanes(count: int) -> list[dict]:
    return [{"gpus": [0], "sharing": "lanes", "lanes": {"count": count}}]


def attempted(work):
    """Return the result of `work`, or its error as text."""
    try:
        return work()
    except FleetError as error:
        return str(error)


def audited(state: dict) -> dict:
    """Return whether each GPU is held, and which GPUs right-sizing leaves out."""
    keeper = {"gpu_uuid": state["gpus"][0]["uuid"], "kind": "lane_keeper", "who": "lane-keeper", "pid": 7}
    held = {**state, "gpus": [{**state["gpus"][0], "holders": [keeper]}, {**state["gpus"][1], "holders": []}]}
    found = holdings(None, hosts_of({"a": held}))
    findings = tuple(Finding(str(number), Verdict("right", "It is used."), each) for number, each in enumerate(found))
    audit = Audit(0.0, Window(0.0, 1.0), Sources(), findings)
    left = {}
    for name, layout in (("entry", lanes(2)), ("rows", [])):
        today = fleet_today(audit, hosts_today({"a": held}, {"a": layout}), {})
        left[name] = [gpu.left for gpu in today]
    return {"held": [is_held(each) for each in found], "left": left}


def rightsized() -> dict:
    """Return the decision, risk, packing and plan for workloads that suit lanes."""
    wish = Wish(isolation="none", latency="low")
    decision = decide(wish, NEED, MODEL)
    gpus = tuple(FleetGpu("a", index, MODEL) for index in range(2))
    workloads = tuple(Workload("w%d" % number, (decision.shape,)) for number in range(3))
    problem = Problem(gpus, workloads)
    packing = pack(problem)
    layout = layouts(problem, packing)["a"]
    finding = Finding("1", Verdict("idle", "It is idle."), holdings(None, hosts_of({"a": STATE}))[0])
    one = Occupant("w0", ("a", 0), STATE["gpus"][0]["uuid"], Shape("whole"), None, finding, wish)
    host = hosts_today({"a": STATE}, {"a": []})["a"].host
    _plan, lines = planned(layout, host.gpus, host.driver_version)
    crowd = Problem(gpus[:1], tuple(Workload("w%d" % number, (share("lanes", 0, 0),)) for number in range(9)))
    wide = Problem(gpus, (Workload("w", (share("lanes", 1, 1),), gpus=2),))
    return {
        "mode": [decision.mode, decision.reason, decide(wish, NEED, "T4-16GB").mode],
        "wish": dataclasses.asdict(wishes([{"mode": "lanes"}])[0])["mode"],
        "layout": layout,
        "problems": check.problems(problem, packing),
        "plan": lines,
        "risk": risk(one, decision.shape, MODEL, NEED, "a")[1],
        "unplaced": len(pack(crowd, "heuristic").unplaced),
        "wide": attempted(lambda: pack(wide)),
    }


def offered() -> dict:
    """Return each backend's answer for several lanes and for one lane."""
    found: dict[str, dict] = {}
    for key in KEYS:
        answers = [answer(Request(lanes(count), key, expected_gpus=[MODEL], node="n1")) for count in (3, 1)]
        shared, single = answers
        found[key] = {
            "resources": shared["resources"],
            "problems": shared["problems"],
            "single": [*single["problems"], *(each["reason"] for each in single["left_out"])],
        }
    return found


SENT = json.load(sys.stdin)
STATE = host_results.gpu_info("a", SENT)
WRONG = {**SENT, "lanes": [{"gpu": "no UUID", "count": 2}]}
json.dump(
    {
        "rows": STATE["lanes"],
        "refused": attempted(lambda: host_results.gpu_info("a", WRONG)),
        **audited(STATE),
        **rightsized(),
        "offers": offered(),
    },
    sys.stdout,
    default=str,
)
