# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write files of the controller that tell of hosts, their users and their command lines: for the owner and the group alone."""

from __future__ import annotations

from pathlib import Path

from ..module_utils.durable import replacing

#: At most: the umask takes away from them.
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750


def make_folder(folder: Path) -> None:
    """Make the folder and those above it that are missing. One that exists keeps its mode. Raises OSError."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all, whatever the mode of the one that it replaces. Raises OSError."""
    with replacing(path, most=_FILE_MODE) as file:
        file.write(text.encode())
