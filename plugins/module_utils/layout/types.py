# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `gpu_layout` says, as plain frozen values. Nothing here checks anything."""

from __future__ import annotations

from typing import Any

from ..frozen import frozen
from .profile_name import parse_profile_name

#: Raised when a layout that was valid becomes invalid, or means something else.
LAYOUT_VERSION = 1

#: Ways of sharing that have no part in the entry. The others have one of their name.
WITHOUT_PART = ("exclusive", "shared")

#: Bounds of a layout. No host has so many GPUs, no GPU so many instances, clients or tenants.
MOST_GPUS, MOST_INSTANCES, MOST_CLIENTS = 256, 64, 1000
MOST_RATIO = 100.0


@frozen
class Selector:
    """Names GPUs of a host.

    kind   value
    all    None
    index  NVML's index, a number from 0
    uuid   ``GPU-`` and a UUID in lower case, as NVML writes it
    pci    domain:bus:device.function as sysfs writes it, ``0000:3b:00.0``
    model  a glob on NVML's name without ``NVIDIA ``
    """

    kind: str
    value: int | str | None = None

    @property
    def names_one_gpu(self) -> bool:
        """Whether it names one GPU, known without looking at the host."""
        return self.kind in ("index", "uuid", "pci")

    def __str__(self) -> str:
        forms = {"index": "GPU %s", "uuid": "%s", "pci": "GPU %s", "model": 'model "%s"'}
        return forms[self.kind] % self.value if self.kind in forms else self.kind


@frozen
class MigInstance:
    """`count` GPU instances of one profile. `placement` is the start in memory units, None leaves it to the planner.

    `compute_instances` names the parts of a split, in the order written; empty means one that spans the GPU instance.
    """

    profile: str
    count: int = 1
    placement: int | None = None
    compute_instances: tuple[str, ...] = ()
    #: Key of the technique that shares the instance, and its part.
    sharing: str | None = None
    part: Any = None

    @property
    def compute_slices(self) -> tuple[int, ...]:
        """The slices of each part of the split; empty without one."""
        return tuple(parse_profile_name(name).compute_slices for name in self.compute_instances)


@frozen
class Entry:
    """One entry of the list. `part` is what the key that `sharing` names holds; exclusive and shared have none."""

    index: int
    selectors: tuple[Selector, ...]
    sharing: str
    part: Any = None
    #: Name in messages of an entry that is not in the variable.
    label: str = ""

    @property
    def instances(self) -> tuple[MigInstance, ...]:
        """Return the instances that the part divides each GPU into; none unless it consists of such."""
        return self.part if isinstance(self.part, tuple) else ()

    @property
    def where(self) -> str:
        """How messages name this entry."""
        return self.label or "gpu_layout[%d]" % self.index


@frozen
class Layout:
    """The whole variable. GPUs that no entry names are left as they are."""

    entries: tuple[Entry, ...]
