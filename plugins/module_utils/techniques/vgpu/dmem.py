# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limit device memory with the kernel's dmem controller for cgroup v2.

https://docs.kernel.org/admin-guide/cgroup-v2.html (DMEM) describes the controller's files. A region is a part of a
device's memory. Its name contains the device's PCI address (drm/0000:03:00.0/vram0). systemd does not support dmem, so
this module writes the limits into the cgroup of the tenant's slice, and again after each boot. It follows the
documentation, and was not tested with a driver that registers GPU memory.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterable, Mapping

from ... import systemd
from ...errors import ApplyError
from ...model import Gpu
from ...processes.command import Run
from .files import slice_of
from .model import VgpuTenant

_CGROUPS = "sys/fs/cgroup"
#: Parents of the tenants' slices (systemd.slice(5)).
_ABOVE = ("", "openfleet.slice", "openfleet.slice/openfleet-vgpu.slice")


def regions(root: Path, gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the name of each GPU's memory region, by GPU UUID.

    Leaves out GPUs with no region or with several regions.
    """
    try:
        names = [line.rpartition(" ")[0] for line in (root / _CGROUPS / "dmem.capacity").read_text().splitlines()]
    except OSError:
        return {}
    by_uuid = {}
    for gpu in gpus:
        own = [name for name in names if gpu.pci_address and gpu.pci_address.lower() in name.lower().split("/")]
        memory = [name for name in own if name.rpartition("/")[2].startswith("vram")] or own
        if len(memory) == 1:
            by_uuid[gpu.uuid] = memory[0]
    return by_uuid


def limits(root: Path, key: str) -> dict[str, str]:
    """Return the current limits of a tenant's slice, by region.

    Returns {} if the slice has no cgroup.
    """
    try:
        lines = (_cgroup(root, key) / "dmem.max").read_text().splitlines()
    except OSError:
        return {}
    return {region: limit for region, _unused, limit in (line.rpartition(" ") for line in lines)}


def wanted(tenant: VgpuTenant, of_gpus: Mapping[str, str]) -> dict[str, str]:
    """Return the tenant's desired limits by region, as in dmem.max."""
    return {of_gpus[uuid]: str(tenant.memory_bytes) for uuid in tenant.gpus if uuid in of_gpus}


def bound(root: Path, run: Run, tenant: VgpuTenant, of_gpus: Mapping[str, str]) -> None:
    """Start the tenant's slice and write its limits. Raises ApplyError."""
    try:
        systemd.tell(run, ["systemctl", "start", "--", slice_of(tenant.key)])
        for above in _ABOVE:
            (root / _CGROUPS / above / "cgroup.subtree_control").write_text("+dmem")
        _write(root, tenant.key, wanted(tenant, of_gpus))
    except (OSError, systemd.NoAnswerError) as error:
        problem = "cannot set the memory limit in the kernel: %s" % error
        raise ApplyError('the tenant "%s"' % tenant.name, problem, "Use provider: preload.") from error


def unbound(root: Path, run: Run, key: str) -> None:
    """Remove the slice's limits, and stop the slice if it is empty."""
    with contextlib.suppress(OSError, systemd.NoAnswerError):
        _write(root, key, {region: "max" for region, limit in limits(root, key).items() if limit != "max"})
        if "populated 0" in (_cgroup(root, key) / "cgroup.events").read_text():
            systemd.tell(run, ["systemctl", "stop", "--", slice_of(key)])


def _write(root: Path, key: str, new_limits: Mapping[str, str]) -> None:
    # dmem.max accepts one line per write.
    for region, limit in new_limits.items():
        (_cgroup(root, key) / "dmem.max").write_text("%s %s" % (region, limit))


def _cgroup(root: Path, key: str) -> Path:
    return root / _CGROUPS / _ABOVE[-1] / slice_of(key)
