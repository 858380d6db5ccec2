# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the part `vgpu` of an entry in `gpu_layout` as frozen values.

parse.py checks the values.
"""

from __future__ import annotations

from ...frozen import frozen
from ...layout.types import Entry, Selector
from .model import AUTO, KEY, MPS, POLICIES


@frozen
class Tenant:
    """A tenant and its quota of `memory_bytes` and `sm_percent` on each GPU.

    The tenant gets `gpus` GPUs of the entry. `gpu` pins it to one GPU. Members of the Unix group `group` can run
    programs as the tenant, or every user if it is None. If `oversubscribe_managed` is true, managed memory is exempt
    from the memory quota. `was` is an earlier name that processes may still use.
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
    #: "online" or "offline" with the policy `colocate`. Otherwise None.
    latency: str | None = None


@frozen
class Vgpu:
    """Tenants, and the rules for their quotas.

    With a ratio above 1.0, the sum of the quotas may exceed a GPU's capacity.
    """

    tenants: tuple[Tenant, ...]
    policy: str = POLICIES[0]
    oversubscribe_memory_ratio: float = 1.0
    oversubscribe_sm_ratio: float = 1.0
    #: The provider that enforces the quotas, one of PROVIDERS.
    provider: str = AUTO
    #: Offline tenants may use up to this percentage of a GPU (policy `colocate`). None for other policies.
    waterline_percent: int | None = None

    @property
    def mps_clients(self) -> int | None:
        """Return the number of clients of the MPS daemon on each GPU.

        Returns None if the tenants need no daemon.
        """
        return len(self.tenants) if self.provider == MPS else None


def vgpu_of(entry: Entry | None) -> Vgpu | None:
    """Return the entry's part if its sharing is vgpu, or None."""
    return entry.part if entry is not None and entry.sharing == KEY else None
