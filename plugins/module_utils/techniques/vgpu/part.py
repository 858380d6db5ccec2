# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part `vgpu` of an entry of `gpu_layout`, as plain frozen values; nothing here checks anything."""

from __future__ import annotations

from ...frozen import frozen
from ...layout.types import Entry, Selector
from .model import AUTO, KEY, MPS, POLICIES


@frozen
class Tenant:
    """A quota of `memory_bytes` and `sm_percent` on each of `gpus` GPUs of the entry. `gpu` pins it to one.

    `group`: the Unix group whose members' processes may be the tenant's; None: any user's.
    `oversubscribe_managed`: managed memory does not count against the quota of memory.
    `was`: a name that the tenant had, and that its processes may still have.
    """

    name: str
    memory_bytes: int
    sm_percent: int
    priority: int = 0
    gpus: int = 1
    gpu: Selector | None = None
    group: str | None = None
    oversubscribe_managed: bool = False
    was: str | None = None


@frozen
class Vgpu:
    """Tenants that are held to quotas. The ratios say how much more than a GPU has may be promised: 1.0 is none."""

    tenants: tuple[Tenant, ...]
    policy: str = POLICIES[0]
    oversubscribe_memory_ratio: float = 1.0
    oversubscribe_sm_ratio: float = 1.0
    #: One of PROVIDERS: who holds the tenants to their quotas.
    provider: str = AUTO

    @property
    def mps_clients(self) -> int | None:
        """How many clients an MPS daemon of each GPU is meant for; None if the tenants need none."""
        return len(self.tenants) if self.provider == MPS else None


def vgpu_of(entry: Entry | None) -> Vgpu | None:
    """Return the part of an entry whose GPUs tenants share; None of any other, and without an entry."""
    return entry.part if entry is not None and entry.sharing == KEY else None
