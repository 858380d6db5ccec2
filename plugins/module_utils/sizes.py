# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory sizes as people write them: a whole number and a binary unit, ``18GiB`` or ``512MiB``."""

from __future__ import annotations

import re

from .errors import FleetError

#: Framebuffer is accounted in MiB, by NVML as by MPS: nothing smaller means anything.
BYTES_PER_UNIT = {"MiB": 2**20, "GiB": 2**30}

_SIZE = re.compile(r"([1-9][0-9]{0,8})(MiB|GiB)")
_BARE_NUMBER = re.compile(r"[0-9]+")


class SizeError(FleetError):
    """A text that is no size."""


def parse_size_bytes(text: str) -> int:
    """``512MiB`` as bytes. Raises SizeError, whose `where` is empty: only the caller knows it."""
    match = _SIZE.fullmatch(text)
    if match:
        return int(match.group(1)) * BYTES_PER_UNIT[match.group(2)]
    if _BARE_NUMBER.fullmatch(text):
        raise SizeError(
            "", "the size %.20s has no unit" % text, "Write %.20sGiB or %.20sMiB, whichever is meant." % (text, text)
        )
    raise SizeError(
        "",
        'the size "%.60s" is not a positive whole number with the unit MiB or GiB' % text,
        "Write it like 18GiB or 512MiB (powers of 1024, no space, no fraction, at most 9 digits).",
    )


def format_size(size_bytes: int) -> str:
    """The shortest text that parses back to the same size. Raises ValueError for anything but positive whole MiB."""
    if size_bytes <= 0 or size_bytes % BYTES_PER_UNIT["MiB"]:
        raise ValueError("%d bytes are not a positive whole number of MiB" % size_bytes)
    unit = "MiB" if size_bytes % BYTES_PER_UNIT["GiB"] else "GiB"
    return "%d%s" % (size_bytes // BYTES_PER_UNIT[unit], unit)
