# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the lines of gres.conf that apply to one node.

https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator

from ..holders.slurm import hostnames

_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*$", re.IGNORECASE)
_NODES = re.compile(r"\bNodeName=(\S+)", re.IGNORECASE)
_GPU = re.compile(r"\b(?:Name=gpu|AutoDetect=\S+)(?:\s|$)", re.IGNORECASE)
# Files may include further files.
_DEEPEST = 4


def gres_lines(path: Path, node: str) -> list[str]:
    """Return the lines about gres/gpu of a node, in order.

    Returns an empty list if a file cannot be read.
    """
    try:
        return list(_lines(path, path.parent, node, _DEEPEST))
    except OSError:
        return []


def _lines(path: Path, folder: Path, node: str, deepest: int) -> Iterator[str]:
    if not deepest:
        raise OSError("%s: too many files include each other" % path)
    for line in path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ").splitlines():
        line = line.partition("#")[0].strip()
        include, nodes = _INCLUDE.match(line), _NODES.search(line)
        if include:
            yield from _lines(folder / include.group(1), folder, node, deepest - 1)
        elif _GPU.search(line) and (not nodes or node in hostnames(nodes.group(1))):
            yield line
