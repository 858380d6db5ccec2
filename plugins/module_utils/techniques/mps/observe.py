# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the MPS control daemons of a host and report them as module results.

This module must stay small, because modules that only read send it to hosts. host.py changes daemons and compares their
files.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from ... import durable, systemd
from ...errors import ApplyError, FleetError
from ...holders.mps import is_server, serves, shares_gpu
from ...holders.mps_control import Control, MpsError, pipe_directory, rounded_limit
from ...holders.processes import arguments_of, command_of, owner_of, started_ticks_of
from ...model import to_data
from ...processes.command import Run, run_tool
from ...processes.file_worker import one_look
from .model import SCHEMA, MpsClient, MpsDaemon, MpsSeen, from_data, spec_files, unit_of

_PROPERTIES = ("Id", "LoadState", "ActiveState", "Result", "MainPID", "Job", "NeedDaemonReload")
#: Seconds to wait while systemd starts or restarts a daemon. A start takes about a second.
_COMING_SECONDS = 10
LOOK_SECONDS = 0.2

#: The only entry in the result if the daemons cannot be read. `report` adds its `problem`.
_NO_DAEMON = {
    **dict.fromkeys(("name", "clients", "active_thread_percentage", "running", "pid", "pipe_directory_limited")),
    **{name: [] for name in ("places", "devices", "pinned_memory_limits_bytes", "client_processes")},
    **{name: [] for name in ("server_pids", "silent_server_pids")},
}


