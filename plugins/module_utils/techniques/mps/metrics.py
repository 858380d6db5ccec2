# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare MPS daemons with the layout, and report metrics, as pure functions."""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

from ...layout.types import Layout
from ...model import Gpu, Host
from ...plan.gpu_plan import Plan
from ...plan.metric_family import COUNTER, GAUGE, Family, Sample, labels_of
from .host import adjustable
from .model import MpsDaemon, MpsPlace, MpsSeen
from .plan import devices, plan, wanted
from .steps import StartMps, StopMps


def answers(seen: MpsSeen) -> bool | None:
    """Return whether a daemon can serve clients, or None while the host boots."""
    if seen.running:
        return seen.active_thread_percentage is not None
    return None if seen.problem is None else False


def drift(layout: Layout, gpus: Plan, host: Host, seen: Sequence[MpsSeen]) -> list[tuple[str, set[str]]]:
    """Return (difference from the layout, UUIDs of its GPUs) for each difference.

    A daemon that is down but otherwise as desired is no difference, because another metric reports it.
    """
    asked = wanted(layout, gpus, host.driver_version, seen)
    steps = plan(asked, seen, gpus, host, adjustable).steps
    by_name = {one.daemon.name: one for one in seen}
    differences = []
    for step in steps:
        if isinstance(step, StopMps) and not step.forget:
            # This step is the first half of a restart. The daemon's StartMps step is the difference.
            continue
        one = by_name.get(step.name)
        if isinstance(step, StartMps) and one is not None and _only_down(one, step.daemon, host):
            continue
        daemons = [one.daemon] if one is not None else []
        daemons += [] if isinstance(step, StopMps) else [step.daemon]
        places = {place.gpu_uuid for daemon in daemons for place in daemon.places}
        differences.append(("mps %s: %s" % (step.name, step), places))
    return differences


def _only_down(one: MpsSeen, daemon: MpsDaemon, host: Host) -> bool:
    as_wanted = one.daemon == daemon and one.devices == devices(daemon, host.gpus)
    return as_wanted and not one.outdated and not answers(one)


def families(seen: Sequence[MpsSeen], gpus: Mapping[str, Gpu], deaths: Mapping[str, int]) -> list[Family]:
    """Return the daemons' metrics.

    `gpus` maps UUIDs to GPUs. `deaths` maps a daemon's name to its number of dead servers.
    """
    up = {each.daemon.name: int(bool(answers(each))) for each in seen if answers(each) is not None}
    return [
        Family(
            "openfleet_mps_daemon_up",
            GAUGE,
            "Whether the MPS daemon runs and answers.",
            tuple(_samples(seen, gpus, up)),
        ),
        Family(
            "openfleet_mps_server_deaths_total",
            COUNTER,
            "Servers of the MPS daemon that died, and their clients with them.",
            tuple(_samples(seen, gpus, deaths)),
        ),
    ]


def _samples(daemons: Sequence[MpsSeen], gpus: Mapping[str, Gpu], values: Mapping[str, int]) -> Iterator[Sample]:
    """Yield a sample for each device of each daemon in `values`."""
    for seen in daemons:
        for place in seen.daemon.places if seen.daemon.name in values else ():
            labels = dict(
                labels_of(place.gpu_uuid, gpus),
                daemon=seen.daemon.name,
                mig_instance=_instance(place, gpus.get(place.gpu_uuid)),
            )
            yield Sample(values[seen.daemon.name], labels)


def _instance(place: MpsPlace, gpu: Gpu | None) -> str:
    instances = gpu.mig.instances if gpu is not None else ()
    found = [each.id for each in instances if (each.profile, each.placement.start) == (place.profile, place.start)]
    return str(found[0]) if found else ""
