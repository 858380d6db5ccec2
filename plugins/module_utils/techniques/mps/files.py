# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate the files of MPS control daemons.

All functions are pure. Paths are relative to the host's root.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from ...cdi import specification
from ...errors import Problem
from ...holders.mps_control import PIPE_DIRECTORY, PIPES, client_mounts, limit_command, pipe_directory
from ..limited_folder import LimitedFolder
from .model import SETTINGS, MpsDaemon, spec_path, to_data
from .unit import LOGS

#: Kind of the CDI device that makes a container a client of a daemon: openfleet.io/mps=NAME.
CDI_KIND = "openfleet.io/mps"

#: Limits of a pipe directory: its size in MiB, and its number of files. The daemon stores its sockets and a few small
#: files there.
_PIPES_MIB, _PIPES_FILES = 16, 4096

#: Maximum length of a daemon's name. A UNIX socket's path has at most 107 characters (unix(7)), and the daemon's
#: longest socket path is PIPES/NAME/control_privileged.
LONGEST_NAME = 107 - len("/%s//control_privileged" % PIPES)


def limited_folder(name: str) -> LimitedFolder:
    """Return the mount unit of a daemon's pipe directory.

    The directory is a tmpfs with a size limit, because clients' containers write to it. Users have no access until the
    daemon is ready, when its unit opens the directory.
    """
    return LimitedFolder(
        path="%s/%s" % (PIPES, name),
        size_mib=_PIPES_MIB,
        most_files=_PIPES_FILES,
        mode=0o700,
        description="Pipe directory of the MPS control daemon %s" % name,
        comment="the MPS control daemons that gpu_layout names",
        only_empty=True,
    )


def log_directory(name: str) -> str:
    return "/%s/%s" % (LOGS, name)


def cdi_path(name: str) -> str:
    return "etc/cdi/openfleet-mps-%s.json" % name


def name_problem(name: str) -> Problem | None:
    """Return why a daemon cannot have a name that gpu_layout allows, or None."""
    where = 'the MPS daemon "%s"' % name
    if len(name) > LONGEST_NAME:
        problem = "the name has %d characters, but the path of the daemon's socket has room for only %d" % (
            len(name),
            LONGEST_NAME,
        )
        return Problem(where, problem, "Give it a shorter name in gpu_layout.")
    if not name[-1:].isalnum():
        # Rule for device names: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
        return Problem(
            where, "no CDI device can have a name that ends in %s" % name[-1:], "End the name in a letter or digit."
        )
    return None


def files(daemon: MpsDaemon, devices: Sequence[str]) -> dict[str, str]:
    """Return the files of one daemon.

    `devices` has the UUIDs of GPUs, or the UUID of one MIG device.
    """
    settings = "%s/%s" % (SETTINGS, daemon.name)
    return {
        spec_path(daemon.name): _json(to_data(daemon, devices)),
        settings + ".env": _daemon_environment(daemon, devices),
        settings + ".limits": _limits(daemon, devices),
        settings + ".client.env": _client_environment(daemon, devices),
        cdi_path(daemon.name): _json(_cdi(daemon)),
        limited_folder(daemon.name).unit_path: limited_folder(daemon.name).unit_text,
    }


def _daemon_environment(daemon: MpsDaemon, devices: Sequence[str]) -> str:
    """Return the environment of the daemon. The daemon passes it to its servers.

    The daemon uses the percentage in the environment as its default, but not a memory limit. A command therefore sets
    the memory limit (`_limits`).
    """
    return _environment(
        "Settings of the MPS control daemon %s. Written by openfleet.gpu, change gpu_layout instead." % daemon.name,
        {
            "CUDA_VISIBLE_DEVICES": ",".join(devices),
            PIPE_DIRECTORY: pipe_directory(daemon.name),
            "CUDA_MPS_LOG_DIRECTORY": log_directory(daemon.name),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(daemon.active_thread_percentage),
        },
    )


def _limits(daemon: MpsDaemon, devices: Sequence[str]) -> str:
    """Return the commands that set the limits after each start of the daemon.

    The daemon numbers its devices in the order of CUDA_VISIBLE_DEVICES.
    """
    commands = ["set_default_active_thread_percentage %d" % daemon.active_thread_percentage]
    if daemon.pinned_memory_limit_bytes is not None:
        commands += [limit_command(index, daemon.pinned_memory_limit_bytes) for index in range(len(devices))]
    return "".join(command + "\n" for command in commands)


def _client_environment(daemon: MpsDaemon, devices: Sequence[str]) -> str:
    """Return the environment of clients, with the UUIDs of the daemon's devices.

    With these UUIDs, a process sees the same devices even if it runs without the daemon.
    """
    return _environment(
        "For clients of the MPS control daemon %s, as EnvironmentFile= or --env-file. Written by openfleet.gpu."
        % daemon.name,
        {PIPE_DIRECTORY: pipe_directory(daemon.name), "CUDA_VISIBLE_DEVICES": ",".join(devices)},
    )


def _cdi(daemon: MpsDaemon) -> dict[str, Any]:
    """Return the CDI device that makes a container a client of the daemon.

    The GPU itself is a separate device, nvidia.com/gpu=UUID. Client and server share memory in /dev/shm.
    Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
    """
    edits = {"env": ["%s=%s" % (PIPE_DIRECTORY, pipe_directory(daemon.name))], "mounts": client_mounts(daemon.name)}
    return specification.device(CDI_KIND, daemon.name, edits)


def _environment(comment: str, variables: Mapping[str, str]) -> str:
    return "# %s\n" % comment + "".join("%s=%s\n" % item for item in variables.items())


def _json(data: Any) -> str:
    return json.dumps(data, indent=1) + "\n"
