# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create cgroups on this machine for processes that represent units and pods."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator

from tests.integration.patience import wait_until


def hierarchies() -> list[Path]:
    """Return the cgroup hierarchies in which the kernel tracks units and pods.

    systemd's own cgroup v1 hierarchy comes first, then cgroup v2.
    """
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    own = [Path(where) for _what, where, kind, options, *_ in mounts if kind == "cgroup" and "name=systemd" in options]
    return own + [Path(where) for _what, where, kind, *_ in mounts if kind == "cgroup2"]


@contextlib.contextmanager
def made(*parts: str) -> Iterator[Path]:
    """Create a cgroup with this path, and remove it after the block.

    The path starts at the top of the hierarchy. The processes in the cgroup must have ended by the end of the block.
    The function keeps directories that existed before. Raise OSError if this machine does not allow new cgroups.
    """
    path = next(iter(hierarchies()), Path("/nowhere"))
    new = []
    for part in parts:
        path /= part
        if not path.exists():
            path.mkdir()
            new.append(path)
    try:
        yield path
    finally:
        for folder in reversed(new):
            wait_until(lambda folder=folder: _removed(folder), "%s empties" % folder)


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
