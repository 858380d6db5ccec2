# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a connection should be: a systemd unit's or a container's, told from cgroups as the kernel has them."""

from __future__ import annotations

from pathlib import Path

from . import peer, systemd
from .command import ask, run_tool
from .holders.cgroup import Origin, parse_cgroup
from .peer import Owner, PeerError, Process

_ANSWER_SECONDS = 30
#: The units of Docker by packages and by its snap.
_DOCKER = (Origin("docker.service"), Origin("snap.docker.dockerd.service"))


class UnitOwner(Owner):
    """The processes of a unit, and of a container that its unit starts, if one is given by its engine and its name.

    A process of a quadlet's container is below the unit's own cgroup, as Podman's generator asks for --cgroups=split. One of a
    container of Docker is in a cgroup that Docker makes: the engine tells the container's id, and the kernel the process's.
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
    """The processes of a unit that run as its main process's user: of a unit for several users, not what the others run."""

    def __init__(self, unit: str) -> None:
        super().__init__(unit)
        main = _main_pid(unit)
        if not main.isdigit() or main == "0":
            raise PeerError("%s has no main process" % unit)
        with peer.looking_at(int(main)) as process:
            # It may have ended since, and its pid be another's.
            self._uids = process.uids if process and super().has(process) else set()
        if not self._uids:
            raise PeerError("the main process of %s has ended" % unit)
        self.name = "%s with the uid %s of its main process" % (unit, " ".join(map(str, sorted(self._uids))))

    @property
    def uids(self) -> frozenset[int]:
        """All user ids of its main process."""
        return frozenset(self._uids)

    def has(self, process: Process) -> bool:
        return super().has(process) and process.uids == self._uids


class ContainerOwner(Owner):
    """The processes of a container of root's Docker or Podman, whichever their users are: they are all in it."""

    def __init__(self, engine: str, container: str) -> None:
        self.name = "%s container %s" % (engine, container)
        number = container_id(engine, container)
        if not number:
            raise PeerError("%s does not run" % self.name)
        self._origin = Origin("%s container %s" % (engine, number[:12]), number)
        self._inside = own_container()

    def has(self, process: Process) -> bool:
        return parse_cgroup(process.cgroup, self._inside) == self._origin

    def forwarder(self, process: Process) -> bool:
        """docker-proxy of root's engine: by uid, program and the unit in which the engine runs it."""
        is_root = process.uids == {0} and Path(process.executable).name == "docker-proxy"
        return is_root and parse_cgroup(process.cgroup, self._inside) in _DOCKER


def container_id(engine: str, container: str) -> str:
    """The full id by root's engine; empty where there is no such container."""
    number = _answer([engine, "container", "inspect", "--format", "{{.Id}}", "--", container])
    return number if len(number) == 64 and number.isalnum() else ""


def own_container() -> str | None:
    """Return the container that this process runs in: it is the host, and says nothing of a service in it."""
    try:
        return parse_cgroup(Path(peer.PROC, "self/cgroup").read_text()).container_id
    except OSError:
        return None


def _answer(command: list[str]) -> str:
    """What a tool of the host prints; empty where it fails."""
    try:
        text, _problem = ask(run_tool, command, timeout_seconds=_ANSWER_SECONDS)
    except OSError:
        return ""
    return (text or "").strip()


def _main_pid(unit: str) -> str:
    """The main process of a unit; empty where systemd does not say."""
    try:
        (said,) = systemd.show(run_tool, [unit], ["MainPID"], timeout_seconds=_ANSWER_SECONDS)
    except (OSError, systemd.NoAnswerError):
        return ""
    return said["MainPID"]
