# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Save plans as data. Later, apply a saved plan exactly or not at all.

A saved plan has the observed state, the desired state and the steps between them. The saved steps are never run
directly. The planner plans again with the saved placements, and the new steps must equal the saved steps. So the
planner's checks also apply to a saved plan, for example for blocking processes and for instances of other owners.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Iterable, Mapping, Sequence

from ..errors import PlanError
from ..model import Device, Host, to_data
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership
from ..techniques.registry import SETTINGS
from ..vendors.registry import divider_of, target_data
from . import planner
from .targets import asked

SCHEMA = 4
_WHERE = "the saved plan"
_SAVE_AGAIN = "Check the difference and save a new plan (-e gpu_layout_plan_out=FILE)."


def save(plan: Plan, host: Host) -> dict[str, Any]:
    """Return a host's plan as data, including the observed state."""
    return {
        "schema": SCHEMA,
        "driver_version": host.driver_version,
        "gpus": [
            {
                "uuid": gpu.gpu.uuid,
                "index": gpu.gpu.index,
                "name": gpu.gpu.name,
                "plan": str(gpu),
                "busy": [disturbance.to_data() for disturbance in gpu.disturbs],
                "asked": _asked(gpu.target),
                "observed": _observed(gpu.gpu),
                "steps": _steps(gpu),
                "planned": to_data(gpu.planned()),
                "kept": gpu.division.kept_uuids(),
            }
            for gpu in plan.gpus
        ],
        **{
            part.key: {
                "plan": part.lines(),
                "busy": [disturbance.to_data() for disturbance in part.disturbs],
                "steps": part.to_data(),
            }
            for part in plan.parts
        },
    }


def restore(saved: Mapping[str, Any], host: Host, targets: Iterable[Target], ownership: Ownership) -> Plan:
    """Return the saved plan as a plan for the current host.

    The returned plan has no steps if the saved plan was already applied. Raises PlanError with the differences if the
    host's state or the layout has changed.
    """
    try:
        return _restore(_checked(saved), host, tuple(targets), ownership)
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanError(_WHERE, "it was not written by this collection (%r)" % error, _SAVE_AGAIN) from None


def check_beside(saved: Mapping[str, Any], plan: Plan) -> None:
    """Raise PlanError if the plan has service steps that are not in `saved`.

    Saved steps may be missing from the plan, because they may already be done.
    """
    for part in plan.parts:
        then = _checked(saved)[part.key]
        if not all(step in then["steps"] for step in part.to_data()):
            was = "; ".join(then["plan"]) or "none"
            raise PlanError(
                _WHERE, "the steps have changed: %s (saved: %s)" % ("; ".join(part.lines()), was), _SAVE_AGAIN
            )


