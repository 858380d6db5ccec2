# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create links in an installation, and remove directories."""

from __future__ import annotations

import os
import shutil

from .. import durable
from .files import Installation


def link(target: Installation, relative: str, to: str) -> None:
    """Create or replace a link atomically."""
    path = target.path(relative)
    if not (path.is_symlink() and os.readlink(str(path)) == to) and target.doing("link %s to %s" % (path, to)):
        durable.make_folder(path.parent)
        durable.link(path, to)


def remove_tree(target: Installation, relative: str) -> None:
    """Remove a directory with its content, or a file or link."""
    path = target.path(relative)
    if path.is_symlink() or not path.is_dir():
        target.remove(relative)
    elif target.doing("remove %s" % path):
        shutil.rmtree(str(path))
