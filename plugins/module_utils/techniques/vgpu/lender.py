# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lend quotas as leases. `techniques.lender.Lender` documents the methods."""

from __future__ import annotations

import contextlib
import grp
import pwd
import re
from typing import Any, Mapping, Sequence

from ...errors import ApplyError
from ...layout.types import Entry
from ...leases.grant import Grant
from ...leases.model import LATER, Booking, Card, LeaseError, RetryLaterError, Shape, not_free
from ...leases.names import job_of, lease_of, tenant_name, user_of
from ...model import Holder, Host
from ...slurm.mig_devices import DeviceNodes
from . import files, leases
from .host import VgpuHost
from .model import DMEM, VgpuTenant, applies

#: Group names that work in all files that have a tenant's group.
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")


class QuotaLender:
    """The quotas of leases.

    `private` is true if only this process simulates the GPUs.
    """

    exclusive = False

    def __init__(self, private: bool) -> None:
        self._applies = applies(private)

    def current(self) -> dict[int, str]:
        texts = [tenant.lease for tenant in self._tenants()]
        return {
            lease[0]: text for text in texts if text is not None for lease in (lease_of(text),) if lease is not None
        }

    def fixed(self) -> Sequence[VgpuTenant]:
        return [tenant for tenant in self._tenants() if tenant.lease is None]

    def cards(self, offered: Sequence[tuple[Any, Entry]], host: Host) -> list[Card]:
        tenants = self._tenants(host)
        return [leases.card(gpu, entry.part, tenants) for gpu, entry in offered]

    def take(self, booking: Booking, entry: Entry, places: Sequence[tuple[Any, Any]], host: Host) -> tuple[Host, bool]:
        request = booking.request
        name, shape = tenant_name(request.number), request.shape
        vgpu, tenants = VgpuHost(host.gpus), self._tenants(host)
        known = next((tenant for tenant in tenants if tenant.name == name), None)
        for gpu, card in places:
            used = leases.uses(gpu.uuid, tenants, name)
            if card.find(shape, [used]) is None:
                raise not_free(booking, gpu.label, card, used)
        problem = vgpu.available()
        if problem is not None:
            raise LeaseError("%s: %s" % (booking.where, problem.where), problem.problem, problem.cure)
        # A pod's programs can run as any user. Only the pod's containers get the quota's files.
        is_pod = request.claim is not None and job_of(request.claim) is None
        group = None if is_pod else _group_of(user_of(request.account))
        tenant = known or leases.tenant_of(booking, entry, host.gpus, tenants, vgpu.dmem, group)
        try:
            vgpu.write(tenant)
        except ApplyError:
            if known is None:
                with contextlib.suppress(ApplyError):
                    vgpu.forget(name)
            raise
        return host, False

    def resize(self, number: int, shape: Shape, cards: Mapping[str, Any], host: Host) -> bool:
        tenants = self._tenants(host)
        tenant = next((each for each in tenants if each.name == tenant_name(number)), None)
        if tenant is None or shape.profile is not None:
            return False
        where = "lease %d" % number
        for uuid in tenant.gpus:
            if uuid not in cards:
                raise RetryLaterError(where, "gpu %s does not have its layout, or is lost" % uuid, LATER)
            used = leases.uses(uuid, tenants, tenant.name)
            if cards[uuid].find(shape, [used]) is None:
                free = cards[uuid].free(used) or "nothing"
                raise LeaseError(where, "there is no room. Free is: %s" % free, "Ask for less.")
        VgpuHost(host.gpus).write(leases.resized(tenant, shape))
        return True

    def give_back(self, number: int, text: str, host: Host) -> None:
        vgpu, name = VgpuHost(host.gpus), tenant_name(number)
        tenants = [each for each in self._tenants(host) if each.name == name]
        for tenant in tenants:
            who = [holder for uuid in tenant.gpus for holder in vgpu.processes(host, name, uuid)]
            if who:
                problem = "its quota is still in use by %s" % ", ".join(dict.fromkeys(map(str, who[:5])))
                raise RetryLaterError("lease %d" % number, problem, LATER)
        for tenant in tenants:
            vgpu.forget(tenant.name)

    def grant(self, number: int, text: str | None, host: Host, nodes: DeviceNodes) -> Grant | None:
        tenant = next((each for each in self._tenants(host) if each.name == tenant_name(number)), None)
        if tenant is None:
            return None
        return Grant(
            number,
            tenant.gpus,
            tenant=tenant.name,
            environment=tuple(files.environment(tenant, tenant.name).items()),
            devices=tuple("/dev/nvidia%d" % nodes.minors[uuid] for uuid in tenant.gpus if uuid in nodes.minors),
            cdi=("%s=%s" % (files.CDI_KIND, tenant.name), *("nvidia.com/gpu=%s" % uuid for uuid in tenant.gpus)),
            group=tenant.group,
            slice=files.slice_of(tenant.key) if tenant.provider == DMEM else None,
        )

    def settle(self, host: Host) -> None:
        """Do nothing: the tenants' specs are the only records."""

    def repair(self, living: Sequence[int], host: Host) -> set[int]:
        if not self._applies:
            return set()
        vgpu = VgpuHost(host.gpus)
        vgpu.update_shared()
        outdated = {seen.tenant.name: seen.tenant for seen in vgpu.observe() if seen.outdated}
        numbers = {number for number in living if tenant_name(number) in outdated}
        for number in sorted(numbers):
            vgpu.write(outdated[tenant_name(number)])
        return numbers

    def holders(self, grant: Grant, host: Host) -> list[Holder]:
        if grant.tenant is None:
            return []
        vgpu = VgpuHost(host.gpus)
        found = [holder for uuid in grant.gpu_uuids for holder in vgpu.processes(host, grant.tenant, uuid)]
        return list(dict.fromkeys(found))

    def _tenants(self, host: Host | None = None) -> list[VgpuTenant]:
        return list(VgpuHost(host.gpus if host else ()).tenants()) if self._applies else []


def _group_of(account: str) -> str:
    """Return the primary group of an account. Raises LeaseError."""
    try:
        name = grp.getgrgid(pwd.getpwnam(account).pw_gid).gr_name
    except KeyError:
        raise LeaseError("the account %s" % account, "this host does not have it or its group", "Create it.") from None
    if not _GROUP.fullmatch(name):
        problem = 'its primary group "%s" has characters that files of quotas cannot contain' % name
        raise LeaseError("the account %s" % account, problem, "Give it another primary group.")
    return name
