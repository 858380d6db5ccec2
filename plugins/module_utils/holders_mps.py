# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the MPS daemons that root runs here. A client between two kernels need not show in NVML; its server knows it.

A user's own daemon is not asked: it answers whatever its user likes, and root ends processes by such answers. Its servers and
their clients have the GPU's node open, which the kernel says, and hold the GPU by that.
"""

from __future__ import annotations

import time
from pathlib import Path

from .accounts import account_of
from .command import TOOL_TIMEOUT_SECONDS, Run
from .file_worker import NoAnswerError, ask, task
from .holders_devices import Devices, Place
from .holders_model import MPS, short, unknown
from .holders_proc import Processes, executable_of, in_container, owner_of
from .model import Gpu, Holder
from .mps_control import CONTROL, PIPE_DIRECTORY, SERVER, Control, MpsError

#: Where a daemon has its pipes that is told nothing (nvidia-cuda-mps-control(1)).
_DEFAULT = "/tmp/nvidia-mps"
#: For all daemons of a host together: a look happens under the host's lock.
_DEADLINE_SECONDS = 3 * TOOL_TIMEOUT_SECONDS
#: Of a daemon and of a server. A server takes at most 60 clients (https://docs.nvidia.com/deploy/mps/, "Limitations").
_MOST_SERVERS, _MOST_CLIENTS = 64, 256


def mps(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], run: Run) -> list[Holder]:
    """Return a holder for each client of each MPS server, on what the server has open."""
    holders: list[Holder] = []
    deadline = time.monotonic() + _DEADLINE_SECONDS
    # The kernel cuts names: the server's and the daemon's are one and the same.
    for daemon in processes.named(CONTROL):
        # A container's is that container's affair: it was given the GPU, and its server has the GPU open.
        if not processes.is_roots(daemon.pid, CONTROL) or processes.in_container(daemon.pid):
            continue
        control = Control(run, _pipe_directory(processes, daemon.pid))
        try:
            for server in _few(control.servers(), _MOST_SERVERS, "servers", control):
                if time.monotonic() > deadline:
                    raise MpsError(control.where, "its servers take too long to answer", "See whether they hang.")
                for client in _few(control.clients(server), _MOST_CLIENTS, "clients", control):
                    holders += _client(devices, processes, gpus, server, client)
        except MpsError as error:
            problem = "an MPS daemon (pid %d) runs here, and its clients are not known: %s"
            problem %= (daemon.pid, error.problem)
            holders += unknown(gpus, problem, "Stop it (echo quit | %s) if nobody needs it." % CONTROL, pid=daemon.pid)
    return holders


def is_mps(processes: Processes, pid: int) -> bool:
    """Return whether a process is a daemon or server of MPS itself."""
    words = processes.arguments(pid)
    return bool(words) and words[0].rpartition("/")[2] in (CONTROL, SERVER)


def _client(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], server: int, client: int) -> list[Holder]:
    command, user, origin = processes.command(client), processes.user(client), processes.origin(client)
    about = short(command) or "of a process that /proc does not show"
    who = "pid %d (%s%s), a client of the MPS server %d" % (client, about, ", user %s" % user if user else "", server)
    places = _places(devices, processes, server)
    contradiction = _contradiction(devices, processes, server, client)
    if contradiction:
        who += ", %s and is not ended. Stop that server if nobody needs it" % contradiction
        return [Holder(uuid, instance, MPS, who) for uuid, instance in places or [(gpu.uuid, None) for gpu in gpus]]
    # A server that shows no open device cannot be matched with a GPU: its clients hold any.
    return [
        Holder(uuid, instance, MPS, who, client, user, command, origin.unit_or_container, origin.job or origin.pod)
        for uuid, instance in places or [(gpu.uuid, None) for gpu in gpus]
    ]


def _contradiction(devices: Devices, processes: Processes, server: int, client: int) -> str:
    """Return what the kernel says against the client; empty where it says nothing against it.

    A server runs as its user, who may have it name any process: one of another user, or without a GPU open, is not ended by that.
    """
    if devices.can_be_open and not _places(devices, processes, client):
        return "has no GPU open itself"
    if not serves(server, client, processes.proc):
        return "is of another user than that server"
    return ""


def serves(server: int, client: int, proc: str) -> bool:
    """Return whether a process may be a server of the other one, by the kernel's word: its file, its PID namespace and its user.

    Whoever can write to a daemon's pipes, as root in a container of one of its clients, may answer in its place and name any two.
    """
    if executable_of(server, proc) != SERVER or in_container(server, proc):
        return False
    owner, of_client = owner_of(server, proc), owner_of(client, proc)
    # A server of root's serves all users.
    return of_client is not None and owner in (0, of_client)


def _places(devices: Devices, processes: Processes, pid: int) -> list[Place]:
    """What a process has open: its instances, and GPUs as a whole where it is in none of their instances."""
    nodes = processes.seen[pid].nodes if pid in processes.seen else ()
    places = {place for place in (devices.place(node) for node in nodes) if place}
    inside = {uuid for uuid, instance in places if instance is not None}
    return [place for place in places if place[1] is not None or place[0] not in inside]


def _few(pids: tuple[int, ...], most: int, what: str, control: Control) -> tuple[int, ...]:
    if len(pids) > most:
        raise MpsError(control.where, "it names %d %s" % (len(pids), what), "No daemon has as many: see what it is.")
    return pids


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
