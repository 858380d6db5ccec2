# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse slurm.conf and gres.conf, as pure functions.

Format: https://slurm.schedmd.com/slurm.conf.html and https://slurm.schedmd.com/gres.conf.html.
"""

from __future__ import annotations

import re
from typing import Callable, Iterator, Sequence

from ..errors import FleetError
from ..frozen import frozen
from ..holders.slurm import expanded

SLURM_CONF, GRES_CONF = "slurm.conf", "gres.conf"
_INCLUDE = re.compile(r"\s*Include\s+(\S+)\s*", re.IGNORECASE)
PAIR = re.compile(r"(?P<before>^|\s)(?P<key>\w+)\s*=\s*(?P<value>\"[^\"]*\"|\S*)")
_MOST_SHOWN = 300


class GresLinesError(FleetError):
    """The lines of gres.conf do not list the node's devices."""


@frozen
class Line:
    """A line of a file, joined with its continuation lines and without comments.

    `first` and `last` are line numbers. `key` is the first keyword in lower case.
    """

    file: str
    first: int
    last: int
    text: str

    @property
    def pairs(self) -> dict[str, str]:
        return {match["key"].lower(): match["value"].strip('"') for match in PAIR.finditer(self.text)}

    @property
    def key(self) -> str:
        match = PAIR.match(self.text.strip())
        return match["key"].lower() if match else ""

    @property
    def place(self) -> str:
        return "%s line %d" % (self.file, self.first)

    @property
    def shown(self) -> str:
        text = " ".join(self.text.split())
        return text[:_MOST_SHOWN] + ("..." if len(text) > _MOST_SHOWN else "")

    @property
    def nodes(self) -> list[str]:
        """Return the names in NodeName=, such as gpu-[01-03,7],login."""
        return expanded(self.pairs.get("nodename", ""))

    @property
    def devices(self) -> list[tuple[str, ...]]:
        """Return each device's device nodes. MultipleFiles= is one device."""
        pairs = self.pairs
        if "multiplefiles" in pairs:
            return [tuple(expanded(pairs["multiplefiles"]))]
        return [(path,) for path in expanded(pairs.get("file", ""))]

    def is_for(self, node: str) -> bool:
        """Return whether a line of gres.conf applies to a node."""
        return "nodename" not in self.pairs or node in self.nodes


def lines_of(path: str, text: str) -> Iterator[Line]:
    """Yield the lines of a file that are not empty."""
    parts: list[str] = []
    first = 1
    for number, physical in enumerate(text.splitlines(), 1):
        if not parts:
            first = number
        part = re.sub(r"(?<!\\)#.*", "", physical).rstrip()
        if part.endswith("\\"):
            parts.append(part[:-1])
            continue
        joined = "".join([*parts, part])
        parts = []
        if joined.strip():
            yield Line(path, first, number, joined)


def included(directory: str, line: Line) -> str | None:
    """Return the path that a line includes, or None."""
    match = _INCLUDE.fullmatch(line.text)
    if not match:
        return None
    return match[1] if match[1].startswith("/") else "%s/%s" % (directory, match[1])


def tree(read: Callable[[str], str], directory: str, name: str) -> list[Line]:
    """Return the lines of a file and of the files that it includes, in Slurm's order.

    `read` returns the text of a path.
    """
    return list(_tree(read, directory, "%s/%s" % (directory, name), ()))


def _tree(read: Callable[[str], str], directory: str, path: str, outer: tuple[str, ...]) -> Iterator[Line]:
    for line in lines_of(path, read(path)):
        inner = included(directory, line)
        yield line
        if inner and inner not in (path, *outer):
            yield from _tree(read, directory, inner, (*outer, path))


def gpu_lines(lines: Sequence[Line], node: str) -> list[str]:
    """Return the lines of gres.conf about a node's gres/gpu."""
    found = [line for line in lines if line.pairs.get("name", "").lower() == "gpu" or "autodetect" in line.pairs]
    return [" ".join(line.text.split()) for line in found if line.is_for(node)]


def gpu_devices(lines: Sequence[str], node: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each device's type and device nodes, in the order of the lines.

    Raises GresLinesError if slurmd detects the devices, or if a line has no file.
    """
    found = [line for text in lines for line in lines_of(GRES_CONF, text) if line.is_for(node)]
    # A node's AutoDetect takes precedence over AutoDetect for the whole file.
    detected = {"nodename" in line.pairs: line for line in found if "autodetect" in line.pairs}
    detect = detected.get(True, detected.get(False))
    if detect and detect.pairs["autodetect"].lower() != "off":
        raise GresLinesError(
            GRES_CONF,
            "AutoDetect=%s detects the devices of the node %s" % (detect.pairs["autodetect"], node),
            "List the devices, because their numbers are unknown with AutoDetect.",
        )
    rows = []
    for line in found:
        pairs = line.pairs
        if pairs.get("name", "").lower() != "gpu":
            continue
        # Slurm makes devices of single files if there are several devices.
        if not line.devices or ("multiplefiles" in pairs and pairs.get("count", "1") != "1"):
            raise GresLinesError(
                GRES_CONF, "the line %.200r has no File= of each device" % line.shown, "List the device nodes."
            )
        rows += [(pairs.get("type", ""), files) for files in line.devices]
    return rows
