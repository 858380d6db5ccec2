# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `vgpu-agent`, which provides the memory with which tenants take turns."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import os
import time
from argparse import Namespace
from pathlib import Path

from . import agent_nvml
from .agent import Agent
from .agent_memory import Notifier, SharedMemory, stored
from .model import root_of_files

#: Minimum number of seconds between two starts of the process that queries NVML.
_AGAIN_SECONDS = 10.0


def serve(options: Namespace) -> int:
    """Serve until the process ends."""
    notifier = Notifier(os.environ)
    root = root_of_files()
    agent = Agent(root, SharedMemory(notifier, stored(os.environ)), _log)
    reporter = _Reporter(root, options.state_directory)
    agent.look()
    notifier.tell("READY=1")

    def ticked() -> None:
        # The watchdog restarts the service if reading the tenants hangs.
        notifier.tell("WATCHDOG=1")
        reporter.keep_running()

    agent.serve(ticked)
    return 0


def _log(text: str) -> None:
    print(text, flush=True)


class _Reporter:
    """Start the process that queries NVML, and restart it when it ends.

    For example, it ends if the driver's library crashes.
    """

    def __init__(self, root: Path, state_directory: str) -> None:
        self._root, self._state_directory = root, state_directory
        self._pid, self._not_before = 0, 0.0

    def keep_running(self) -> None:
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            return
        self._pid = 0
        if time.monotonic() >= self._not_before:
            self._not_before = time.monotonic() + _AGAIN_SECONDS
            self._pid = agent_nvml.start(self._root, self._state_directory, _log)
