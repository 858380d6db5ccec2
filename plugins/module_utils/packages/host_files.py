# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read text files of the host that may be missing."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable


def read_text(path: str) -> str | None:
    """Return the text of a file, or None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_texts(paths: Iterable[str]) -> dict[str, str]:
    """Return the texts of the readable files by path."""
    texts = ((path, read_text(path)) for path in paths)
    return {path: text for path, text in texts if text is not None}
