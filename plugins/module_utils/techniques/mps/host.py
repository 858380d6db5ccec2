# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the MPS control daemons of a host: files, units and limits.

`files` and `unit` generate the files. `mps_control` implements the daemon's protocol. docs/mps.md describes MPS for
users.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterable, Sequence

from ... import durable, systemd, systemd_reload
from ...errors import ApplyError, Problem
from ...holders.mps_control import PIPES, Control, MpsError, pipe_directory, rounded_limit
from ...model import MPS_CONTROL
from ...printable import printable
from ...processes.command import ask
from . import files as mps_files
from . import unit as mps_unit
from .model import SETTINGS, MpsDaemon, MpsSeen, unit_of
from .observe import LOOK_SECONDS, Daemons

if TYPE_CHECKING:
    from ...model import Holder
    from ...plan.disturbance import Disturbance
    from .steps import MpsPlan

#: The daemon's unit has the same path.
_PROGRAM = "usr/bin/" + MPS_CONTROL
#: The unit's time limits for stopping and starting, plus a margin.
_SYSTEMCTL_SECONDS = mps_unit.STOP_SECONDS + mps_unit.START_SECONDS + 30
#: Timeout for servers that do not answer because they are starting or ending.
_SERVER_SECONDS = 10
_JOURNAL_LINES, _JOURNAL_LETTERS = 6, 300
#: Lines that the daemon logs for every command.
_CHATTER = ("Accepting connection", "NEW UI", "UI closed", "Cmd:")


def adjustable(seen: MpsSeen, wanted: MpsDaemon, devices: Sequence[str]) -> bool:
    """Return whether `adjust` can change the daemon without a restart.

    A restart ends the daemon's clients. A restart is needed for other devices, because a daemon only reads its devices
    when it starts. It is also needed to remove a memory limit, for which the protocol has no command.
    """
    return (
        seen.running
        and seen.problem is None
        and seen.daemon.name == wanted.name
        and seen.devices == tuple(devices)
        and (wanted.pinned_memory_limit_bytes is not None or not any(_limits_of(seen)))
    )


def _limits_of(seen: MpsSeen) -> tuple[int | None, ...]:
    """Return the memory limits from the daemon's files and from the daemon itself."""
    return (seen.daemon.pinned_memory_limit_bytes, *seen.pinned_memory_limits_bytes)


