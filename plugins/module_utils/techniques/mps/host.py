# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the MPS control daemons of a host: their files, their units, their answers.

`files` and `unit` have the files, `mps_control` what is said to a daemon. docs/mps.md tells users.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterable, Sequence

from ... import durable, systemd
from ...command import ask
from ...errors import ApplyError, Problem
from ...model import MPS_CONTROL
from ...mps_control import PIPES, Control, MpsError, pipe_directory, rounded_limit
from ...printable import printable
from . import files as mps_files
from . import unit as mps_unit
from .model import SETTINGS, MpsDaemon, MpsSeen, unit_of
from .observe import LOOK_SECONDS, Daemons

if TYPE_CHECKING:
    from ...disturbance import Disturbance
    from ...model import Holder
    from .steps import MpsPlan

#: Where the unit looks for it, too.
_PROGRAM = "usr/bin/" + MPS_CONTROL
#: systemd's own time for a stop and a start, and some for itself.
_SYSTEMCTL_SECONDS = mps_unit.STOP_SECONDS + mps_unit.START_SECONDS + 30
#: A server that has just been started, or is about to end, does not answer.
_SERVER_SECONDS = 10
_JOURNAL_LINES, _JOURNAL_LETTERS = 6, 300
#: What the daemon writes of each command that it is asked.
_CHATTER = ("Accepting connection", "NEW UI", "UI closed", "Cmd:")


def adjustable(seen: MpsSeen, wanted: MpsDaemon, devices: Sequence[str]) -> bool:
    """Whether `adjust` can make the daemon what is wanted. Where it cannot, `start` does, and ends its clients.

    A daemon takes its devices when it starts, and the protocol has no word that takes a memory limit away.
    """
    return (
        seen.running
        and seen.problem is None
        and seen.daemon.name == wanted.name
        and seen.devices == tuple(devices)
        and (wanted.pinned_memory_limit_bytes is not None or not any(_limits_of(seen)))
    )


def _limits_of(seen: MpsSeen) -> tuple[int | None, ...]:
    """What its files say, and what it says."""
    return (seen.daemon.pinned_memory_limit_bytes, *seen.pinned_memory_limits_bytes)


