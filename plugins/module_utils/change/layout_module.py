# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share the arguments, the run and the return values of the layout modules.

These modules apply a layout or parts of it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Sequence

from ..errors import DriverAbsentError
from ..model import Host, to_data
from ..plan import busy
from ..plan.gpu_plan import Plan, gpu_line
from ..plan.ownership import POLICIES, UNNAMED_POLICIES
from ..plan.transaction import DIRECTORY
from ..processes.command import run_to_end
from ..techniques.forms import parse_layout
from ..vendors.registry import divider_of, vendor_of_host
from . import lost_gpus
from .converge import Request, Run, converge, predict
from .pending import RESTARTED
from .prepare import ALL_PARTS
from .targets import asked


def argspec() -> dict[str, Any]:
    """Return the options of every module that applies a layout.

    Documented in the fragment `openfleet.gpu.layout`.
    """
    return {
        # The type is `raw` because the parser of the layout reports errors for each entry.
        "layout": {"type": "raw", "required": True},
        "on_busy": {"type": "str", "choices": list(busy.POLICIES), "default": busy.FAIL},
        "busy_timeout": {"type": "int", "default": 600},
        "grace_period": {"type": "int", "default": 30},
        "lock_timeout": {"type": "int", "default": 60},
        "lost": {"type": "str", "choices": list(lost_gpus.POLICIES), "default": lost_gpus.FAIL},
        "state_directory": {"type": "path", "default": DIRECTORY},
    }


def argspec_of_gpus() -> dict[str, Any]:
    """Return the options of the modules that change GPUs and instances.

    Documented in the fragment `openfleet.gpu.layout.gpus`.
    """
    return dict(
        argspec(),
        unlisted={"type": "str", "choices": list(POLICIES), "default": POLICIES[0]},
        plan={"type": "dict"},
        leave_pending={"type": "bool", "default": False},
        mig_manager={"type": "str", "choices": ["refuse", "disable"], "default": "refuse"},
        restart_services={"type": "list", "elements": "str", "default": list(RESTARTED)},
        # The text of a Python file, which must not be logged.
        pynvml={"type": "str", "no_log": True},
    )


def argspec_of_layout() -> dict[str, Any]:
    """Return the options of the module `layout`.

    The module's action plugin uses two of these options on the controller.
    """
    return dict(
        argspec_of_gpus(),
        unnamed={"type": "str", "choices": list(UNNAMED_POLICIES), "default": UNNAMED_POLICIES[0]},
        expected_gpus={"type": "list", "elements": "str", "default": []},
        installed_code={"type": "bool", "default": True},
    )


def bring_about(params: dict[str, Any], check_mode: bool, parts: Sequence[str] = ALL_PARTS) -> dict[str, Any]:
    """Apply these parts of the layout and return the module's return values."""
    request = Request(
        layout=parse_layout(params["layout"]),
        directory=params["state_directory"],
        unlisted=params.get("unlisted", POLICIES[0]),
        saved=params.get("plan"),
        services=params.get("restart_services", ()),
        parts=parts,
        lost=params["lost"],
        unnamed=params.get("unnamed", UNNAMED_POLICIES[0]),
    )
    also = _mig_manager(params, request)
    if check_mode and params.get("pynvml"):
        vendor_of_host().lend(params["pynvml"])
    try:
        if check_mode:
            # In check mode, software of a service may be missing because an earlier task only predicts its
            # installation.
            done = predict(request, params["on_busy"], installs=True)
        else:
            done = converge(
                request,
                params["lock_timeout"],
                busy.OnBusy(params["on_busy"], params["busy_timeout"], params["grace_period"]),
                params.get("leave_pending", False),
            )
    except DriverAbsentError as error:
        if error.call == "import":
            vendor_of_host().respawn()
        if request.saved is not None or not check_mode:
            raise
        msg = "%s Only the form of the layout was checked." % error
        return {"changed": True, "driver_present": False, **vendor_of_host().without_driver(error), "msg": msg}
    done = _without_mig_manager(done, also, check_mode)
    plan = done.plan
    told = {
        "changed": done.changed,
        "driver_present": True,
        "plan": [*done.lines(), *also],
        "plan_lines": [
            *plan.lines_data(),
            *({"index": u.index, "uuid": u.uuid, "text": u.text, "unmanaged": True} for u in done.unmanaged),
            *({"text": line} for line in (*done.reboots, *also)),
        ],
        "counts": plan.counts(),
        "gpus": report(plan, {gpu.uuid: gpu for gpu in done.host.gpus}),
        "reboot_required": done.reboot_required,
        "diff": {
            "before": "".join(gpu_line(each.gpu, plan.before(each)) + "\n" for each in plan.gpus),
            "after": "".join(gpu_line(each.gpu, plan.after(each)) + "\n" for each in plan.gpus),
            "prepared": "\n".join([*plan.lines(), *map("then {}".format, done.followed)]) if plan.changes else "",
        },
    }
    if check_mode:
        from . import plan_file

        told["plan_data"] = plan_file.save(plan, done.host)
        told.update(vendor_of_host().binding())
        if done.missing:
            told["missing"] = list(done.missing)
        told["reload_risk"] = _reload_risk(done.host)
        if plan.disturbs:
            told["busy"] = [disturbance.to_data() for disturbance in plan.disturbs]
    if done.unmanaged:
        told["unmanaged"] = [to_data(each) for each in done.unmanaged]
    if done.warnings:
        told["lost"] = list(done.warnings)
    if done.warnings or done.not_restored:
        told["warnings"] = [*done.warnings, *done.not_restored]
    if done.followed:
        told["followed"] = list(done.followed)
    if done.ended:
        told["ended"] = list(done.ended)
    if done.recovered:
        told["recovered"] = done.recovered
    return told


def _reload_risk(host: Host) -> bool:
    """Return whether a systemd reload would detach GPUs from containers."""
    from ..techniques.detached import look

    return bool(look(Path("/"), [holder for gpu in host.gpus for holder in gpu.held_by], run_to_end))


def _mig_manager(params: dict[str, Any], request: Request) -> tuple[str, ...]:
    """Return the step for NVIDIA's MIG manager, or none if it is not needed.

    An empty layout changes nothing, so the MIG manager can stay enabled.
    """
    if "mig_manager" not in params or not request.layout.entries:
        return ()
    from . import mig_manager

    return mig_manager.plan(params["mig_manager"])


def _without_mig_manager(done: Run, also: tuple[str, ...], check_mode: bool) -> Run:
    """Apply the step from `_mig_manager`, and return the run with this step.

    Raises FollowError.
    """
    if not also:
        return done
    if not check_mode and not done.reboot_required:
        from . import mig_manager

        mig_manager.disable()
    return dataclasses.replace(done, followed=(*done.followed, *also))


def report(plan: Plan, observed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the desired, previous and current state of each GPU."""
    return [
        {
            "index": gpu.gpu.index,
            "uuid": gpu.gpu.uuid,
            "name": gpu.gpu.name,
            "entry": gpu.target.where,
            "asked": asked(gpu.target),
            "before": plan.before(gpu),
            "after": plan.after(gpu),
            "changed": plan.changed(gpu),
            **divider_of(gpu.gpu).report(gpu.gpu, observed.get(gpu.gpu.uuid, gpu.gpu)),
        }
        for gpu in plan.gpus
    ]