class MpsHost(Daemons):
    """Read and change the control daemons of this host.

    The caller must hold the lock of the state directory for every change.
    """

    # --- reading ----------------------------------------------------------------------------------------------------

    def server_deaths(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of each daemon's dead servers.

        Counting starts with the first call after a boot. Leaves out daemons whose servers cannot be counted.
        """
        from .server_deaths import count

        return count(self._root, self._run, names)

    def available(self) -> Problem | None:
        """Return why daemons cannot run on this host, or None."""
        if not (self._root / _PROGRAM).exists():
            return Problem(
                "/" + _PROGRAM,
                "it is not installed, but MPS needs it",
                "It comes with the driver: nvidia-cuda-mps on Debian, nvidia-compute-utils-BRANCH on Ubuntu, "
                "nvidia-driver-cuda (or xorg-x11-drv-nvidia-cuda) on RHEL and derivatives, or NVIDIA's .run file.",
            )
        if not systemd.booted(self._root):
            return Problem(
                "this host", "systemd is not its init system, which MPS daemons need", "Use a host with systemd."
            )
        return None

    def _outdated(self, daemon: MpsDaemon, devices: Sequence[str], reload_needed: bool) -> tuple[str, ...]:
        """Return the files that are missing or differ from this release's version."""
        files = {**mps_files.files(daemon, devices), **self._shared()}
        found = {*durable.differing(self._root, files), *([mps_unit.UNIT_PATH] if reload_needed else [])}
        return tuple(sorted(found))

    def reloads(self, part: MpsPlan) -> bool:
        """Return whether the part changes unit files. systemd must then reload."""
        changes = [*part.adjusts, *part.starts]
        units = {}
        for step in changes:
            folder = mps_files.limited_folder(step.name)
            units[folder.unit_path] = folder.unit_text
        if changes:
            units[mps_unit.UNIT_PATH] = self._shared()[mps_unit.UNIT_PATH]
            if any(state["NeedDaemonReload"] == "yes" for state in self._states([step.name for step in changes])):
                return True
        if durable.differing(self._root, units):
            return True
        # The unit template is removed together with the last daemon.
        forgotten = {step.name for step in part.stops if step.forget}
        stay = {daemon.name for daemon, _devices in self._specs()} - forgotten
        return bool(forgotten) and not stay and not changes and (self._root / mps_unit.UNIT_PATH).exists()

    def reload_disturbs(self, part: MpsPlan, holders: Iterable[Holder]) -> list[Disturbance]:
        """Return the containers that would lose their GPUs in a systemd reload.

        Returns an empty list if the part needs no reload.
        """
        if not part.steps or not self.reloads(part):
            return []
        from ..detached import look

        return look(self._root, holders, self._run)

    # --- changing ---------------------------------------------------------------------------------------------------

    def start(self, daemon: MpsDaemon, devices: Sequence[str]) -> None:
        """Write the daemon's files and start or restart the daemon.

        A restart ends the daemon's clients. Returns when the daemon answers and has its limits. During a boot, returns
        earlier, because the daemon starts after gpu-layout.service, which is the caller. Raises ApplyError.
        """
        problem = mps_files.name_problem(daemon.name) or self.available()
        if problem:
            raise ApplyError(problem.where, problem.problem, problem.cure)
        written = self._write(daemon, devices)
        if not mps_files.limited_folder(daemon.name).is_mounted(self._root):
            self._clear_pipes(daemon.name)
        self._limit_pipes(daemon.name, written, in_use=False)
        unit = unit_of(daemon.name)
        systemd.reset_failed(self._run, [unit])
        if self._boots():
            self._systemctl(daemon.name, "it cannot be started", "--no-block", "restart", "--", unit)
            return
        self._systemctl(daemon.name, "it does not start", "restart", "--", unit)
        self._verify(daemon, devices)

    def adjust(self, daemon: MpsDaemon, devices: Sequence[str]) -> None:
        """Write the daemon's files, and set the new limits of the daemon and its servers.

        Call this only if `adjustable` allows the change. Connected clients keep their limits. Raises ApplyError if the
        daemon refuses.

        A server that does not answer keeps its limits, because only a restart could change them, which would end its
        clients. New servers get the new limits. `observe` lists a hanging server in `silent_server_pids`. If the server
        answers later with its previous limit, the next plan changes this limit.
        """
        written = self._write(daemon, devices)
        # Do not mount now, because a mount would hide the sockets of the running daemon.
        self._limit_pipes(daemon.name, written, in_use=True)
        control = self._control(daemon.name)
        limit = daemon.pinned_memory_limit_bytes
        try:
            control.set_percentage(daemon.active_thread_percentage)
            for index in range(len(devices) if limit is not None else 0):
                control.set_limit(index, limit or 0)
            # All servers share one deadline, because a forged answer may list many servers that never answer.
            deadline = time.monotonic() + _SERVER_SECONDS
            for server in control.servers():
                self._adjust_server(control, server, daemon, deadline)
        except MpsError as error:
            raise self._failed(daemon.name, "its limits cannot be changed: %s" % error) from error
        self._verify(daemon, devices)

    def stop(self, name: str) -> None:
        """Stop the daemon and wait until it has ended. Raises ApplyError.

        This ends the daemon's clients. Its files are kept. Also works if systemd is about to start the daemon, and if
        the unit file is missing.
        """
        unit = unit_of(name)
        state = self._states([name])[0]
        if state["LoadState"] != "not-found" or state["ActiveState"] not in ("inactive", "failed"):
            self._systemctl(name, "it cannot be stopped", "stop", "--", unit)

    def forget(self, name: str) -> None:
        """Remove the files of a stopped daemon. Raises ApplyError.

        The files that all daemons share are removed with the last daemon.
        """
        systemd.reset_failed(self._run, [unit_of(name)])
        mps_files.limited_folder(name).unmount(self._root, self._mount_systemctl(name))
        try:
            for directory in (pipe_directory(name), mps_files.log_directory(name)):
                _remove(self._below(directory))
            for path in reversed(list(mps_files.files(_nameless(name), ()))):
                durable.remove(self._root / path)
            if not list(self._specs()):
                self._forget_shared()
        except OSError as error:
            cure = "Remove it by hand, as root, and run again."
            raise ApplyError(str(error.filename or name), "it cannot be removed: %s" % error, cure) from error

    def _forget_shared(self) -> None:
        had_unit = (self._root / mps_unit.UNIT_PATH).exists()
        for path in self._shared():
            durable.remove(self._root / path)
        for folder in (SETTINGS, str(Path(SETTINGS).parent), PIPES, mps_unit.LOGS):
            # Keep the folder if it has other programs' files.
            with contextlib.suppress(OSError):
                (self._root / folder).rmdir()
        if had_unit:
            with contextlib.suppress(FileNotFoundError):
                ask(self._run, systemd_reload.RELOAD)

    # --- helpers ------------------------------------------------------------------------------------------------

    def _shared(self) -> dict[str, str]:
        return mps_unit.shared_files(selinux=(self._root / "sys/fs/selinux/enforce").exists())

    def _limit_pipes(self, name: str, written: Sequence[str], in_use: bool) -> None:
        """Mount the pipe directory's file system with its unit's limits.

        Raises ApplyError.
        """
        folder = mps_files.limited_folder(name)
        folder.mount(self._root, self._mount_systemctl(name), folder.unit_path in written, in_use)

    def _clear_pipes(self, name: str) -> None:
        """Stop the daemon and remove its pipe directory.

        A file system of limited size can then be mounted there. Containers keep the old directory until they end. The
        directory is renamed first, because containers may write to it while it is removed.
        """
        if self._states([name])[0]["ActiveState"] not in ("inactive", "failed"):
            self.stop(name)
        path = self._below(pipe_directory(name))
        old = path.with_name(".%s.old" % name)
        try:
            _remove(old)
            # Only rename an existing directory, because the boot unit may not change its parent in /run.
            if os.path.lexists(str(path)):
                path.rename(old)
                _remove(old)
        except OSError as error:
            cure = "End the containers that have this path mounted, remove it as root, and run again."
            raise ApplyError(str(error.filename or old), "it cannot be removed: %s" % error, cure) from error

    def _mount_systemctl(self, name: str) -> Callable[[Sequence[str]], None]:
        def systemctl(arguments: Sequence[str]) -> None:
            self._systemctl(name, "its pipe directory cannot be mounted or unmounted", *arguments)

        return systemctl

    def _write(self, daemon: MpsDaemon, devices: Sequence[str]) -> list[str]:
        """Write files that are missing or differ, and return their paths below the root.

        The spec is written first, because it identifies the other files as this daemon's.
        """
        files = {**mps_files.files(daemon, devices), **self._shared()}
        written = durable.write_differing(self._root, files)
        if mps_unit.UNIT_PATH in written or self._states([daemon.name])[0]["NeedDaemonReload"] == "yes":
            self._systemctl(daemon.name, "systemd cannot read its unit", *systemd_reload.RELOAD[1:])
        return written

    def _systemctl(self, name: str, problem: str, *arguments: str) -> None:
        try:
            systemd.tell(self._run, ["systemctl", *arguments], timeout_seconds=_SYSTEMCTL_SECONDS)
        except (systemd.NoAnswerError, FileNotFoundError) as error:
            raise self._failed(name, "%s: %s" % (problem, error)) from error

    def _failed(self, name: str, problem: str) -> ApplyError:
        """Return an error that includes the last lines of the unit's journal."""
        unit = unit_of(name)
        command = ["journalctl", "--unit", unit, "--no-pager", "--output=cat", "--lines=%d" % (10 * _JOURNAL_LINES)]
        text = None
        with contextlib.suppress(FileNotFoundError):
            text, _problem = ask(self._run, command)
        lines = [line for line in (text or "").splitlines() if line and not any(word in line for word in _CHATTER)]
        if lines:
            last = " / ".join(line[:_JOURNAL_LETTERS] for line in lines[-_JOURNAL_LINES:])
            problem += ". End of its journal: %s" % printable(last)
        return ApplyError(
            'the MPS daemon "%s"' % name, problem, "See `journalctl --unit %s`, fix the cause and run again." % unit
        )

    def _adjust_server(self, control: Control, server: int, daemon: MpsDaemon, deadline: float) -> None:
        while control.percentage(server) is None:
            if server not in control.servers() or time.monotonic() > deadline:
                return
            time.sleep(LOOK_SECONDS)
        devices = len(daemon.places)
        for index in range(devices if daemon.pinned_memory_limit_bytes is not None else 0):
            control.set_limit(index, daemon.pinned_memory_limit_bytes or 0, server)
        # Set the percentage last. `observe` only reads a server's percentage, and may then conclude that the server
        # also has the new memory limits.
        control.set_percentage(daemon.active_thread_percentage, server)

    def _verify(self, daemon: MpsDaemon, devices: Sequence[str]) -> None:
        """Read the default limits back and compare them.

        A server reports its own limits only while it serves a client.
        """
        control = self._control(daemon.name)
        try:
            percentage = control.percentage()
            limits = [control.limit(index) for index in range(len(devices))]
        except MpsError as error:
            raise self._failed(daemon.name, "it does not answer: %s" % error) from error
        if percentage != daemon.active_thread_percentage or set(limits) != {
            rounded_limit(daemon.pinned_memory_limit_bytes)
        }:
            problem = "the daemon did not accept its limits: it reports %s percent and %s bytes for its devices" % (
                percentage,
                limits,
            )
            raise self._failed(daemon.name, problem)


def _remove(path: Path) -> None:
    """Remove a directory with its contents, or a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    elif path.exists() or path.is_symlink():
        path.unlink()


def _nameless(name: str) -> MpsDaemon:
    """Return a daemon that only has a name, to compute the paths of its files."""
    return MpsDaemon(name, (), 1, 100)
