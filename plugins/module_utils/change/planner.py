# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the change from the observed to the desired state of GPUs.

Planning is a pure function: it uses no I/O, clock, randomness, NVML or Ansible. Equal arguments give equal plans. Each
technique plans its own part.
"""

from __future__ import annotations

import dataclasses
from typing import Iterable, Sequence

from ..errors import PlanError
from ..model import Gpu
from ..plan.gpu_plan import GpuPlan, Plan, Target, WantedInstance
from ..plan.ownership import Ownership
from ..techniques.registry import DIVIDER, SETTINGS
from . import compute_mode

#: An ownership under which every instance belongs to the collection. Used for rollbacks and for plans of GPUs that do
#: not exist yet.
ALL_OURS = Ownership("remove")


def plan(gpus: Sequence[Gpu], targets: Iterable[Target], ownership: Ownership = ALL_OURS) -> Plan:
    """Plan every target on the observed GPUs.

    Raises PlanError with the GPU and the entry if a target is impossible. Also raises PlanError if a target would
    remove instances of other owners and `ownership` does not allow that. A plan that would end holders is returned and
    not refused. `Plan.disturbs` lists these holders, and the code that applies the plan decides.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    plans = []
    for target in targets:
        if target.gpu_uuid not in by_uuid:
            raise PlanError(
                "gpu %s" % target.gpu_uuid, "it is gone", "Look at the kernel log; the GPU may have fallen off the bus."
            )
        plans.append(plan_gpu(by_uuid[target.gpu_uuid], target, ownership))
    return Plan(tuple(sorted(plans, key=lambda p: p.gpu.index)))


def plan_gpu(gpu: Gpu, target: Target, ownership: Ownership = ALL_OURS) -> GpuPlan:
    """Plan one GPU. See `plan`."""
    made = DIVIDER.plan(gpu, target, ownership)
    settings = (each.plan(gpu, made.target.settings.get(each.setting), made.target.where) for each in SETTINGS)
    return dataclasses.replace(made, parts=(compute_mode.plan(gpu, made.target), *settings))


def target_of(gpu: Gpu) -> Target:
    """Return a rollback target: the current state of a GPU, with pinned placements."""
    return Target(
        gpu_uuid=gpu.uuid,
        where="the state before this run",
        sharing=DIVIDER.key if gpu.mig.enabled else "as before",
        mig_enabled=gpu.mig.enabled,
        instances=tuple(
            WantedInstance(
                i.profile,
                i.placement.start,
                tuple(sorted((c.compute_slices for c in i.compute_instances), reverse=True)),
            )
            for i in gpu.mig.instances
        ),
        compute_mode=None if gpu.mig.enabled else gpu.compute_mode,
        settings={technique.setting: technique.current(gpu) for technique in SETTINGS},
    )
