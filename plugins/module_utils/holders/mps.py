# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the MPS daemons that root runs here. A client between two kernels need not show in NVML; its server knows it.

Root in a client's container can answer in a daemon's place, for it has the pipe directory. So an answer is only a hint: that a
server is the daemon's, and that a client shares a GPU with it, is decided by what the kernel shows of both.

A user's own daemon is not asked: it answers whatever its user likes, and root ends processes by such answers. Its servers and
their clients have the GPU's node open, which the kernel says, and hold the GPU by that.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from ..accounts import account_of
from ..command import TOOL_TIMEOUT_SECONDS, Run
from ..file_worker import NoAnswerError, ask, task
from ..model import MPS_CONTROL, MPS_SERVER, Gpu, Holder
from ..mps_control import PIPE_DIRECTORY, Control, MpsError
from ..proc_files import read
from .devices import Devices, Place
from .model import MPS, short, unknown
from .open_files import device_of
from .processes import Processes, executable_of, in_container, owner_of
from .tasks import can_compare, tables

#: Where a daemon has its pipes that is told nothing (nvidia-cuda-mps-control(1)).
_DEFAULT = "/tmp/nvidia-mps"
#: For all daemons of a host together: a look happens under the host's lock.
_DEADLINE_SECONDS = 3 * TOOL_TIMEOUT_SECONDS
#: Minor numbers of the driver's first major number that are GPUs; the others are nvidiactl and nvidia-modeset. And the
#: capabilities below are of MIG as a whole, not of an instance (/proc/driver/nvidia-caps/mig-minors).
_GPU_MINORS, _FIRST_INSTANCE_CAPABILITY = range(254), 3


def mps(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], run: Run) -> list[Holder]:
    """Return a holder for each client of each MPS server, on what the server has open."""
    holders: list[Holder] = []
    deadline = time.monotonic() + _DEADLINE_SECONDS
    # The kernel cuts names: the server's and the daemon's are one and the same.
    for daemon in processes.named(MPS_CONTROL):
        # A container's is that container's affair: it was given the GPU, and its server has the GPU open.
        if not processes.is_roots(daemon.pid, MPS_CONTROL) or processes.in_container(daemon.pid):
            continue
        control = Control(run, _pipe_directory(processes, daemon.pid), deadline)
        try:
            for server in control.servers():
                for client in control.clients(server):
                    control.check_time()
                    holders += _client(devices, processes, gpus, (daemon.pid, server, client))
        except MpsError as error:
            problem = "an MPS daemon (pid %d) runs here, and its clients are not known: %s"
            problem %= (daemon.pid, error.problem)
            holders += unknown(
                gpus, problem, "Stop it (echo quit | %s) if it is not needed." % MPS_CONTROL, pid=daemon.pid
            )
    return holders


def _client(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], pids: tuple[int, int, int]) -> list[Holder]:
    """Return the holders that a client is; `pids` are the daemon's, the server's and the client's."""
    daemon, server, client = pids
    command, user, origin = processes.command(client), processes.user(client), processes.origin(client)
    about = short(command) or "of a process that /proc does not show"
    who = "pid %d (%s%s), a client of the MPS server %d" % (client, about, ", user %s" % user if user else "", server)
    of_server = _places(devices, processes, server)
    own = _places(devices, processes, client)
    # Without nodes, as of simulated GPUs, it cannot be told which GPU a client uses.
    places = [place for place in of_server if place in own] if devices.can_be_open else of_server
    contradiction = "" if serves(server, client, daemon, processes.proc) else "is not known to be of that server"
    if devices.can_be_open and not places:
        contradiction = "has no GPU open itself that the server has open" if own else "has no GPU open itself"
    everywhere = [(gpu.uuid, None) for gpu in gpus]
    if contradiction:
        who += ", %s and is not ended. Stop that server if it is not needed" % contradiction
        return [Holder(uuid, instance, MPS, who) for uuid, instance in of_server or everywhere]
    return [
        Holder(uuid, instance, MPS, who, client, user, command, origin.unit_or_container, origin.job or origin.pod)
        for uuid, instance in places or everywhere
    ]


