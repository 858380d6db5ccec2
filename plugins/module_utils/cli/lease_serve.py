# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand lease-serve: the service that grants leases."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import functools
import os
import socket
from argparse import Namespace

from ..errors import FleetError
from ..lease_service.host import LeaseHost
from ..lease_service.leftover import end_holders
from ..lease_service.server import LeaseServer
from ..lease_service.service import LeaseService
from ..leases.record import BookingRecord

#: The first descriptor that systemd passes (sd_listen_fds(3)).
_FIRST_DESCRIPTOR = 3


def serve(options: Namespace) -> int:
    """Serve requests on the socket from systemd.

    Returns when the host has no leases and no more requests arrive.
    """
    if os.environ.get("LISTEN_FDS") != "1":
        raise FleetError("lease-serve", "systemd has handed over no socket", "Start gpu-layout-lease.socket instead.")
    host = LeaseHost(options.state_directory, options.layout)
    service = LeaseService(
        host,
        BookingRecord(options.state_directory),
        end_holders=functools.partial(end_holders, options.state_directory),
    )
    with socket.socket(fileno=_FIRST_DESCRIPTOR) as listener:
        LeaseServer(listener, service, lambda text: print(text, flush=True)).serve()
    return 0
