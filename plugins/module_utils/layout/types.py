# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe `gpu_layout` as plain frozen values, without checks."""

from __future__ import annotations

from typing import Any

from ..frozen import frozen
from .profile_name import parse_profile_name

#: Increased when a valid layout becomes invalid or changes its meaning.
LAYOUT_VERSION = 1

#: Values of `sharing` without a part in the entry. The others have a part of the same name.
WITHOUT_PART = ("exclusive", "shared")

#: Limits of a layout, above any real number of GPUs, instances, clients or tenants.
MOST_GPUS, MOST_INSTANCES, MOST_CLIENTS = 256, 64, 1000
MOST_RATIO = 100.0


@frozen
class Selector:
    """A selector of GPUs of a host.

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
        """Return whether it selects exactly one GPU on every host."""
        return self.kind in ("index", "uuid", "pci")

    def __str__(self) -> str:
        forms = {"index": "GPU %s", "uuid": "%s", "pci": "GPU %s", "model": 'model "%s"'}
        return forms[self.kind] % self.value if self.kind in forms else self.kind


@frozen
class MigInstance:
    """`count` GPU instances of one profile. `placement` is the start in memory units, or None for the planner's choice.

    `compute_instances` has the names of the parts in order. Empty means one that spans the GPU instance.
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
        """Return the slices of each part of the split, or none without a split."""
        return tuple(parse_profile_name(name).compute_slices for name in self.compute_instances)


@frozen
class Entry:
    """One entry of the list. `part` is the value of the key named by `sharing`. exclusive and shared have none."""

    index: int
    selectors: tuple[Selector, ...]
    sharing: str
    part: Any = None
    #: Name in messages of an entry that is not in the variable.
    label: str = ""

    @property
    def instances(self) -> tuple[MigInstance, ...]:
        """Return the instances that the part divides each GPU into, or none for other parts."""
        return self.part if isinstance(self.part, tuple) else ()

    @property
    def where(self) -> str:
        """Return the entry's place for messages."""
        return self.label or "gpu_layout[%d]" % self.index


@frozen
class Layout:
    """The whole variable. GPUs without an entry are not changed."""

    entries: tuple[Entry, ...]
