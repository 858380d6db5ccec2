# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End processes that still use an expired lease after its unit has ended.

A user can move own processes to the user's own units, or pass an open device to another process. Such a process uses the
lease from outside of its unit.
"""

from __future__ import annotations

from ..change.terminate import end_holders as end_processes
from ..holders.find import find_holders
from ..holders.mark import mark
from ..leases.names import lease_text
from ..model import Holder, Host
from ..plan.disturbance import Disturbance
from ..processes import peer
from ..processes.accounts import account_of
from ..techniques.vgpu.host import VgpuHost
from ..vendors.nvidia.nvml.bounded_session import BoundedSession
from .host import Grant
from .owner import account_name

#: Seconds between SIGTERM and SIGKILL.
_GRACE_SECONDS = 5.0


def end_holders(grant: Grant, account: str) -> None:
    """End the processes of the account that hold the part of the lease.

    With MIG, the processes of all accounts are ended, because the instance belongs to the lease alone. Raises ApplyError if
    a process must not be ended or does not end.
    """
    with BoundedSession() as session:
        host = session.observe()
    host = mark(host, find_holders(host))
    holders = _of_quota(grant, host, account) if grant.tenant is not None else _of_instances(grant, host)
    if holders:
        end_processes([Disturbance(lease_text(grant.number, account), tuple(holders))], _GRACE_SECONDS)


def _of_instances(grant: Grant, host: Host) -> list[Holder]:
    return [
        holder
        for gpu in host.gpus
        for instance in gpu.mig.instances
        if set(grant.mig_uuids).intersection(instance.uuids)
        for holder in gpu.held_by
        if holder.gpu_instance_id == instance.id
    ]


def _of_quota(grant: Grant, host: Host, account: str) -> list[Holder]:
    """Return the processes of the account with the tenant of the lease."""
    vgpu = VgpuHost(host.gpus)
    holders = [holder for uuid in grant.gpu_uuids for holder in vgpu.processes(host, grant.tenant or "", uuid)]
    return [
        holder
        for holder in dict.fromkeys(holders)
        if holder.pid is not None and account_name(account_of("%s/%d" % (peer.PROC, holder.pid))) == account
    ]
