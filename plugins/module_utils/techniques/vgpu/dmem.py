# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's own bound of device memory: the dmem controller of cgroup v2.

Its files are described in https://docs.kernel.org/admin-guide/cgroup-v2.html (DMEM). A region is a part of a device's memory;
its name has the device's PCI address in it (drm/0000:03:00.0/vram0). systemd knows nothing of dmem, so that limits are
written into the cgroup of the tenant's slice, and again after each boot. Written by the documentation: no driver that
registers a GPU's memory there was at hand.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterable, Mapping

from ... import systemd
from ...command import Run
from ...errors import ApplyError
from ...model import Gpu
from .files import slice_of
from .model import VgpuTenant

_CGROUPS = "sys/fs/cgroup"
#: The slices above the tenants' (systemd.slice(5)).
_ABOVE = ("", "openfleet.slice", "openfleet.slice/openfleet-vgpu.slice")


def regions(root: Path, gpus: Iterable[Gpu]) -> dict[str, str]:
    """By UUID the region that is a GPU's memory; without GPUs of which the kernel knows none, or several."""
    try:
        names = [line.rpartition(" ")[0] for line in (root / _CGROUPS / "dmem.capacity").read_text().splitlines()]
    except OSError:
        return {}
    found = {}
    for gpu in gpus:
        own = [name for name in names if gpu.pci_address and gpu.pci_address.lower() in name.lower().split("/")]
        memory = [name for name in own if name.rpartition("/")[2].startswith("vram")] or own
        if len(memory) == 1:
            found[gpu.uuid] = memory[0]
    return found


def limits(root: Path, key: str) -> dict[str, str]:
    """By region what the cgroup of a tenant's slice says; empty where there is none."""
    try:
        lines = (_cgroup(root, key) / "dmem.max").read_text().splitlines()
    except OSError:
        return {}
    return {region: limit for region, _, limit in (line.rpartition(" ") for line in lines)}


def wanted(tenant: VgpuTenant, of_gpus: Mapping[str, str]) -> dict[str, str]:
    """By region the limit that the tenant has, in the words of dmem.max."""
    return {of_gpus[uuid]: str(tenant.memory_bytes) for uuid in tenant.gpus if uuid in of_gpus}


def bound(root: Path, run: Run, tenant: VgpuTenant, of_gpus: Mapping[str, str]) -> None:
    """Start the tenant's slice and write its limits. Raises ApplyError."""
    try:
        systemd.tell(run, ["systemctl", "start", "--", slice_of(tenant.key)])
        for above in _ABOVE:
            (root / _CGROUPS / above / "cgroup.subtree_control").write_text("+dmem")
        _write(root, tenant.key, wanted(tenant, of_gpus))
    except (OSError, systemd.NoAnswerError) as error:
        problem = "the kernel cannot be told the bound of its memory: %s" % error
        raise ApplyError('the tenant "%s"' % tenant.name, problem, "Use provider: preload.") from error


def unbound(root: Path, run: Run, key: str) -> None:
    """Take the limits away; and the slice, where nothing runs in it."""
    with contextlib.suppress(OSError, systemd.NoAnswerError):
        _write(root, key, {region: "max" for region, limit in limits(root, key).items() if limit != "max"})
        if "populated 0" in (_cgroup(root, key) / "cgroup.events").read_text():
            systemd.tell(run, ["systemctl", "stop", "--", slice_of(key)])


def _write(root: Path, key: str, said: Mapping[str, str]) -> None:
    # One region at a time: the file takes one line a write.
    for region, limit in said.items():
        (_cgroup(root, key) / "dmem.max").write_text("%s %s" % (region, limit))


def _cgroup(root: Path, key: str) -> Path:
    return root / _CGROUPS / _ABOVE[-1] / slice_of(key)
