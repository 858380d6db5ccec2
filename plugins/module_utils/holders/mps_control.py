# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send commands to an MPS control daemon and parse its answers.

The program nvidia-cuda-mps-control reads commands from standard input. It finds the daemon with CUDA_MPS_PIPE_DIRECTORY
(https://docs.nvidia.com/deploy/mps/, chapter on nvidia-cuda-mps-control). Its exit status shows only whether it reached
the daemon. If the daemon refuses a command, the output is a message or empty. The form of the answers was verified with
versions 535.261.03 and 550.163.01 from Debian.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from typing import Any, Iterator

from ..errors import FleetError
from ..model import MPS_CONTROL
from ..printable import printable
from ..processes.command import TOOL_TIMEOUT_SECONDS, Run, ask

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
#: Folder with the pipe directories of this collection's daemons, relative to the root of the host.
PIPES = "run/openfleet-mps"

_MIB = 2**20
_REFUSED = re.compile(r"privilege|^Unknown command|^Invalid", re.IGNORECASE | re.MULTILINE)
_SIZE = re.compile(r"(?<![0-9])([0-9]{1,9})([GM])")
_PID = re.compile(r"\s*([0-9]{1,10})\s*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?", re.ASCII)
#: Time limit in seconds for all commands to one daemon in one run, because the run holds the host's lock.
_SECONDS = 6 * TOOL_TIMEOUT_SECONDS
#: Maximum number of a daemon's servers, and of clients of all its servers. A server has up to 60 clients
#: (https://docs.nvidia.com/deploy/mps/, "Limitations").
_MOST_SERVERS, _MOST_CLIENTS = 64, 1024
#: Maximum length in characters of an answer, and of the part of an answer that a message quotes.
_MOST_LETTERS, _SHOWN = 1 << 16, 200
#: A lock that this collection's programs take before they query a daemon of the collection. If two programs query a
#: daemon at the same time, one may fail or get an empty answer (seen with 535.261.03). Only root can open the lock. A
#: sandboxed service may be unable to open it.
_LOCK, _OWN = "/run/openfleet-gpu-mps.lock", "/run/openfleet-mps/"
_TURN_SECONDS, _TURN_POLL_SECONDS = 5.0, 0.01
#: Pauses in seconds before each retry of a command that fails or gets no answer, because other tools do not use the
#: lock.
_AGAIN_SECONDS = (0.05, 0.2, 0.5)
_COLLISION = re.compile(r"exit status 1: (Cannot send command to MPS control daemon.*)?$", re.DOTALL)


class MpsError(FleetError):
    """A control daemon does not answer or refuses a command."""

    host_fault = True


class Control:
    """Query or change the control daemon that uses a pipe directory.

    If the directory is None, the default of nvidia-cuda-mps-control is used. Root in a client's container can forge
    answers, so an answer's length, characters and number of entries are limited. All answers must arrive before
    `deadline`, in seconds of time.monotonic().
    """

    def __init__(self, run: Run, directory: str | None, deadline: float | None = None) -> None:
        self._run, self._directory = run, directory
        self._variables = {PIPE_DIRECTORY: directory} if directory else {}
        self._deadline = time.monotonic() + _SECONDS if deadline is None else deadline
        self._clients = 0
        self.where = "the MPS control daemon of %s" % printable(directory or "the default pipe directory")

    def ask(self, command: str, answers: bool = False) -> str:
        """Send a command and return the answer.

        `answers` is true for a command that always has an answer. An empty answer is then an error. Raises MpsError if
        the daemon does not answer or refuses the command.
        """
        for pause in (*_AGAIN_SECONDS, None):
            left = self.check_time()
            options = {"timeout_seconds": left} if left < TOOL_TIMEOUT_SECONDS else {}
            try:
                with _turn(self._directory):
                    text, problem = ask(self._run, [MPS_CONTROL], input=command + "\n", env=self._variables, **options)
            except FileNotFoundError as error:
                raise MpsError(self.where, str(error), "Install %s." % MPS_CONTROL) from error
            collided = not text.strip() and answers if text is not None else _COLLISION.search(problem)
            if pause is None or not collided:
                break
            time.sleep(pause)
        if text is None:
            raise MpsError(self.where, printable(problem), "Check whether it runs, and as which user.")
        if len(text) > _MOST_LETTERS:
            raise self._odd('it answers "%s" with %d characters' % (command, len(text)))
        if _REFUSED.search(text):
            message = printable(" ".join(text[: 2 * _SHOWN].split()))[:_SHOWN]
            raise MpsError(self.where, 'it refuses "%s": %s' % (command, message), "Run the command as root.")
        return text.strip()

    def check_time(self) -> float:
        """Return the remaining seconds. Raises MpsError after the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise MpsError(self.where, "it takes too long to answer", "Check whether its servers hang.")
        return left

    def _odd(self, problem: str) -> MpsError:
        return MpsError(
            self.where, problem, "Check which process answers at the daemon's pipes. An MPS daemon does not do this."
        )

    def servers(self) -> tuple[int, ...]:
        """Return the PIDs of the daemon's servers.

        The daemon has one server for each user with clients, and none without clients.
        """
        answer = self.ask("get_server_list")
        if not answer:
            # Either the daemon has no server, or another program queried at the same time and received this answer.
            self.percentage()
            answer = self.ask("get_server_list")
        pids = _pids(answer)
        if len(pids) > _MOST_SERVERS:
            raise self._odd("it names %d servers" % len(pids))
        return pids

    def clients(self, server: int) -> tuple[int, ...]:
        """Return the PIDs of a server's clients.

        Returns an empty tuple if the server has ended.
        """
        pids = _pids(self.ask("get_client_list %d" % server))
        self._clients += len(pids)
        if self._clients > _MOST_CLIENTS:
            raise self._odd("it names %d clients or more" % self._clients)
        return pids

    def percentage(self, server: int | None = None) -> float | None:
        """Return the maximum thread percentage of a server's clients.

        If `server` is None, returns the percentage for new servers. Returns None while the server starts or ends,
        because it then reports no percentage.
        """
        of = "get_default_active_thread_percentage" if server is None else "get_active_thread_percentage %d" % server
        return _number(self.ask(of, answers=server is None))

    def set_percentage(self, percentage: int, server: int | None = None) -> float | None:
        """Set the maximum thread percentage, and return the answer, or None.

        Clients that are already connected keep their percentage.
        """
        of = "set_default_active_thread_percentage" if server is None else "set_active_thread_percentage %d" % server
        return _number(self.ask("%s %d" % (of, percentage)))

    def limit(self, index: int, server: int | None = None) -> int | None:
        """Return a client's memory limit on a device, in bytes.

        `index` is the device's index in the daemon. The daemon rounds the limit as `rounded_limit` does. Returns None
        if the daemon reports no limit.
        """
        of = "get_default_device_pinned_mem_limit" if server is None else "get_device_pinned_mem_limit %d" % server
        match = _SIZE.search(self.ask("%s %d" % (of, index)))
        return int(match.group(1)) * _MIB * (1024 if match.group(2) == "G" else 1) if match else None

    def set_limit(self, index: int, limit_bytes: int, server: int | None = None) -> None:
        self.ask(limit_command(index, limit_bytes, server))


@contextlib.contextmanager
def _turn(directory: str | None) -> Iterator[None]:
    """Run the block while no other program of this collection queries the daemons.

    If the lock is unavailable, the block runs without it.
    """
    descriptor = None
    if directory is not None and directory.startswith(_OWN):
        with contextlib.suppress(OSError):
            descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + _TURN_SECONDS
        while descriptor is not None and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_TURN_POLL_SECONDS)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def limit_command(index: int, limit_bytes: int, server: int | None = None) -> str:
    """Return the command that sets a memory limit.

    The limit has the unit M (MiB). The daemon only accepts the units M and G, and takes a number with another unit as a
    number without a unit.
    """
    of = "set_default_device_pinned_mem_limit" if server is None else "set_device_pinned_mem_limit %d" % server
    return "%s %d %dM" % (of, index, limit_bytes // _MIB)


def rounded_limit(limit_bytes: int | None) -> int | None:
    """Return a limit as the daemon reports it.

    The daemon rounds limits from 1 GiB on down to whole GiB.
    """
    if limit_bytes is None:
        return None
    unit = _MIB if limit_bytes < 1024 * _MIB else 1024 * _MIB
    return limit_bytes // unit * unit


def _pids(text: str) -> tuple[int, ...]:
    # A line that is a number is a PID. For example, "Server 5 not found" has no PID.
    matches = (_PID.fullmatch(line) for line in text.splitlines())
    return tuple(dict.fromkeys(int(match.group(1)) for match in matches if match))


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def daemon_of(gpu_uuid: str) -> str:
    """Return the name of the MPS daemon for a GPU's tenants with the provider mps."""
    return "vgpu-%s" % gpu_uuid.replace("GPU-", "", 1)


def pipe_directory(name: str) -> str:
    """Return the pipe directory of a daemon of this collection."""
    return "/%s/%s" % (PIPES, name)


def client_mounts(name: str) -> list[dict[str, Any]]:
    """Return the CDI mounts for a client's container."""
    # The mounts are writable, because a client locks a file in them. The other options are those with which engines
    # mount /dev/shm, because the second mount replaces it.
    return [
        {"hostPath": path, "containerPath": path, "options": ["bind", "rw", "nosuid", "nodev", "noexec"]}
        for path in (pipe_directory(name), "/dev/shm")
    ]
