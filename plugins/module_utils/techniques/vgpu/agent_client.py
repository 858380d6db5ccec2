# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the agent of this host which GPUs it has pages of (`agent`)."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Iterator

from . import files as vgpu_files


def handed_out(root: Path, seconds: float = 1.0) -> dict[str, bool]:
    """Return the UUIDs of the GPUs whose tenants have pages, and whether no tenant can write another's. {} without an agent."""
    found = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(seconds)
        with socket_folder(root / vgpu_files.STATE) as folder:
            connection.connect(folder + vgpu_files.AGENT_SOCKET)
        # The descriptors are not asked for, so the kernel drops them.
        for message in iter(lambda: connection.recv(1 << 16), b""):
            found += message
    lines = (line.split() for line in found.decode(errors="replace").splitlines())
    return {words[0]: words[2] == "1" for words in lines if len(words) == 3 and words[1] == "terms"}


@contextlib.contextmanager
def socket_folder(path: Path) -> Iterator[str]:
    """A way to a folder that fits into the address of a socket, however long its path is. Raises OSError."""
    descriptor = os.open(str(path), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/" % descriptor
    finally:
        os.close(descriptor)
