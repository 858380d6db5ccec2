# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the change from the observed to the desired state of GPUs.

Planning is a pure function, without I/O, clock, randomness, NVML or Ansible. Equal arguments give equal plans. Each
technique plans its own part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Sequence

from ..errors import PlanError
from ..model import Device, parts_of
from ..plan.disturbance import Disturbance
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership
from ..plan.parts import RELOAD
from ..techniques.forms import SHARINGS
from ..techniques.registry import SETTINGS
from ..vendors.registry import divider_of, vendor_of

if TYPE_CHECKING:
    from ..vendors.protocol import DeviceSetting

#: The ownership under which every instance belongs to the collection. For rollbacks, and for plans of GPUs that do not
#: exist yet.
ALL_OURS = Ownership("remove")


def plan(gpus: Sequence[Device], targets: Iterable[Target], ownership: Ownership = ALL_OURS) -> Plan:
    """Plan every target on the observed GPUs.

    Raises PlanError with the GPU and the entry if a target is impossible. Also raises PlanError if a target would
    remove instances of other owners and `ownership` does not allow that. A plan that would end holders is not refused.
    `Plan.disturbs` lists these holders, and the code that applies the plan decides.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    plans = []
    for target in targets:
        if target.gpu_uuid not in by_uuid:
            raise PlanError(
                "gpu %s" % target.gpu_uuid, "it is gone", "Look at the kernel log; the GPU may have fallen off the bus."
            )
        plans.append(plan_gpu(by_uuid[target.gpu_uuid], target, ownership))
    disturbs = reload_disturbs(gpus) if any(each.needs(RELOAD) for each in plans) else ()
    return Plan(tuple(sorted(plans, key=lambda p: p.gpu.index)), reload_disturbs=disturbs)


def plan_gpu(gpu: Device, target: Target, ownership: Ownership = ALL_OURS) -> GpuPlan:
    """Plan one GPU. See `plan`."""
    divider = divider_of(gpu)
    undivided = [sharing for sharing in SHARINGS if sharing != divider.key]
    division = divider.plan(gpu, target, ownership, undivided)
    return GpuPlan(gpu, target, division, tuple(each.plan(gpu, target) for each in settings_of(gpu)))


def reload_disturbs(gpus: Sequence[Device]) -> tuple[Disturbance, ...]:
    """Return all holders of these GPUs: a reload of the driver ends them."""
    found = []
    for gpu in gpus:
        who = gpu.held_by or gpu.processes
        who = (*who, *(h for part in parts_of(gpu) for h in (part.held_by or part.processes) if h not in who))
        if who:
            found.append(Disturbance("%s, whose driver would be reloaded," % gpu.short_label, who))
    return tuple(found)


def settings_of(gpu: Device) -> tuple[DeviceSetting, ...]:
    """Return the GPU's settings: first the vendor's, then those of techniques."""
    return (*vendor_of(gpu).settings, *SETTINGS)


def target_of(gpu: Device) -> Target:
    """Return a rollback target: the current state of a GPU, with pinned placements."""
    division = divider_of(gpu).current(gpu)
    return Target(
        gpu_uuid=gpu.uuid,
        where="the state before this run",
        sharing="as before" if division is None else division.divider,
        division=division,
        settings={each.setting: each.current(gpu) for each in settings_of(gpu)},
    )
