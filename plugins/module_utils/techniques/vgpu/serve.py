# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vgpu-agent: the service that hands tenants the memory in which they take turns."""

from __future__ import annotations

import os
from argparse import Namespace

from .agent import Agent
from .agent_memory import Notifier, SharedMemory, stored
from .model import root_of_files


def serve(options: Namespace) -> int:
    """Serve until the process is ended."""
    notifier = Notifier(os.environ)
    agent = Agent(
        root_of_files(),
        SharedMemory(notifier, stored(os.environ)),
        lambda text: print(text, flush=True),
    )
    agent.look()
    notifier.tell("READY=1")
    # Where no look comes in time, the service is ended and starts again.
    agent.serve(lambda: notifier.tell("WATCHDOG=1"))
    return 0
