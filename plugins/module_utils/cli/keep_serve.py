# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand keep-serve: the service behind the socket of keep."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import json
import os
import socket
from argparse import Namespace
from typing import Any

from ..errors import FleetError
from ..holders.containers import LIST_DOCKER
from ..holders.find import find_holders
from ..keep.request import Settings, answer, parse, to_log
from ..keep.server import Server
from ..plan.transaction import looking
from ..processes.command import run_tool
from ..vendors.nvidia.nvml.bounded_session import BoundedSession

#: The first descriptor that systemd passes (sd_listen_fds(3)).
_FIRST_DESCRIPTOR = 3


def serve(options: Namespace) -> int:
    """Serve requests on the socket from systemd until no more arrive."""
    settings = Settings.read(options.settings)

    def answered(line: bytes, uid: int) -> str:
        request = parse(line)
        reply = answer(request, uid, settings, lambda: _holders(settings.state_directory))
        return json.dumps(dict(reply, log=to_log(request, uid, reply)))

    if os.environ.get("LISTEN_FDS") != "1":
        raise FleetError("keep-serve", "systemd has handed over no socket", "Start gpu-layout-keep.socket instead.")
    with socket.socket(fileno=_FIRST_DESCRIPTOR) as listener:
        Server(listener, answered, lambda text: print(text, flush=True)).serve()
    return 0


def _holders(state_directory: str) -> Any:
    """Return the current holders of the GPUs.

    Raises FleetError if the host cannot be read or a run is changing it.
    """

    def run(command: list[str], **how: Any) -> Any:
        # Query only the names of Docker containers. Schedulers' allocations cannot be kept, so schedulers are not
        # queried.
        if command != LIST_DOCKER:
            raise FileNotFoundError(2, "not asked", command[0])
        return run_tool(command, **how)

    with looking(state_directory) as busy:
        if busy is not None:
            raise busy
        with BoundedSession() as session:
            host = session.observe()
    return find_holders(host, run=run)
