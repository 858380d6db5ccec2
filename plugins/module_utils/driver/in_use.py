# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the workloads that a change of the loaded driver would end.

The driver may not answer, for example after its libraries were changed without a reboot. Its GPUs are then read from the
kernel, because programs may still use them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from ..drain.units import unit_name
from ..errors import BusyError, DriverAbsentError, FleetError
from ..holders.model import KUBELET, SLURM, UNKNOWN
from ..model import Gpu, Holder, Host
from ..plan.disturbance import Disturbance
from ..plan.leased import LEASE, LeasedRecord
from ..plan.ownership import KEEP, Ownership, Record
from ..plan.services import Pids, merged
from ..plan.whole_host import ended_workloads
from ..techniques.registry import observed_services
from ..vendors.nvidia.nvml.calls import respawn_with_pynvml
from ..vendors.nvidia.nvml.pci import nvidia_gpus, uuid_of
from ..vendors.registry import vendor_of_host

#: Folder in which the driver lists its GPUs by PCI address.
_LISTED = "/proc/driver/nvidia/gpus"
_JOB = re.compile(r"\d+")
_SLURMD = "slurmd.service"


def workloads(state_directory: str) -> list[Disturbance]:
    """Return the workloads of each GPU of this host."""
    vendor = vendor_of_host()
    own: Pids = {}
    try:
        with vendor.open() as session:
            host = session.observe()
            own = merged(each.own(clients=False) for each in observed_services(session.private))
    except FleetError as error:
        if isinstance(error, DriverAbsentError) and error.call == "import":
            respawn_with_pynvml()
        host = Host("", "", None, simulated=False, gpus=())
    host = replace(host, gpus=(*host.gpus, *_not_answering(host)))
    ownership = Ownership(KEEP, Record(state_directory).read(), LeasedRecord(state_directory).read())
    return ended_workloads(vendor.with_holders(host, own), ownership, "whose driver would change")


def _not_answering(host: Host) -> Iterable[Gpu]:
    """Yield the GPUs on the PCI bus that the driver has and NVML does not report."""
    answering = {gpu.pci_address for gpu in host.gpus}
    listed = Path(_LISTED)
    for index, address in enumerate(found["address"] for found in nvidia_gpus()):
        if address not in answering and (not listed.is_dir() or (listed / address).exists()):
            yield Gpu(index, uuid_of(address) or address, "NVIDIA GPU", address, None)


def refuse(disturbs: Sequence[Disturbance], drained_by: Mapping[str, Any], state_directory: str) -> None:
    """Raise BusyError if workloads remain after the drain.

    The host is read again, because a program such as a job's `sleep` may have ended while the host was read. Its job is
    then unknown.
    """
    left = left_by_drain(disturbs, drained_by)
    if left:
        left = in_both(left, left_by_drain(workloads(state_directory), drained_by))
    if left:
        cure = "Stop them, let the run drain them (gpu_drain_services, gpu_drain_slurm, gpu_drain_kubernetes), or set "
        cure += "nvidia_driver_on_busy: force to end them. Nothing was changed."
        raise BusyError(left, "the change of the driver would end these workloads", cure)


def in_both(first: Iterable[Disturbance], second: Iterable[Disturbance]) -> list[Disturbance]:
    """Return the workloads of the second reading that the first one has too."""
    known = {(each.what, str(who)) for each in first for who in each.who}
    both = [replace(each, who=tuple(who for who in each.who if (each.what, str(who)) in known)) for each in second]
    return [each for each in both if each.who]


def left_by_drain(disturbs: Iterable[Disturbance], drained_by: Mapping[str, Any]) -> list[Disturbance]:
    """Return the workloads that the drain of the host does not end.

    `drained_by` has the parts of the drain: `services` (names of units), and whether `slurm`, `kubernetes` and `commands` are
    used. Commands may end any workload.
    """
    if drained_by.get("commands"):
        return []
    units = {unit_name(name) for name in drained_by.get("services") or ()}
    left = []
    for each in disturbs:
        who = tuple(h for h in each.who if not (isinstance(h, Holder) and _drained(h, units, drained_by)))
        if who:
            left.append(replace(each, who=who))
    return left


def _drained(holder: Holder, units: set[str], drained_by: Mapping[str, Any]) -> bool:
    if holder.kind in (UNKNOWN, LEASE):
        return False
    if holder.unit_or_container in units:
        return True
    job = holder.job or ""
    # Without proctrack/cgroup, the processes of jobs are in the unit of slurmd.
    if holder.kind == SLURM or _JOB.fullmatch(job) or holder.unit_or_container == _SLURMD:
        return bool(drained_by.get("slurm"))
    return bool(drained_by.get("kubernetes")) and (holder.kind == KUBELET or bool(job))
