# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the files of this folder into a vendor."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from ...errors import NvmlError
from ...model import Gpu, Host, LostGpu, Setting
from . import compute_mode
from .mig.divider import MigDivider

if TYPE_CHECKING:
    from ...plan.services import Pids
    from .gaps import Gap
    from .nvml.bounded_session import BoundedSession


class NvidiaVendor:
    """NVIDIA's GPUs, which NVML reads. `protocol.Vendor` documents the members."""

    key = Gpu.vendor
    dividers = (MigDivider(),)
    settings = (compute_mode.ComputeMode(),)
    failure = NvmlError
    reader, command = "NVML", "nvidia-smi"
    other_tools = "mig-parted, a GPU operator"

    def present(self) -> bool:
        """Return whether the host has NVIDIA's driver or an NVIDIA GPU."""
        from .nvml.calls import driver_loaded
        from .nvml.pci import nvidia_gpus

        return driver_loaded() or bool(nvidia_gpus())

    def open(self) -> BoundedSession:
        """Return a new NVML session. Raises DriverAbsentError if pynvml is missing."""
        from .nvml.bounded_session import BoundedSession

        return BoundedSession()

    def with_holders(self, host: Host, own: Pids) -> Host:
        """Return the host with the holders of its GPUs, except processes in `own`."""
        from ...holders.find import find_holders
        from ...holders.mark import mark

        holders = [h for h in find_holders(host) if h.pid not in own.get(h.gpu_uuid, ())]
        if own:
            gpus = tuple(_without(gpu, own.get(gpu.uuid, frozenset())) for gpu in host.gpus)
            host = dataclasses.replace(host, gpus=gpus)
        return mark(host, holders)

    def gaps(self, host: Host) -> Iterator[Gap]:
        """Yield values that a GPU does not report, unlike other GPUs of its model."""
        from .gaps import gaps

        return gaps(host)

    def lost_error(self, where: str, gpus: Sequence[LostGpu]) -> NvmlError:
        """Return the error for these lost GPUs."""
        from .nvml.calls import lost_error

        return lost_error(where, gpus)

    def after(self, plan: Any) -> Gpu:
        """Return the GPU after its plan is applied. `plan` is a `GpuPlan`."""
        target = plan.target
        divided = self.dividers[0].with_planned(plan.gpu, plan.division, target.division)
        settings = dict(target.settings)
        mode = settings.pop(compute_mode.SETTING, None) or plan.gpu.compute_mode
        seen = {name: Setting(value) for name, value in settings.items() if value is not None}
        return dataclasses.replace(divided, compute_mode=mode, settings={**plan.gpu.settings, **seen})

    def lend(self, source: str) -> None:
        """Use this text of pynvml.py if the host has no pynvml."""
        from .nvml.calls import lend

        lend(source)

    def respawn(self) -> None:
        """Restart the module with an interpreter that has pynvml, if there is one."""
        from .nvml.calls import respawn_with_pynvml

        respawn_with_pynvml()

    def without_driver(self, error: NvmlError) -> dict[str, Any]:
        """Return the GPUs on the PCI bus, and whether only pynvml is missing."""
        from .nvml.calls import driver_loaded
        from .nvml.pci import nvidia_gpus

        found: dict[str, Any] = {"pci_gpus": nvidia_gpus()}
        return dict(found, pynvml_missing=True) if error.call == "import" and driver_loaded() else found

    def binding(self) -> dict[str, Any]:
        """Return the hash of the installed pynvml.py."""
        from .nvml.calls import installed_binding

        return {"pynvml_sha256": installed_binding()}


def _without(gpu: Gpu, pids: frozenset[int]) -> Gpu:
    instances = tuple(
        dataclasses.replace(
            instance,
            processes=tuple(p for p in instance.processes if p.pid not in pids),
            compute_instances=tuple(
                dataclasses.replace(c, processes=tuple(p for p in c.processes if p.pid not in pids))
                for c in instance.compute_instances
            ),
        )
        for instance in gpu.mig.instances
    )
    mig = dataclasses.replace(gpu.mig, instances=instances)
    return dataclasses.replace(gpu, mig=mig, processes=tuple(p for p in gpu.processes if p.pid not in pids))
