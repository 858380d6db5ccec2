# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand show."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from ..change.unnamed import AppliedRecord, unnamed_gpus
from ..layout.files import read_layout
from ..model import Gpu, Host, to_data
from ..techniques import observers
from ..techniques.forms import parse_layout
from ..techniques.registry import observed_services
from ..vendors.nvidia.nvml.bounded_session import BoundedSession


def show(options: Namespace) -> int:
    """Print the GPUs with their instances and processes."""
    with BoundedSession() as session:
        session.observers = observers.recorded(options.state_directory)
        host = session.observe(telemetry=options.telemetry)
        services = observed_services(session.private)
    unmanaged = _unmanaged(options, host, {service.key: service.seen for service in services})
    if options.json:
        data = dict(to_data(host), **{service.name: to_data(service.seen) for service in services})
        data["unmanaged"] = [to_data(each) for each in unmanaged]
        for gpu in data["gpus"]:
            # Leave out the long list of profiles, which only the planner needs.
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
    """Return the GPUs that the collection changed and that have no layout entry now.

    Returns an empty tuple if the host has no layout.
    """
    applied = AppliedRecord(options.state_directory).read()
    if not applied.known or not Path(options.layout).exists():
        return ()
    return unnamed_gpus(parse_layout(read_layout(options.layout)), host, applied, services_seen)


def _headline(host: Host) -> str:
    return "NVIDIA driver %s, CUDA %s, %s%s" % (
        host.driver_version,
        host.cuda_version or "unknown",
        "%d GPU%s" % (len(host.gpus), "" if len(host.gpus) == 1 else "s"),
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