class Daemons:
    """Read the control daemons of this host.

    `root` is the host's root folder. `run` runs command-line tools.
    """

    def __init__(self, root: str = "/", run: Run = run_tool) -> None:
        self._root, self._run = Path(root), run

    def observe(self) -> tuple[MpsSeen, ...]:
        """Return each daemon with files of this collection, in the order of names.

        A daemon that is down has a `problem`.

        Waits up to _COMING_SECONDS for daemons that systemd is starting. While the host boots, does not wait, because
        the daemons start after this process. They then have no `problem`. Raises ApplyError if a file cannot be read or
        systemd does not answer.
        """
        try:
            specs = list(self._specs())
            if not specs:
                return ()
            states, boots = self._settled([daemon.name for daemon, _devices in specs])
        except ApplyError as error:
            # Reading has changed nothing, so the outcome is "old".
            error.outcome = "old"
            raise
        # All daemons share one unit file, so if one unit needs a reload, all do.
        reload_needed = any(state["NeedDaemonReload"] == "yes" for state in states)
        # Use one child process for all reads of clients' command lines, because a daemon may have many clients.
        with one_look():
            return tuple(
                self._look(daemon, devices, state, self._outdated(daemon, devices, reload_needed), boots)
                for (daemon, devices), state in zip(specs, states)
            )

    def _outdated(self, daemon: MpsDaemon, devices: Sequence[str], reload_needed: bool) -> tuple[str, ...]:
        """Return an empty tuple, because only the subclass in host.py compares files."""
        return ()

    def _settled(self, names: Sequence[str]) -> tuple[list[dict[str, str]], bool]:
        """Return (state of each daemon's unit, whether the host boots).

        Waits for pending starts to finish. While the host boots, does not wait, because the daemons start after this
        process.
        """
        deadline = time.monotonic() + _COMING_SECONDS
        while True:
            states = self._states(names)
            if not any(map(_comes, states)):
                return states, False
            if self._boots():
                return states, True
            if time.monotonic() > deadline:
                return states, False
            time.sleep(LOOK_SECONDS)

    def _specs(self) -> Iterator[tuple[MpsDaemon, tuple[str, ...]]]:
        for path in sorted(spec_files(self._root)):
            data = durable.read(path, SCHEMA)
            if data is not None:
                try:
                    daemon, devices = from_data(data)
                except (KeyError, TypeError):
                    raise durable.damaged(path) from None
                if daemon.name != path.stem:
                    raise durable.damaged(path, 'describes the MPS daemon "%s"' % daemon.name)
                yield daemon, devices

    def _look(
        self, daemon: MpsDaemon, devices: tuple[str, ...], state: dict[str, str], outdated: tuple[str, ...], boots: bool
    ) -> MpsSeen:
        unit = unit_of(daemon.name)
        limited = os.path.ismount(str(self._below(pipe_directory(daemon.name))))
        if state["ActiveState"] != "active":
            problem: str | None = "it is not running (%s is %s, result %s); see journalctl --unit %s"
            problem %= (unit, state["ActiveState"], state["Result"], unit)
            if boots and _comes(state):
                problem = None
            return MpsSeen(daemon, devices, False, outdated=outdated, problem=problem)
        pid = int(state["MainPID"]) or None
        control = self._control(daemon.name)
        try:
            servers = control.servers()
            clients = tuple(self._client(*pids, pid) for pids in _pairs(control, servers))
            percentage, own = control.percentage(), daemon.active_thread_percentage
            told_by = {server: _percentage_of(control, server) for server in servers}
            limits = tuple(control.limit(index) for index in range(len(devices)))
        except MpsError as error:
            return MpsSeen(
                *(daemon, devices, True, pid), outdated=outdated, problem=str(error), pipe_directory_limited=limited
            )
        silent = tuple(server for server, each in told_by.items() if each is None)
        # After an interrupted change, a server may still have its previous limit. Limits are whole numbers, so a
        # difference of less than 1 is the server's rounding.
        apart = [each for each in told_by.values() if each is not None and abs(each - own) >= 1]
        if apart and percentage == own:
            percentage = apart[0]
        # The daemon only reports the rounded limit. Use the exact limit from the file if it rounds to the same value.
        asked = daemon.pinned_memory_limit_bytes
        limits = tuple(asked if limit == rounded_limit(asked) else limit for limit in limits)
        problem = None
        if pid is not None and self._replaced(pid):
            problem = "its program was replaced since it started, so it refuses clients of the new release"
        proc = str(self._root / "proc")
        unattested = tuple(server for server in servers if not is_server(server, pid, proc))
        return MpsSeen(
            *(daemon, devices, True, pid, servers, clients, percentage, limits, outdated, problem, silent),
            pipe_directory_limited=limited,
            unattested_server_pids=unattested,
        )

    def _client(self, pid: int, server: int, daemon: int | None) -> MpsClient:
        """Return a client with its details from /proc.

        If the client has ended, command and user are None. `server` and `daemon` are PIDs.
        """
        proc = str(self._root / "proc")
        words, uid = arguments_of(pid, proc), owner_of(pid, proc)
        user = None if uid is None else str(uid)
        with contextlib.suppress(KeyError):
            user = None if uid is None else pwd.getpwuid(uid).pw_name
        # A client whose server has ended is not attested.
        attested = serves(server, pid, daemon, proc) and shares_gpu(server, pid, proc)
        command = command_of(words) if words else None
        return MpsClient(pid, server, command, user, attested, started_ticks_of(pid, proc))

    def _replaced(self, pid: int) -> bool:
        """Return whether the daemon's program was replaced on disk, as by an upgrade."""
        try:
            return os.readlink(str(self._root / "proc" / str(pid) / "exe")).endswith(" (deleted)")
        except OSError:
            return False

    def _below(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _control(self, name: str) -> Control:
        return Control(self._run, str(self._below(pipe_directory(name))))

    def _states(self, names: Sequence[str]) -> list[dict[str, str]]:
        with self._answers():
            return systemd.show(self._run, [unit_of(name) for name in names], _PROPERTIES)

    def _boots(self) -> bool:
        with self._answers():
            return systemd.awaits_boot_unit(self._run)

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except (systemd.NoAnswerError, FileNotFoundError) as error:
            raise ApplyError("systemd", str(error), "See `systemctl status`.") from error


def look(private: bool) -> tuple[MpsSeen, ...]:
    """Return the daemons of this host. Raises ApplyError.

    Returns an empty tuple if only this process simulates the GPUs.
    """
    return () if private else Daemons().observe()


def report(private: bool) -> list[dict[str, Any]]:
    """Return the collection's MPS daemons on this host as module results.

    Returns an empty list if only this process simulates the GPUs. If the daemons cannot be read, raises no error, and
    returns one entry that only has a `problem`.
    """
    try:
        observed = look(private)
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


def _pairs(control: Control, servers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (PID of the client, PID of its server) for each client."""
    for server in servers:
        for client in control.clients(server):
            # Check the time for each client, because the caller reads each process before it continues.
            control.check_time()
            yield client, server


def _percentage_of(control: Control, server: int) -> float | None:
    """Return a server's percentage, or None if it does not answer.

    Raises no error, so that the caller can query other servers if one hangs.
    """
    try:
        return control.percentage(server)
    except MpsError:
        return None


def _comes(state: Mapping[str, str]) -> bool:
    """Return whether systemd is starting the unit, or will retry a failed start."""
    return state["ActiveState"] == "activating" or (state["ActiveState"] != "active" and bool(state["Job"]))
