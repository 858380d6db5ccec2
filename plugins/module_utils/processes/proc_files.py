# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH123
"""Read files and links in /proc."""

from __future__ import annotations

import os

#: Value for the argument `newline` of open(). Users choose the names of processes and cgroups, and the kernel escapes
#: only line feeds in them. A carriage return must therefore not end a line. Do not use splitlines(), because it splits
#: at nine more characters.
LINE_END = "\n"


def link(path: str) -> str | None:
    """Return the target of a link, or None if it is missing or not readable."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def read(path: str, most: int = -1) -> str:
    """Return the first `most` bytes of a file as text.

    By default, the whole file is returned. Returns "" if the file cannot be read.
    """
    try:
        # Unbuffered, because a scan reads hundreds of small files.
        with open(path, "rb", buffering=0 if most < 0 else -1) as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
