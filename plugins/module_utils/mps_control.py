# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said to an MPS control daemon and what it answers; and what its clients need to know.

The daemon is asked as its operator would: one command on the standard input of nvidia-cuda-mps-control, which finds the
daemon by CUDA_MPS_PIPE_DIRECTORY (https://docs.nvidia.com/deploy/mps/, chapter on nvidia-cuda-mps-control). The exit status
tells only whether the daemon was reached; a command that it refuses is told by what it prints, or by nothing. What is said
of its answers below was seen with those of Debian, 535.261.03 and 550.163.01.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from typing import Any, Iterator

from .command import TOOL_TIMEOUT_SECONDS, Run, ask
from .errors import FleetError
from .model import MPS_CONTROL
from .printable import printable

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
#: The pipe directories of all daemons of this collection, below the root of the host.
PIPES = "run/openfleet-mps"

_MIB = 2**20
_REFUSED = re.compile(r"privilege|^Unknown command|^Invalid", re.IGNORECASE | re.MULTILINE)
_SIZE = re.compile(r"(?<![0-9])([0-9]{1,9})([GM])")
_PID = re.compile(r"\s*([0-9]{1,10})\s*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?", re.ASCII)
#: What may be said to one daemon in one run takes so long: this happens under the host's lock.
_SECONDS = 6 * TOOL_TIMEOUT_SECONDS
#: Of a daemon, and of all its servers. A server takes at most 60 clients (https://docs.nvidia.com/deploy/mps/, "Limitations").
_MOST_SERVERS, _MOST_CLIENTS = 64, 1024
#: Characters of an answer, and of one in a message.
_MOST_LETTERS, _SHOWN = 1 << 16, 200
#: Of two tools that ask a daemon at the same moment, one may fail or print nothing (seen with 535.261.03). So readers of the
#: collection take turns on its own daemons, by a lock that only root can open; a sandboxed service may find it missing.
_LOCK, _OWN = "/run/openfleet-gpu-mps.lock", "/run/openfleet-mps/"
_TURN_SECONDS, _TURN_POLL_SECONDS = 5.0, 0.01
#: An operator's own tool takes no turns. What failed beside it, or had no answer, is asked again after so many seconds.
_AGAIN_SECONDS = (0.05, 0.2, 0.5)
_COLLISION = re.compile(r"exit status 1: (Cannot send command to MPS control daemon.*)?$", re.DOTALL)


class MpsError(FleetError):
    """A control daemon that does not answer, or refuses."""

    host_fault = True


class Control:
    """The control daemon behind a pipe directory; None is the directory that the tool has as its default.

    Root in a client's container can answer in its place. So answers are short, printable and few, and all of them together take a
    bounded time: until `deadline`, by time.monotonic().
    """

    def __init__(self, run: Run, directory: str | None, deadline: float | None = None) -> None:
        self._run, self._directory = run, directory
        self._variables = {PIPE_DIRECTORY: directory} if directory else {}
        self._deadline = time.monotonic() + _SECONDS if deadline is None else deadline
        self._clients = 0
        self.where = "the MPS control daemon of %s" % printable(directory or "the default pipe directory")

    def ask(self, command: str, answers: bool = False) -> str:
        """Return the answer to a command; `answers` tells that a daemon always has one to it.

        Raises MpsError where the daemon does not answer or refuses.
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
            raise MpsError(self.where, printable(problem), "See whether it runs, and as whom.")
        if len(text) > _MOST_LETTERS:
            raise self._odd('it answers "%s" with %d characters' % (command, len(text)))
        if _REFUSED.search(text):
            said = printable(" ".join(text[: 2 * _SHOWN].split()))[:_SHOWN]
            raise MpsError(self.where, 'it refuses "%s": %s' % (command, said), "Ask it as root.")
        return text.strip()

    def check_time(self) -> float:
        """Return the seconds that are left. Raises MpsError where there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise MpsError(self.where, "it takes too long to answer", "See whether its servers hang.")
        return left

    def _odd(self, problem: str) -> MpsError:
        return MpsError(self.where, problem, "No daemon does so: see which process answers at its pipes.")

    def servers(self) -> tuple[int, ...]:
        """The pids of its servers: one for each user at work, none before the first client."""
        found = self.ask("get_server_list")
        if not found:
            # None, or a tool that asked at the same moment: a command that always has an answer came through meanwhile.
            self.percentage()
            found = self.ask("get_server_list")
        pids = _pids(found)
        if len(pids) > _MOST_SERVERS:
            raise self._odd("it names %d servers" % len(pids))
        return pids

    def clients(self, server: int) -> tuple[int, ...]:
        """The pids of a server's clients; none where the server has ended since."""
        pids = _pids(self.ask("get_client_list %d" % server))
        self._clients += len(pids)
        if self._clients > _MOST_CLIENTS:
            raise self._odd("it names %d clients or more" % self._clients)
        return pids

    def percentage(self, server: int | None = None) -> float | None:
        """The share of the threads that a client gets at most, from a server or from servers to come; None: not told.

        A server that is just starting or ending tells nothing.
        """
        of = "get_default_active_thread_percentage" if server is None else "get_active_thread_percentage %d" % server
        return _number(self.ask(of, answers=server is None))

    def set_percentage(self, percentage: int, server: int | None = None) -> float | None:
        """What holds afterwards. Clients that are connected keep what they have; None as in `percentage`."""
        of = "set_default_active_thread_percentage" if server is None else "set_active_thread_percentage %d" % server
        return _number(self.ask("%s %d" % (of, percentage)))

    def limit(self, index: int, server: int | None = None) -> int | None:
        """Return the bytes that a client may have on the daemon's device of that index, as `rounded_limit` has them.

        None: no limit, or no answer.
        """
        of = "get_default_device_pinned_mem_limit" if server is None else "get_device_pinned_mem_limit %d" % server
        found = _SIZE.search(self.ask("%s %d" % (of, index)))
        return int(found.group(1)) * _MIB * (1024 if found.group(2) == "G" else 1) if found else None

    def set_limit(self, index: int, limit_bytes: int, server: int | None = None) -> None:
        self.ask(limit_command(index, limit_bytes, server))


@contextlib.contextmanager
def _turn(directory: str | None) -> Iterator[None]:
    """Run the body while no other reader of the collection asks one of its daemons, as far as that can be had."""
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
    """Sets a memory limit. In MiB: of all units but M and G the daemon takes the number and forgets the unit."""
    of = "set_default_device_pinned_mem_limit" if server is None else "set_device_pinned_mem_limit %d" % server
    return "%s %d %dM" % (of, index, limit_bytes // _MIB)


def rounded_limit(limit_bytes: int | None) -> int | None:
    """How a daemon tells a limit: from 1 GiB on in whole GiB, rounded down, though it keeps the limit itself."""
    if limit_bytes is None:
        return None
    unit = _MIB if limit_bytes < 1024 * _MIB else 1024 * _MIB
    return limit_bytes // unit * unit


def _pids(text: str) -> tuple[int, ...]:
    # A line of its own: "Server 5 not found" names no process.
    found = (_PID.fullmatch(line) for line in text.splitlines())
    return tuple(dict.fromkeys(int(match.group(1)) for match in found if match))


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def daemon_of(gpu_uuid: str) -> str:
    """Return the name of the MPS daemon through which tenants of a GPU work where the provider is mps."""
    return "vgpu-%s" % gpu_uuid.replace("GPU-", "", 1)


def pipe_directory(name: str) -> str:
    """Return the pipe directory of a daemon of this collection."""
    return "/%s/%s" % (PIPES, name)


def client_mounts(name: str) -> list[dict[str, Any]]:
    """Return what a container of a client of the daemon has mounted, as CDI says it."""
    # Writable, for a client locks a file there. Otherwise as engines mount their own /dev/shm, which this one takes the
    # place of.
    return [
        {"hostPath": path, "containerPath": path, "options": ["bind", "rw", "nosuid", "nodev", "noexec"]}
        for path in (pipe_directory(name), "/dev/shm")
    ]
