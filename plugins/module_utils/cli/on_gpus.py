# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommands that use the driver: show, plan, apply and export."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, TypeVar

from ..errors import DriverAbsentError
from ..model import Gpu, Host, lost_of, to_data
from ..techniques import observers
from ..vendors.nvidia.nvml.bounded_session import BoundedSession, start_ahead

T = TypeVar("T")
_POLL_SECONDS = 0.2


def show(options: Namespace) -> int:
    """Print the GPUs with their instances and processes."""
    from ..techniques.registry import observed_services

    with BoundedSession() as session:
        session.observers = observers.recorded(options.state_directory)
        host = session.observe(telemetry=options.telemetry)
        services = observed_services(session.private)
    unmanaged = _unmanaged(options, host, {service.key: service.seen for service in services})
    if options.json:
        data = dict(to_data(host), **{service.name: to_data(service.seen) for service in services})
        data["unmanaged"] = [to_data(each) for each in unmanaged]
        for gpu in data["gpus"]:
            # The list of profiles is long, and only the planner needs it.
            gpu["mig"].pop("profiles", None)
            for instance in gpu["mig"]["instances"]:
                instance.pop("compute_placements", None)
        print(json.dumps(data, indent=2))
        return 0
    print(_headline(host))
    for gpu in host.gpus:
        print("\n".join(_described(gpu)))
    for lost in host.lost:
        print("%s  %s: %s" % (lost.label, lost.state.replace("is ", ""), lost.problem))
    for service in services:
        for line in service.describe(host):
            print(line)
    for each in unmanaged:
        print(each.line())
    return 0


def _unmanaged(options: Namespace, host: Host, services_seen: Any) -> tuple[Any, ...]:
    """Return the GPUs that the collection changed and that have no entry now.

    Returns an empty tuple if the host has no layout.
    """
    from ..change.unnamed import AppliedRecord, unnamed_gpus

    applied = AppliedRecord(options.state_directory).read()
    if not applied.known or not Path(options.layout).exists():
        return ()
    from ..techniques.forms import parse_layout
    from .files import read_layout

    return unnamed_gpus(parse_layout(read_layout(options.layout)), host, applied, services_seen)


def plan(options: Namespace) -> int:
    """Print the plan that apply would run."""
    start_ahead()
    from ..change.converge import Request, predict
    from ..change.journal import Journal
    from ..techniques.forms import parse_layout
    from .files import read_layout
    from .main import EXIT_CHANGES

    layout = parse_layout(read_layout(options.layout))
    request = Request(layout, options.state_directory, options.unlisted, lost=options.lost, unnamed=options.unnamed)
    run = predict(request, options.on_busy)
    _warn(run)
    interrupted = _is_interrupted(Journal(options.state_directory).read(), run.host)
    if interrupted:
        print("gpu-layout: an earlier run was interrupted, and apply will complete or undo it first", file=sys.stderr)
    if options.json:
        print(json.dumps(dict(_result(run), cut_off=interrupted), indent=2))
    else:
        print("\n".join([*run.lines(), *_in_the_way(run), _planned(run.plan.counts())]))
    return EXIT_CHANGES if options.exit_code and (run.changed or interrupted) else 0


def _is_interrupted(entry: Any, host: Host) -> bool:
    """Return whether apply would complete an interrupted run.

    If the journal has only targets for lost GPUs, it is kept until these GPUs work again, and the result is False.
    """
    targets = () if entry is None else (*entry.before, *entry.after)
    return entry is not None and (not targets or any(lost_of(host, target.gpu_uuid) is None for target in targets))


def apply(options: Namespace) -> int:
    """Apply the layout, and print the plan that was applied."""
    start_ahead()
    from ..change.converge import Request, converge
    from ..change.trial import settle
    from ..plan.busy import OnBusy
    from ..techniques.forms import parse_layout
    from .files import read_layout

    if options.layout != "-" and settle(Path(options.layout), options.state_directory):
        _say("the previous layout was restored: a run ended before it left its MIG modes pending for a reboot")
        if not Path(options.layout).exists():
            _say("there was no previous layout, so nothing is applied")
            return 0
    request = Request(
        parse_layout(read_layout(options.layout)),
        options.state_directory,
        options.unlisted,
        services=options.restart_services,
        lost=options.lost,
        unnamed=options.unnamed,
    )
    on_busy = OnBusy(options.on_busy, options.busy_timeout, options.grace_period, _say)
    run = _patient(lambda: converge(request, options.lock_timeout, on_busy), options.driver_timeout)
    _warn(run)
    if options.json:
        done = {"recovered": run.recovered, "ended": list(run.ended), "followed": list(run.followed)}
        print(json.dumps(dict(_result(run), **done), indent=2))
        return 0
    if run.recovered:
        print("an earlier run was interrupted, and this run started from the %s layout" % run.recovered)
    for who in run.ended:
        print("ended: %s" % who)
    print("\n".join([*run.lines(), *run.followed, _done(run.plan.counts())]))
    return 0


