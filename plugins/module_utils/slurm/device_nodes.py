# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read device nodes of GPUs and MIG capabilities, and the host's cores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator

_CAPABILITY = re.compile(r"^(config|monitor|gpu[0-9]+/gi[0-9]+/(?:ci[0-9]+/)?access) ([0-9]{1,9})$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,4})\s*$", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(GPU-\S+)", re.MULTILINE)


def cores(folder: Path) -> list[dict[str, Any]]:
    """Read the package and the CPUs of each online core.

    Source: cputopology.rst in Linux's documentation.
    """
    found = {}
    for path in folder.glob("cpu[0-9]*/topology"):
        package, cpus = _text(path / "physical_package_id").strip(), _text(path / "thread_siblings_list").strip()
        if package.isdigit() and cpus:
            found[cpus] = {"package": int(package), "cpus": cpus}
    return [found[cpus] for cpus in sorted(found)]


def minors(folder: Path, devices: Path | None = None) -> Iterator[dict[str, Any]]:
    """Read each GPU's UUID and device minor (/dev/nvidiaN).

    Given the folder of PCI devices in sysfs, also reads the CPUs that are closest to the GPU.
    """
    for path in sorted(folder.glob("*/information")):
        text = _text(path)
        uuid, minor = _UUID.search(text), _MINOR.search(text)
        if uuid and minor:
            row = {"uuid": uuid.group(1), "minor": int(minor.group(1))}
            if devices is not None:
                row["local_cpus"] = _text(devices / path.parent.name.lower() / "local_cpulist").strip()
            yield row


def capabilities(listed: Path, nodes: Path) -> Iterator[dict[str, Any]]:
    """Read the names and numbers of MIG capabilities that have a device node.

    slurmd exits if a file in gres.conf does not exist.
    """
    for name, number in _CAPABILITY.findall(_text(listed)):
        if (nodes / ("nvidia-cap%s" % number)).exists():
            yield {"name": name, "number": int(number)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
