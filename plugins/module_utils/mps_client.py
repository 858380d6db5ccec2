# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what a client of an MPS control daemon needs to know. Pure."""

from __future__ import annotations

from typing import Any

#: The pipe directories of all daemons of this collection, below the root of the host.
PIPES = "run/openfleet-mps"


def daemon_of(gpu_uuid: str) -> str:
    """Name of the MPS daemon through which tenants of a GPU work where the provider is mps."""
    return "vgpu-%s" % gpu_uuid.replace("GPU-", "", 1)


def pipe_directory(name: str) -> str:
    return "/%s/%s" % (PIPES, name)


def client_mounts(name: str) -> list[dict[str, Any]]:
    """What a container of a client of the daemon has mounted, as CDI says it."""
    # Writable, for a client locks a file there. Otherwise as engines mount their own /dev/shm, which this one takes the
    # place of.
    return [
        {"hostPath": path, "containerPath": path, "options": ["bind", "rw", "nosuid", "nodev", "noexec"]}
        for path in (pipe_directory(name), "/dev/shm")
    ]
