# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH123
"""Read files and links of /proc."""

from __future__ import annotations

import os

#: For open(): a carriage return ends no line. Users choose names of processes and cgroups, in which the kernel writes out
#: nothing but line feeds. Nor may such a text be split by splitlines(), which knows eight more ends of lines.
LINE_END = "\n"


def link(path: str) -> str | None:
    """Return where a link leads; None where there is none, or it may not be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def read(path: str, most: int = -1) -> str:
    """Return the beginning of a file, `most` bytes, or all of it; nothing where it cannot be read."""
    try:
        # A look reads hundreds of small files: to read all of one needs no buffer, and text no reader of lines.
        with open(path, "rb", buffering=0 if most < 0 else -1) as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
