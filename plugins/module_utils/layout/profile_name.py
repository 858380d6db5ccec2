# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the names of MIG profiles.

Examples: ``3g.40gb``, ``1g.10gb+me`` and, for a part of an instance, ``1c.3g.40gb``. Checks only the form. A GPU's
profiles are read from NVML when a layout is applied.
"""

from __future__ import annotations

import re
from typing import Iterable

from ..errors import FleetError
from ..frozen import frozen

_NAME = re.compile(r"(?:([1-9][0-9]?)c\.)?([1-9][0-9]?)g\.([1-9][0-9]{0,4})gb(\+me\.all|\+me|\+gfx|-me)?")

#: A profile name as people and other tools write it: 3G.40GB, 3g-40gb, mig-3g.40gb, and nvidia-smi's "MIG 1g.10gb",
#: which "Device 0: (UUID: ...)" may follow.
_LOOSE = re.compile(
    r"(?:.*mig[-_ :]+)?((?:[1-9][0-9]?c[-_. ])?)([1-9][0-9]?)g[-_. ]?([1-9][0-9]{0,4})gb?"
    r"(\+me\.all|\+me|\+gfx|-me)?(?:\s+device\b.*)?"
)


class ProfileNameError(FleetError):
    """A text is not the name of a profile."""


@frozen
class ProfileName:
    """A profile.

    `compute_slices` are the slices of the compute instance. The value equals `gpu_slices` if the compute instance spans
    the GPU instance.
    """

    compute_slices: int
    gpu_slices: int
    memory_gb: int
    #: ``+me``, ``+me.all``, ``+gfx``, ``-me`` or "".
    attribute: str = ""

    @property
    def gpu_instance(self) -> str:
        """Return the name of the GPU instance profile."""
        return "%dg.%dgb%s" % (self.gpu_slices, self.memory_gb, self.attribute)

    @property
    def is_split(self) -> bool:
        """Return whether the name is for a part of a GPU instance."""
        return self.compute_slices != self.gpu_slices

    def __str__(self) -> str:
        return ("%dc." % self.compute_slices if self.is_split else "") + self.gpu_instance


def parse_profile_name(text: str) -> ProfileName:
    """Parse the name of a profile.

    Raises ProfileNameError with an empty `where`, because only the caller knows the place.
    """
    match = _NAME.fullmatch(text)
    if not match:
        loose = _LOOSE.fullmatch(text[:60].strip().lower())
        meant = ""
        if loose:
            compute, slices, memory, attribute = loose.groups()
            part = compute[:-1] + "." if compute else ""
            meant = "Did you mean %s%sg.%sgb%s? " % (part, slices, memory, attribute or "")
        raise ProfileNameError(
            "",
            '"%.60s" is not the name of a MIG profile' % text,
            "%sWrite it like nvidia-smi mig -lgip: 3g.40gb, 1g.10gb+me, 1g.24gb+me.all, 1g.24gb+gfx or 1g.24gb-me."
            % meant,
        )
    compute, slices, memory, attribute = match.groups()
    name = ProfileName(int(compute or slices), int(slices), int(memory), attribute or "")
    if name.compute_slices > name.gpu_slices:
        raise ProfileNameError(
            "",
            '"%s" has %d compute slices, more than the %d of its GPU instance'
            % (text, name.compute_slices, name.gpu_slices),
            "The number before c cannot exceed the one before g.",
        )
    return name


def nearest_profile(text: str, known: Iterable[str]) -> str:
    """Return the known profile that is most similar to a text, or "".

    Only profiles with the same number of slices are similar. Among them, one with the same attribute is preferred, then
    the one with the most similar memory.
    """
    try:
        name = parse_profile_name(text)
        others = [parse_profile_name(other) for other in known]
    except ProfileNameError:
        return ""
    alike = [other for other in others if other.gpu_slices == name.gpu_slices]
    near = min(
        alike,
        key=lambda other: (other.attribute != name.attribute, abs(other.memory_gb - name.memory_gb), str(other)),
        default=None,
    )
    return "" if near is None else near.gpu_instance


def profile_order(profile: str) -> tuple[int, int, str]:
    """Return the sort key of a profile. The largest profile is first."""
    name = parse_profile_name(profile)
    return -name.gpu_slices, -name.memory_gb, profile