def is_server(server: int, daemon: int | None, proc: str) -> bool:
    """Return whether a process is a server of that daemon, by the kernel's word: its parent, its file and its PID namespace.

    Who can write to a daemon's pipes may answer in its place and name any process, but makes none a child of the daemon.
    """
    parent = re.search(r"^PPid:\s*(\d+)", read("%s/%d/status" % (proc, server)), re.MULTILINE)
    return (
        daemon is not None
        and parent is not None
        and int(parent.group(1)) == daemon
        and executable_of(server, proc) == MPS_SERVER
        and not in_container(server, proc)
    )


def serves(server: int, client: int, daemon: int | None, proc: str) -> bool:
    """Return whether a process is a server of the daemon, and may serve the other process: by its user."""
    if not is_server(server, daemon, proc):
        return False
    owner, of_client = owner_of(server, proc), owner_of(client, proc)
    # A server of root's serves all users.
    return of_client is not None and owner in (0, of_client)


def shares_gpu(server: int, client: int, proc: str) -> bool:
    """Return whether both have a GPU open, and in MIG mode an instance; also where no driver is, as of simulated GPUs."""
    majors = {
        name: int(number)
        for number, name in re.findall(r"^\s*(\d+) (nvidia\S*)", read(proc + "/devices"), re.MULTILINE)
    }
    if not majors:
        return True
    of_server = _nodes(server, proc)
    common = of_server & _nodes(client, proc)
    gpu_major = majors.get("nvidia-frontend", majors.get("nvidia"))
    capabilities = {node for node in of_server if _is_capability(node, majors.get("nvidia-caps"))}
    return any(major == gpu_major and minor in _GPU_MINORS for major, minor in common) and (
        not capabilities or bool(capabilities & common)
    )


def _is_capability(node: tuple[int, int], major: int | None) -> bool:
    return node[0] == major and node[1] >= _FIRST_INSTANCE_CAPABILITY


def _nodes(pid: int, proc: str) -> set[tuple[int, int]]:
    """Return (major, minor) of the devices that a process has open; none where it has ended, or does not tell in time."""
    process = "%s/%d" % (proc, pid)
    try:
        return {(major, minor) for major, minor in ask(account_of(process), _open_devices, proc, pid)}
    except (OSError, NoAnswerError):
        return set()


@task
def _open_devices(proc: str, pid: int) -> list[tuple[int, int]]:
    """Asked in a child: who answers at a daemon's pipes names any process, with as many open files as it likes."""
    found = set()
    for task_id, folder in tables(proc, pid, can_compare(proc)):
        try:
            found |= {device_of("%s/fd/%s" % (folder, name)) for name in os.listdir(folder + "/fd")}  # noqa: PTH208
        except (FileNotFoundError, ProcessLookupError):
            if task_id == pid:
                raise
            # The thread has ended.
    return sorted(node for node in found if node)


def _places(devices: Devices, processes: Processes, pid: int) -> list[Place]:
    """What a process has open: its instances, and GPUs as a whole where it is in none of their instances."""
    nodes = processes.seen[pid].nodes if pid in processes.seen else ()
    places = {place for place in (devices.place(node) for node in nodes) if place}
    inside = {uuid for uuid, instance in places if instance is not None}
    return [place for place in places if place[1] is not None or place[0] not in inside]


def _pipe_directory(processes: Processes, pid: int) -> str | None:
    """The daemon's, by a path that leads there from here: a daemon of Kubernetes has the host's PIDs and its own files."""
    told = processes.environment(pid).get(PIPE_DIRECTORY)
    process, here = "%s/%d" % (processes.proc, pid), told or _DEFAULT
    there = "%s/root%s" % (process, here)
    try:
        return told if ask(account_of(process), _is_same, here, there) else there
    except (OSError, NoAnswerError):
        return told


@task
def _is_same(here: str, there: str) -> bool:
    """Asked in a child: the path may lead through another root. Raises OSError where there is nothing."""
    there_is = Path(there)
    there_is.stat()
    return Path(here).exists() and Path(here).samefile(there_is)