class MpsHost(Daemons):
    """The control daemons of this host, to look at and to change.

    Who calls what changes something holds the lock of the state directory.
    """

    # --- looking ----------------------------------------------------------------------------------------------------

    def server_deaths(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many servers of each daemon have died since the first look after the boot, where that is counted."""
        from .server_deaths import count

        return count(self._root, self._run, names)

    def available(self) -> Problem | None:
        """What is missing for a daemon to run here; None where nothing is."""
        if not (self._root / _PROGRAM).exists():
            return Problem(
                "/" + _PROGRAM,
                "it is not installed, and MPS cannot be had without it",
                "It comes with the driver: nvidia-cuda-mps on Debian, nvidia-compute-utils-BRANCH on Ubuntu, "
                "nvidia-driver-cuda (or xorg-x11-drv-nvidia-cuda) on RHEL and its kin, NVIDIA's .run file anywhere.",
            )
        if not systemd.booted(self._root):
            return Problem(
                "this host", "systemd is not its init system, and runs no MPS daemon", "Use a host with systemd."
            )
        return None

    def _outdated(self, daemon: MpsDaemon, devices: Sequence[str], reload_needed: bool) -> tuple[str, ...]:
        """Return the files that are missing, or that this release would write otherwise."""
        files = {**mps_files.files(daemon, devices), **self._shared()}
        found = {*durable.differing(self._root, files), *([mps_unit.UNIT_PATH] if reload_needed else [])}
        return tuple(sorted(found))

    def reloads(self, part: MpsPlan) -> bool:
        """Return whether the part changes unit files, after which systemd reloads its units."""
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
        # The template goes with the last daemon.
        forgotten = {step.name for step in part.stops if step.forget}
        stay = {daemon.name for daemon, _devices in self._specs()} - forgotten
        return bool(forgotten) and not stay and not changes and (self._root / mps_unit.UNIT_PATH).exists()

    def reload_disturbs(self, part: MpsPlan, holders: Iterable[Holder]) -> list[Disturbance]:
        """Return the containers that would lose their GPUs because the part has systemd reload its units."""
        if not part.steps or not self.reloads(part):
            return []
        from ... import systemd_reload

        return systemd_reload.look(self._root, holders)

    # --- changing ---------------------------------------------------------------------------------------------------

    def start(self, daemon: MpsDaemon, devices: Sequence[str]) -> None:
        """Write the daemon's files and start it, or restart it; clients of one that ran are ended.

        Comes back when it answers and has its limits. While the host still starts, systemd is only asked to start it: it
        comes after gpu-layout.service, which is what calls this then. Raises ApplyError.
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
        """Write the daemon's files, and give it and its servers the new limits. Clients that are connected keep theirs.

        Only where `adjustable` says so. Raises ApplyError where the daemon does not take them. A server that does not is left
        as it is, for only ending its clients would change that, and every server to come has the new ones: where it hangs,
        `observe` tells that it is silent; where it answers later with the limit of before, the next plan sees that.
        """
        written = self._write(daemon, devices)
        # The running daemon has its sockets in the directory, which a mount would hide.
        self._limit_pipes(daemon.name, written, in_use=True)
        control = self._control(daemon.name)
        limit = daemon.pinned_memory_limit_bytes
        try:
            control.set_percentage(daemon.active_thread_percentage)
            for index in range(len(devices) if limit is not None else 0):
                control.set_limit(index, limit or 0)
            # All servers together: as many as one likes may be named, and none of them answer.
            deadline = time.monotonic() + _SERVER_SECONDS
            for server in control.servers():
                self._adjust_server(control, server, daemon, deadline)
        except MpsError as error:
            raise self._failed(daemon.name, "its limits cannot be changed: %s" % error) from error
        self._verify(daemon, devices)

    def stop(self, name: str) -> None:
        """Stop the daemon, which ends its clients, and wait for it. Its files stay. Raises ApplyError.

        Also one that does not run, for systemd may be about to start it, and one that runs while its unit file is gone.
        """
        unit = unit_of(name)
        state = self._states([name])[0]
        if state["LoadState"] != "not-found" or state["ActiveState"] not in ("inactive", "failed"):
            self._systemctl(name, "it cannot be stopped", "stop", "--", unit)

    def forget(self, name: str) -> None:
        """Take away all that there is of a stopped daemon, and with the last one what all share. Raises ApplyError."""
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
            # Not where something of others is in it.
            with contextlib.suppress(OSError):
                (self._root / folder).rmdir()
        if had_unit:
            with contextlib.suppress(FileNotFoundError):
                ask(self._run, ["systemctl", "daemon-reload"])

    # --- parts of it ------------------------------------------------------------------------------------------------

    def _shared(self) -> dict[str, str]:
        return mps_unit.shared_files(selinux=(self._root / "sys/fs/selinux/enforce").exists())

    def _limit_pipes(self, name: str, written: Sequence[str], in_use: bool) -> None:
        """Have the pipe directory's file system mounted, with the bounds of its unit. Raises ApplyError."""
        folder = mps_files.limited_folder(name)
        folder.mount(self._root, self._mount_systemctl(name), folder.unit_path in written, in_use)

    def _clear_pipes(self, name: str) -> None:
        """Stop the daemon and take its pipe directory away, so that one of limited size can be mounted in its place.

        Containers that have the old one keep it until they end: it is renamed first, for they can write there meanwhile.
        """
        if self._states([name])[0]["ActiveState"] not in ("inactive", "failed"):
            self.stop(name)
        path = self._below(pipe_directory(name))
        old = path.with_name(".%s.old" % name)
        try:
            _remove(old)
            # The boot unit may not write to /run beside it.
            if os.path.lexists(str(path)):
                path.rename(old)
                _remove(old)
        except OSError as error:
            cure = "End the containers that have it mounted, remove it as root, and run again."
            raise ApplyError(str(error.filename or old), "it cannot be removed: %s" % error, cure) from error

    def _mount_systemctl(self, name: str) -> Callable[[Sequence[str]], None]:
        def systemctl(arguments: Sequence[str]) -> None:
            self._systemctl(name, "its pipe directory cannot be mounted or unmounted", *arguments)

        return systemctl

    def _write(self, daemon: MpsDaemon, devices: Sequence[str]) -> list[str]:
        """Write all that is missing or differs, and return its paths below the root.

        The spec comes first, so that all that follows is known to be this daemon's.
        """
        files = {**mps_files.files(daemon, devices), **self._shared()}
        written = durable.write_differing(self._root, files)
        if mps_unit.UNIT_PATH in written or self._states([daemon.name])[0]["NeedDaemonReload"] == "yes":
            self._systemctl(daemon.name, "systemd cannot read its unit", "daemon-reload")
        return written

    def _systemctl(self, name: str, problem: str, *arguments: str) -> None:
        try:
            systemd.tell(self._run, ["systemctl", *arguments], timeout_seconds=_SYSTEMCTL_SECONDS)
        except (systemd.NoAnswerError, FileNotFoundError) as error:
            raise self._failed(name, "%s: %s" % (problem, error)) from error

    def _failed(self, name: str, problem: str) -> ApplyError:
        """With what the unit said last."""
        unit = unit_of(name)
        command = ["journalctl", "--unit", unit, "--no-pager", "--output=cat", "--lines=%d" % (10 * _JOURNAL_LINES)]
        said = None
        with contextlib.suppress(FileNotFoundError):
            said, _problem = ask(self._run, command)
        lines = [line for line in (said or "").splitlines() if line and not any(word in line for word in _CHATTER)]
        if lines:
            last = " / ".join(line[:_JOURNAL_LETTERS] for line in lines[-_JOURNAL_LINES:])
            problem += ". The last of its journal: %s" % printable(last)
        return ApplyError(
            'the MPS daemon "%s"' % name, problem, "See journalctl --unit %s, mend it and run again." % unit
        )

    def _adjust_server(self, control: Control, server: int, daemon: MpsDaemon, deadline: float) -> None:
        while control.percentage(server) is None:
            if server not in control.servers() or time.monotonic() > deadline:
                return
            time.sleep(LOOK_SECONDS)
        devices = len(daemon.places)
        for index in range(devices if daemon.pinned_memory_limit_bytes is not None else 0):
            control.set_limit(index, daemon.pinned_memory_limit_bytes or 0, server)
        # Last, for it is what `observe` asks a server for: one that has it has the others.
        control.set_percentage(daemon.active_thread_percentage, server)

    def _verify(self, daemon: MpsDaemon, devices: Sequence[str]) -> None:
        """Read the default limits back; servers' own are told for those only that serve a client."""
        control = self._control(daemon.name)
        try:
            percentage = control.percentage()
            limits = [control.limit(index) for index in range(len(devices))]
        except MpsError as error:
            raise self._failed(daemon.name, "it does not answer: %s" % error) from error
        if percentage != daemon.active_thread_percentage or set(limits) != {
            rounded_limit(daemon.pinned_memory_limit_bytes)
        }:
            problem = "it did not take its limits: it says %s percent and %s bytes for its devices" % (
                percentage,
                limits,
            )
            raise self._failed(daemon.name, problem)


def _remove(path: Path) -> None:
    """A directory with all that is in it, or whatever is there in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    elif path.exists() or path.is_symlink():
        path.unlink()


def _nameless(name: str) -> MpsDaemon:
    """A daemon of that name of which only the paths of its files are wanted."""
    return MpsDaemon(name, (), 1, 100)
