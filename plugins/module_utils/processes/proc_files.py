# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH123
"""Read files and links in /proc."""

from __future__ import annotations

import os

#: Value for open()'s argument `newline`. Users choose names of processes and cgroups, in which the kernel only escapes
#: line feeds, so a carriage return must not end a line. Do not use splitlines(): it splits at nine more characters.
LINE_END = "\n"


def link(path: str) -> str | None:
    """Return the target of a link, or None if it is missing or not readable."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def read(path: str, most: int = -1) -> str:
    """Return a file's first `most` bytes as text, or by default the whole file.

    Returns "" if the file cannot be read.
    """
    try:
        # Do not buffer, because a scan reads hundreds of small files.
        with open(path, "rb", buffering=0 if most < 0 else -1) as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
