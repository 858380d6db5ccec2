# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Distinguish a sick GPU from a mistake in the layout.

NVML has error codes that mean either a sick GPU or a healthy driver or model that lacks a feature. A GPU with such an
error is read without a failure, but one of its values is missing. The vendor finds these missing values
(`vendors.protocol.Gap`). To test whether the GPU causes a refusal, the missing value is taken from another GPU of the
same model. If the refusal then disappears, the GPU is the cause.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Sequence

from ..errors import BusyError, FleetError, PlanError, SelectorError
from ..model import Host, LostGpu
from ..vendors.registry import vendor_of_host

if TYPE_CHECKING:
    from ..vendors.protocol import Gap, Session


def sick_gpus(host: Host, error: FleetError, plan: Callable[[Host], Any]) -> tuple[LostGpu, ...]:
    """Return the GPUs whose missing values cause the refusal `error`.

    Returns an empty tuple if the layout or a workload causes the refusal. `plan` plans the layout for a host, and raises
    PlanError or BusyError.
    """
    sick: dict[str, LostGpu] = {}
    while True:
        for gap in vendor_of_host().gaps(host):
            trial = _without_gap(host, gap)
            refusal = _refusal(plan, trial)
            if refusal is None or (refusal.where, refusal.problem) != (error.where, error.problem):
                break
        else:
            return tuple(sick.values())
        sick.setdefault(gap.gpu.uuid, gap.lost())
        if refusal is None:
            return tuple(sick.values())
        host, error = trial, refusal


def _without_gap(host: Host, gap: Gap) -> Host:
    if gap.completed is None:
        return without(host, [gap.lost()])
    gpus = tuple(gap.completed if gpu.uuid == gap.gpu.uuid else gpu for gpu in host.gpus)
    return dataclasses.replace(host, gpus=gpus)


def without(host: Host, sick: Sequence[LostGpu]) -> Host:
    """Return the host with these GPUs moved to the lost GPUs."""
    uuids = {gpu.uuid for gpu in sick}
    lost = sorted((*host.lost, *sick), key=lambda gpu: (gpu.index is None, gpu.index or 0))
    return dataclasses.replace(host, gpus=tuple(g for g in host.gpus if g.uuid not in uuids), lost=tuple(lost))


def give_up(session: Session, sick: Sequence[LostGpu]) -> None:
    """Count these GPUs as lost for the rest of the session."""
    for gpu in sick:
        error = vendor_of_host().failure("", gpu.problem, call=gpu.call, code=gpu.code, gpu=gpu.uuid)
        error.code_name = gpu.code_name
        session.give_up(str(gpu.uuid), error)


def _refusal(plan: Callable[[Host], Any], host: Host) -> FleetError | None:
    try:
        plan(host)
    except (PlanError, BusyError, SelectorError) as error:
        return error
    return None
