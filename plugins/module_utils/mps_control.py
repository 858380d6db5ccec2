# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said to an MPS control daemon, and what it answers.

The daemon is asked as its operator would: one command on the standard input of nvidia-cuda-mps-control, which finds the
daemon by CUDA_MPS_PIPE_DIRECTORY (https://docs.nvidia.com/deploy/mps/, chapter on nvidia-cuda-mps-control). The exit status
tells only whether the daemon was reached; a command that it refuses is told by what it prints, or by nothing. What is said
of its answers below was seen with those of Debian, 535.261.03 and 550.163.01.
"""

from __future__ import annotations

import re

from .errors import FleetError
from .holders_model import Run, ask

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"

_MIB = 2**20
_REFUSED = re.compile(r"privilege|^Unknown command|^Invalid", re.IGNORECASE | re.MULTILINE)
_SIZE = re.compile(r"([0-9]+)([GM])")


class MpsError(FleetError):
    """A control daemon that does not answer, or refuses."""


class Control:
    """The control daemon behind a pipe directory; None is the directory that the tool has as its default."""

    def __init__(self, run: Run, directory: str | None) -> None:
        self._run = run
        self._variables = {PIPE_DIRECTORY: directory} if directory else {}
        self.where = "the MPS control daemon of %s" % (directory or "the default pipe directory")

    def ask(self, command: str) -> str:
        """The answer to a command. Raises MpsError where the daemon does not answer or refuses."""
        try:
            text, problem = ask(self._run, [CONTROL], input=command + "\n", env=self._variables)
        except FileNotFoundError as error:
            raise MpsError(self.where, str(error), "Install %s." % CONTROL) from error
        if text is None:
            raise MpsError(self.where, problem, "See whether it runs, and as whom.")
        if _REFUSED.search(text):
            raise MpsError(self.where, 'it refuses "%s": %s' % (command, " ".join(text.split())), "Ask it as root.")
        return text.strip()

    def servers(self) -> tuple[int, ...]:
        """The pids of its servers: one for each user at work, none before the first client."""
        return _pids(self.ask("get_server_list"))

    def clients(self, server: int) -> tuple[int, ...]:
        """The pids of a server's clients; none where the server has ended since."""
        return _pids(self.ask("get_client_list %d" % server))

    def percentage(self, server: int | None = None) -> float | None:
        """The share of the threads that a client gets at most, from a server or from servers to come; None: not told.

        A server that is just starting or ending tells nothing.
        """
        of = "get_default_active_thread_percentage" if server is None else "get_active_thread_percentage %d" % server
        return _number(self.ask(of))

    def set_percentage(self, percentage: int, server: int | None = None) -> float | None:
        """What holds afterwards. Clients that are connected keep what they have; None as in `percentage`."""
        of = "set_default_active_thread_percentage" if server is None else "set_active_thread_percentage %d" % server
        return _number(self.ask("%s %d" % (of, percentage)))

    def limit(self, index: int, server: int | None = None) -> int | None:
        """Bytes that a client may have on the daemon's device of that index. As `told` has them; None: no limit, or not told."""
        of = "get_default_device_pinned_mem_limit" if server is None else "get_device_pinned_mem_limit %d" % server
        found = _SIZE.search(self.ask("%s %d" % (of, index)))
        return int(found.group(1)) * _MIB * (1024 if found.group(2) == "G" else 1) if found else None

    def set_limit(self, index: int, limit_bytes: int, server: int | None = None) -> None:
        self.ask(limit_command(index, limit_bytes, server))


def limit_command(index: int, limit_bytes: int, server: int | None = None) -> str:
    """Sets a memory limit. In MiB: of all units but M and G the daemon takes the number and forgets the unit."""
    of = "set_default_device_pinned_mem_limit" if server is None else "set_device_pinned_mem_limit %d" % server
    return "%s %d %dM" % (of, index, limit_bytes // _MIB)


def told(limit_bytes: int | None) -> int | None:
    """How a daemon tells a limit: from 1 GiB on in whole GiB, rounded down, though it keeps the limit itself."""
    if limit_bytes is None:
        return None
    unit = _MIB if limit_bytes < 1024 * _MIB else 1024 * _MIB
    return limit_bytes // unit * unit


def _pids(text: str) -> tuple[int, ...]:
    # A line of its own: "Server 5 not found" names no process.
    return tuple(int(line) for line in text.splitlines() if line.strip().isdigit())


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None
