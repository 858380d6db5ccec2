# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and format memory sizes: whole numbers with a unit, such as ``18GiB``."""

from __future__ import annotations

import re

from .errors import FleetError

#: NVML and MPS count memory in MiB, so smaller units are useless.
BYTES_PER_UNIT = {"MiB": 2**20, "GiB": 2**30}

_SIZE = re.compile(r"([1-9][0-9]{0,8})(MiB|GiB)")
_BARE_NUMBER = re.compile(r"[0-9]+")


class SizeError(FleetError):
    """A text is not a memory size."""


def parse_size_bytes(text: str) -> int:
    """Return a size such as ``512MiB`` in bytes.

    Raises SizeError with an empty `where`, because only the caller knows the place.
    """
    match = _SIZE.fullmatch(text)
    if match:
        return int(match.group(1)) * BYTES_PER_UNIT[match.group(2)]
    if _BARE_NUMBER.fullmatch(text):
        raise SizeError("", "the size %.20s has no unit" % text, "Write %.20sGiB or %.20sMiB." % (text, text))
    raise SizeError(
        "",
        'the size "%.60s" is not a positive whole number with the unit MiB or GiB' % text,
        "Write it like 18GiB or 512MiB (powers of 1024, no space, no fraction, at most 9 digits).",
    )


def format_size(size_bytes: int) -> str:
    """Return the shortest text for a size.

    Raises ValueError unless the size is a positive number of whole MiB.
    """
    if size_bytes <= 0 or size_bytes % BYTES_PER_UNIT["MiB"]:
        raise ValueError("%d bytes are not a positive whole number of MiB" % size_bytes)
    unit = "MiB" if size_bytes % BYTES_PER_UNIT["GiB"] else "GiB"
    return "%d%s" % (size_bytes // BYTES_PER_UNIT[unit], unit)
