# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe `gpu_layout` as plain frozen values, without checks."""

from __future__ import annotations

from typing import Any

from ..frozen import frozen
from .profile_name import parse_profile_name

#: This version increases when a valid layout becomes invalid or changes its meaning.
LAYOUT_VERSION = 1

#: Values of `sharing` without a part in the entry. Any other value has a part with that key.
WITHOUT_PART = ("exclusive", "shared")

#: Limits for a layout, above any real number of GPUs, instances, clients or tenants.
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
        """Return whether the selector matches exactly one GPU on every host."""
        return self.kind in ("index", "uuid", "pci")

    def __str__(self) -> str:
        forms = {"index": "GPU %s", "uuid": "%s", "pci": "GPU %s", "model": 'model "%s"'}
        return forms[self.kind] % self.value if self.kind in forms else self.kind


@frozen
class MigInstance:
    """A number (`count`) of GPU instances with one profile.

    `placement` is the start in memory units, or None if the planner chooses it. `compute_instances` has the compute
    instances' names in order. If it is empty, one compute instance spans the GPU instance.
    """

    profile: str
    count: int = 1
    placement: int | None = None
    compute_instances: tuple[str, ...] = ()
    #: Key of the technique that shares the instance, and the technique's part.
    sharing: str | None = None
    part: Any = None

    @property
    def compute_slices(self) -> tuple[int, ...]:
        """Return the slices of each compute instance in a split GPU instance.

        Returns an empty tuple if the GPU instance is not split.
        """
        return tuple(parse_profile_name(name).compute_slices for name in self.compute_instances)


@frozen
class Entry:
    """An entry of gpu_layout.

    `part` is the value of the key that `sharing` names. It is None if `sharing` is "exclusive" or "shared".
    """

    index: int
    selectors: tuple[Selector, ...]
    sharing: str
    part: Any = None
    #: Leases of the GPUs' free part, as `layout.leases.Leases`, or None.
    leases: Any = None
    #: Name for messages, for an entry that is not in the variable `gpu_layout`.
    label: str = ""

    @property
    def instances(self) -> tuple[MigInstance, ...]:
        """Return the instances into which a part `mig` divides each GPU.

        Returns an empty tuple for other parts.
        """
        return self.part if isinstance(self.part, tuple) else ()

    @property
    def where(self) -> str:
        """Return the place of the entry for messages."""
        return self.label or "gpu_layout[%d]" % self.index


@frozen
class Layout:
    """The value of the whole variable. GPUs without an entry are not changed."""

    entries: tuple[Entry, ...]
