# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the part `vgpu` of an entry of `gpu_layout` as frozen values, without checks."""

from __future__ import annotations

from ...frozen import frozen
from ...layout.types import Entry, Selector
from .model import AUTO, KEY, MPS, POLICIES


@frozen
class Tenant:
    """A quota of `memory_bytes` and `sm_percent` on each of `gpus` GPUs of the entry. `gpu` pins it to one.

    `group`: Unix group whose members can run programs as the tenant, None for every user.
    `oversubscribe_managed`: whether managed memory is exempt from the memory quota.
    `was`: an earlier name, which processes may still use.
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
    """Tenants with quotas. The ratios allow quotas beyond a GPU's capacity. 1.0 allows none."""

    tenants: tuple[Tenant, ...]
    policy: str = POLICIES[0]
    oversubscribe_memory_ratio: float = 1.0
    oversubscribe_sm_ratio: float = 1.0
    #: One of PROVIDERS, which enforces the quotas.
    provider: str = AUTO

    @property
    def mps_clients(self) -> int | None:
        """Number of clients for the MPS daemon of each GPU, None without a daemon."""
        return len(self.tenants) if self.provider == MPS else None


def vgpu_of(entry: Entry | None) -> Vgpu | None:
    """Return the entry's part if its sharing is vgpu, else None."""
    return entry.part if entry is not None and entry.sharing == KEY else None
