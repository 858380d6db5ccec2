# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identify the owner of a connection: a systemd unit or a container.

A process belongs to an owner if its cgroup does.
"""

from __future__ import annotations

from pathlib import Path

from .. import systemd
from ..processes import peer
from ..processes.command import ask, run_tool
from ..processes.peer import Owner, PeerError, Process
from .cgroup import Origin, parse_cgroup

_ANSWER_SECONDS = 30
#: Docker's units, from distribution packages and from the snap.
_DOCKER = (Origin("docker.service"), Origin("snap.docker.dockerd.service"))


class UnitOwner(Owner):
    """The processes of a unit, and of the container that the unit starts.

    `engine` and `container` name the container. A quadlet's container has a cgroup below the unit's cgroup, because
    Podman's generator sets --cgroups=split. Docker creates its containers' cgroups elsewhere. So the engine is asked
    for the container's id, and the id is compared with the process's cgroup.
    """

    def __init__(self, unit: str, engine: str = "", container: str = "") -> None:
        self.name = unit
        self._origins = [Origin(unit)]
        self._inside = own_container()
        number = container_id(engine, container) if engine else ""
        if number:
            self._origins.append(Origin("%s container %s" % (engine, number[:12]), number))

    def has(self, process: Process) -> bool:
        return parse_cgroup(process.cgroup, self._inside) in self._origins


class UserOfUnitOwner(UnitOwner):
    """The processes in a unit that run as the same user as the unit's main process.

    The unit's processes that run as other users are excluded.
    """

    def __init__(self, unit: str) -> None:
        super().__init__(unit)
        main = _main_pid(unit)
        if not main.isdigit() or main == "0":
            raise PeerError("%s has no main process" % unit)
        with peer.looking_at(int(main)) as process:
            # The main process may have ended, and its PID may have been reused.
            self._uids = process.uids if process and super().has(process) else set()
        if not self._uids:
            raise PeerError("the main process of %s has ended" % unit)
        self.name = "%s with the uid %s of its main process" % (unit, " ".join(map(str, sorted(self._uids))))

    @property
    def uids(self) -> frozenset[int]:
        """Return all user ids of the main process."""
        return frozenset(self._uids)

    def has(self, process: Process) -> bool:
        return super().has(process) and process.uids == self._uids


class ContainerOwner(Owner):
    """The processes of a container in root's Docker or Podman, with any user id."""

    def __init__(self, engine: str, container: str) -> None:
        self.name = "%s container %s" % (engine, container)
        number = container_id(engine, container)
        if not number:
            raise PeerError("%s is not running" % self.name)
        self._origin = Origin("%s container %s" % (engine, number[:12]), number)
        self._inside = own_container()

    def has(self, process: Process) -> bool:
        return parse_cgroup(process.cgroup, self._inside) == self._origin

    def forwarder(self, process: Process) -> bool:
        """Return whether the process is a docker-proxy of root's Docker.

        Checks the process's user ids, executed file and unit.
        """
        is_root = process.uids == {0} and Path(process.executable).name == "docker-proxy"
        return is_root and parse_cgroup(process.cgroup, self._inside) in _DOCKER


def container_id(engine: str, container: str) -> str:
    """Return the full id of a container, or "" if root's engine does not have it."""
    number = _answer([engine, "container", "inspect", "--format", "{{.Id}}", "--", container])
    return number if len(number) == 64 and number.isalnum() else ""


def own_container() -> str | None:
    """Return the id of the container in which this process runs, or None.

    Other processes in this container count as processes of the host.
    """
    try:
        return parse_cgroup(Path(peer.PROC, "self/cgroup").read_text()).container_id
    except OSError:
        return None


def _answer(command: list[str]) -> str:
    """Return the output of a tool, or "" if it fails."""
    try:
        text, _problem = ask(run_tool, command, timeout_seconds=_ANSWER_SECONDS)
    except OSError:
        return ""
    return (text or "").strip()


def _main_pid(unit: str) -> str:
    """Return the PID of a unit's main process as text.

    Returns "" if systemd does not answer.
    """
    try:
        (values,) = systemd.show(run_tool, [unit], ["MainPID"], timeout_seconds=_ANSWER_SECONDS)
    except (OSError, systemd.NoAnswerError):
        return ""
    return values["MainPID"]
