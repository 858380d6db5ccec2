# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write files that only their owner and group may read.

The files have data about hosts, users and command lines.
"""

from __future__ import annotations

from pathlib import Path

from ..module_utils.durable import replacing

#: Maximum permissions of files and folders, which the umask can reduce.
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents.

    Existing folders keep their permissions. Raises OSError.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(_FOLDER_MODE, exist_ok=True)


def write(path: Path, text: str) -> None:
    """Write a file atomically. Raises OSError.

    An existing file's permissions are not kept.
    """
    with replacing(path, most=_FILE_MODE) as file:
        file.write(text.encode())
