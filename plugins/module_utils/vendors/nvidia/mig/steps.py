# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the steps for the MIG mode and the instances of a GPU."""

from __future__ import annotations

from typing import ClassVar, Dict, List, Mapping, Sequence, Tuple

from ....frozen import frozen
from ....model import Gpu, Placement
from ....plan.parts import RESET, GpuStep

#: While steps are simulated: (profile, sizes of the compute instances) of each GPU instance, by start.
Instances = Dict[int, Tuple[str, List[int]]]


class MigStep(GpuStep):
    """A MIG step. Every MIG step adds or removes devices."""

    technique: ClassVar[str] = Gpu.divider
    changes_devices: ClassVar[bool] = True

    def change(self, instances: Instances, starts: Mapping[int, int]) -> None:
        """Simulate the step on `instances`.

        `starts` maps the id of each current instance to its start.
        """


@frozen
class SetMigMode(MigStep):
    """Turn MIG mode on or off. The executor resets the GPU if needed."""

    ends: ClassVar[bool] = True
    needs: ClassVar[str] = RESET
    enabled: bool

    def __str__(self) -> str:
        return "%s MIG mode" % ("enable" if self.enabled else "disable")

    def switches(self, gpu: Gpu) -> bool:
        """Return whether the step changes the active mode.

        Otherwise the step only reverts a pending change.
        """
        return self.enabled != gpu.mig.enabled


@frozen
class DestroyComputeInstance(MigStep):
    """Destroy a compute instance of a GPU instance."""

    ends: ClassVar[bool] = True
    profile: str
    gpu_instance_id: int
    compute_instance_id: int
    compute_slices: int
    start: int

    def __str__(self) -> str:
        return "destroy %dc of %s (instance %d)" % (self.compute_slices, self.profile, self.gpu_instance_id)

    @property
    def ended_instance(self) -> int:
        """Return the id of the GPU instance that contains the compute instance."""
        return self.gpu_instance_id

    def change(self, instances: Instances, starts: Mapping[int, int]) -> None:
        """Remove the compute instance, if the steps keep its GPU instance."""
        if self.gpu_instance_id in starts:
            instances[starts[self.gpu_instance_id]][1].remove(self.compute_slices)

    def implied(self, steps: Sequence[GpuStep]) -> bool:
        """Return whether the steps also remove its GPU instance."""
        return any(
            isinstance(step, DestroyGpuInstance) and step.gpu_instance_id == self.gpu_instance_id for step in steps
        )


@frozen
class DestroyGpuInstance(MigStep):
    """Destroy a GPU instance that has no compute instances."""

    counted: ClassVar[str] = "destroy"
    ends: ClassVar[bool] = True
    profile: str
    gpu_instance_id: int
    placement: Placement

    def __str__(self) -> str:
        return "destroy %s@%d" % (self.profile, self.placement.start)

    @property
    def ended_instance(self) -> int:
        """Return the id of the GPU instance."""
        return self.gpu_instance_id


@frozen
class CreateGpuInstance(MigStep):
    """Create a GPU instance at a placement."""

    counted: ClassVar[str] = "create"
    profile: str
    profile_id: int
    placement: Placement

    def __str__(self) -> str:
        return "create %s@%d" % (self.profile, self.placement.start)

    def change(self, instances: Instances, starts: Mapping[int, int]) -> None:
        """Add the GPU instance, without a compute instance."""
        instances[self.placement.start] = (self.profile, [])


@frozen
class CreateComputeInstance(MigStep):
    """Create a compute instance in the GPU instance at `gpu_instance_start`.

    The GPU instance's id is unknown until it is created. `start` is None if the compute instance spans a new GPU
    instance.
    """

    profile: str
    profile_id: int
    gpu_instance_start: int
    compute_slices: int
    start: int | None = None

    def __str__(self) -> str:
        return "create %dc in %s@%d" % (self.compute_slices, self.profile, self.gpu_instance_start)

    def change(self, instances: Instances, starts: Mapping[int, int]) -> None:
        """Add the compute instance to its GPU instance."""
        instances[self.gpu_instance_start][1].append(self.compute_slices)

    def implied(self, steps: Sequence[GpuStep]) -> bool:
        """Return whether this is the only compute instance of a new GPU instance."""
        start = self.gpu_instance_start
        made = any(isinstance(step, CreateGpuInstance) and step.placement.start == start for step in steps)
        siblings = [s for s in steps if isinstance(s, CreateComputeInstance) and s.gpu_instance_start == start]
        return made and len(siblings) == 1