def fleet(plans: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of a plan file. `plans` has one plan for each host name."""
    return {"schema": SCHEMA, "hosts": dict(plans)}


def host_part(text: str, host: str) -> dict[str, Any]:
    """Return one host's plan from the text of a plan file.

    Raises PlanError if the text is invalid or has no plan for the host.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PlanError(_WHERE, "the file is not JSON (%s)" % error, _SAVE_AGAIN) from None
    hosts = _checked(data).get("hosts", {})
    if host not in hosts:
        raise PlanError(
            _WHERE,
            "%s is not in it" % host,
            "Save a plan with it, or leave it out of this run (--limit). The file has: %s."
            % (", ".join(sorted(hosts)) or "no host"),
        )
    return hosts[host]


def _checked(data: Any) -> Mapping[str, Any]:
    """Return the data. Raises PlanError if its schema version is not supported."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != SCHEMA:
        raise PlanError(
            _WHERE,
            "it has schema %s and this release reads %d" % (schema, SCHEMA),
            "Save it again with this release (-e gpu_layout_plan_out=FILE), or apply it with the release that wrote it.",
        )
    return data


def _restore(saved: Mapping[str, Any], host: Host, targets: Sequence[Target], ownership: Ownership) -> Plan:
    gpus = {gpu.uuid: gpu for gpu in host.gpus}
    other_layout = _asked_otherwise(saved, gpus, targets)
    if other_layout:
        raise PlanError(_WHERE, "gpu_layout has changed: %s" % "; ".join(other_layout), _SAVE_AGAIN)
    moved = differences(saved, host)
    if any(gpu["uuid"] not in gpus for gpu in saved["gpus"]):
        raise _moved(moved)
    planned = {gpu["uuid"]: gpu for gpu in saved["gpus"]}
    pinned = [_pinned(target, gpus[target.gpu_uuid], planned[target.gpu_uuid]["planned"]) for target in targets]
    if moved:
        if _reached(host, pinned, ownership):
            return planner.plan(host.gpus, pinned, ownership)
        raise _moved(moved)
    plan = planner.plan(host.gpus, pinned, ownership)
    other = [
        "%s (saved: %s)" % (g, planned[g.gpu.uuid]["plan"])
        for g in plan.gpus
        if _steps(g) != planned[g.gpu.uuid]["steps"]
    ]
    if other:
        raise PlanError(_WHERE, "the steps have changed: %s" % "; ".join(other), _SAVE_AGAIN)
    return plan


def _pinned(target: Target, gpu: Device, planned: Any) -> Target:
    return dataclasses.replace(target, division=divider_of(gpu).pinned(target.division, planned))


def _reached(host: Host, pinned: Sequence[Target], ownership: Ownership) -> bool:
    """Return whether all GPUs already have the desired state of the saved plan."""
    try:
        return not planner.plan(host.gpus, pinned, ownership).changes
    except PlanError:
        return False


def _moved(moved: Sequence[str]) -> PlanError:
    return PlanError(_WHERE, "the host has changed since the plan was made: %s" % "; ".join(moved), _SAVE_AGAIN)


def differences(saved: Mapping[str, Any], host: Host) -> list[str]:
    """Return the differences between the GPUs' saved and current state.

    Compares only the GPUs in the plan. Each difference is one text.
    """
    found = []
    if saved["driver_version"] != host.driver_version:
        found.append("the driver was %s and is %s" % (saved["driver_version"], host.driver_version))
    current = {gpu.uuid: gpu for gpu in host.gpus}
    for gpu in saved["gpus"]:
        now = current.get(gpu["uuid"])
        if now is None:
            found.append("gpu %d (%s, %s) is gone" % (gpu["index"], gpu["name"], gpu["uuid"]))
        else:
            found += ["gpu %d: %s" % (now.index, text) for text in _differences(gpu["observed"], now)]
    return found


def _differences(then: Mapping[str, Any], gpu: Device) -> Iterable[str]:
    now = _observed(gpu)
    of_device, of_parts = divider_of(gpu).differences(then, now)
    yield from of_device
    for each in planner.settings_of(gpu):
        found = each.difference(then[each.setting], now[each.setting])
        if found is not None:
            yield found
    yield from of_parts


def _asked_otherwise(saved: Mapping[str, Any], gpus: Mapping[str, Device], targets: Sequence[Target]) -> list[str]:
    """Return texts for the differences between the current and the saved layout."""
    then = {gpu["uuid"]: gpu for gpu in saved["gpus"]}
    found = []
    for target in targets:
        gpu = then.pop(target.gpu_uuid, None)
        if gpu is None:
            found.append("%s is in %s, but not in the plan" % (gpus[target.gpu_uuid].label, target.where))
        elif gpu["asked"] != _asked(target):
            found.append("%s is to be %s" % (gpus[target.gpu_uuid].label, asked(target)))
    # `differences` reports missing GPUs, whether or not the layout selects them.
    found += ["gpu %d (%s) is no longer in gpu_layout" % (g["index"], uuid) for uuid, g in then.items() if uuid in gpus]
    return found


def _asked(target: Target) -> dict[str, Any]:
    """Return a GPU's desired state without the position of its layout entry.

    An entry that only moves within the layout is then no difference.
    """
    data = target_data(target)
    del data["gpu_uuid"], data["where"]
    for technique in SETTINGS:
        if data.get(technique.setting) in (None, technique.default):
            # A setting that the run does not read has its default value.
            data.pop(technique.setting, None)
    for value in data.values():
        if isinstance(value, list):
            value.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return data


def _observed(gpu: Device) -> dict[str, Any]:
    """Return the part of a GPU's state that a plan depends on.

    Holders are left out, because each plan reads them again.
    """
    settings = {each.setting: each.observed(gpu) for each in planner.settings_of(gpu)}
    return {**divider_of(gpu).observed_data(gpu), **settings}


def _steps(gpu: GpuPlan) -> list[dict[str, Any]]:
    return [dict(to_data(step), step=type(step).__name__) for step in gpu.steps]
