# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the daemons of a host as return values of modules."""

from __future__ import annotations

from typing import Any

from ...errors import FleetError
from ...model import to_data
from .host import MpsHost

#: What is told where the daemons cannot be looked at.
_NO_DAEMON = {
    "name": None,
    "places": [],
    "devices": [],
    "clients": None,
    "active_thread_percentage": None,
    "pinned_memory_limits_bytes": [],
    "running": None,
    "pid": None,
    "server_pids": [],
    "silent_server_pids": [],
    "pipe_directory_limited": None,
    "client_processes": [],
}


def report(private: bool) -> list[dict[str, Any]]:
    """Return the collection's MPS daemons on this host; none where the GPUs are simulated for this process alone.

    Where they cannot be looked at, one entry has nothing but the `problem`: that is told, and fails nobody.
    """
    if private:
        return []
    try:
        observed = MpsHost().observe()
    except FleetError as error:
        return [dict(_NO_DAEMON, problem=str(error))]
    return [
        {
            "name": seen.daemon.name,
            "places": to_data(seen.daemon.places),
            "devices": list(seen.devices),
            "clients": seen.daemon.clients,
            "active_thread_percentage": seen.active_thread_percentage,
            "pinned_memory_limits_bytes": list(seen.pinned_memory_limits_bytes),
            "running": seen.running,
            "pid": seen.pid,
            "server_pids": list(seen.server_pids),
            "silent_server_pids": list(seen.silent_server_pids),
            "pipe_directory_limited": seen.pipe_directory_limited,
            "client_processes": to_data(seen.clients),
            "problem": seen.problem,
        }
        for seen in observed
    ]