def export(options: Namespace) -> int:
    """Print the state of the GPUs as gpu_layout."""
    start_ahead()
    from ..export.look import export_host
    from ..layout.yaml_text import layout_yaml
    from ..techniques.forms import layout_to_data

    found = export_host(options.pin_placements, options.select_by)
    data = layout_to_data(found.layout)
    if options.json:
        print(json.dumps({"gpu_layout": data, "left_out": list(found.left_out)}, indent=2))
    else:
        print(layout_yaml(data), end="")
    for sentence in found.left_out:
        _say(sentence)
    return 0


def _patient(attempt: Callable[[], T], seconds: float) -> T:
    """Return the result of `attempt`.

    If there is no driver, retry for this many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except DriverAbsentError as error:
            # If a Python module is missing, waiting does not help.
            if error.call == "import" or time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _say(text: str) -> None:
    """Print progress on standard error."""
    print("gpu-layout: %s" % text, file=sys.stderr, flush=True)


def _warn(run: Any) -> None:
    for text in (*run.warnings, *run.not_restored):
        _say(text)


def _result(run: Any) -> dict[str, Any]:
    busy = [disturbance.to_data() for disturbance in run.plan.disturbs]
    data = {
        "changed": run.changed,
        "plan": run.lines(),
        "counts": run.plan.counts(),
        "busy": busy,
    }
    if run.unmanaged:
        data["unmanaged"] = [to_data(each) for each in run.unmanaged]
    warnings = [*run.warnings, *run.not_restored]
    return dict(data, warnings=warnings) if warnings else data


def _in_the_way(run: Any) -> list[str]:
    return ["blocking: %s" % disturbance for disturbance in run.plan.disturbs]


def _planned(counts: dict[str, int]) -> str:
    gpus = "%s to change" % _gpus(counts["gpus_changed"]) if counts["gpus_changed"] else "nothing to change"
    return "Plan: %d to create, %d to destroy, %d kept; %s" % (
        counts["create"],
        counts["destroy"],
        counts["keep"],
        gpus,
    )


def _done(counts: dict[str, int]) -> str:
    gpus = "%s changed" % _gpus(counts["gpus_changed"]) if counts["gpus_changed"] else "nothing changed"
    return "Done: %d created, %d destroyed, %d kept; %s" % (counts["create"], counts["destroy"], counts["keep"], gpus)


def _gpus(count: int) -> str:
    return "%d GPU%s" % (count, "" if count == 1 else "s")


def _headline(host: Host) -> str:
    return "NVIDIA driver %s, CUDA %s, %s%s" % (
        host.driver_version,
        host.cuda_version or "unknown",
        _gpus(len(host.gpus)),
        ", simulated" if host.simulated else "",
    )


def _described(gpu: Gpu) -> list[str]:
    if gpu.mig.enabled:
        state = "MIG on" + ("" if gpu.mig.instances else ", no instances")
    else:
        state = ("MIG off, " if gpu.mig.capable else "") + "compute mode %s" % (gpu.compute_mode or "unknown")
    state = ", ".join([state, *filter(None, (observer.describe(gpu) for observer in observers.OBSERVERS))])
    if gpu.mig.pending != gpu.mig.enabled:
        state += ", MIG %s pending until a reset" % ("on" if gpu.mig.pending else "off")
    lines = ["gpu %d  %s  %s  %s  %s" % (gpu.index, gpu.name, gpu.uuid, gpu.pci_address or "no PCI address", state)]
    for instance in gpu.mig.instances:
        for compute in instance.compute_instances:
            part = "" if len(instance.compute_instances) == 1 else " %dc" % compute.compute_slices
            line = "  %s@%d%s  %s" % (instance.profile, instance.placement.start, part, compute.mig_uuid or "no UUID")
            lines.append(line + _users(compute.processes))
        if not instance.compute_instances:
            lines.append("  %s@%d  no compute instance" % (instance.profile, instance.placement.start))
    if not gpu.mig.enabled and gpu.processes:
        lines.append(" " + _users(gpu.processes))
    return lines


def _users(processes: Any) -> str:
    return "".join("  pid %d%s" % (p.pid, " (%s)" % p.name if p.name else "") for p in processes)
