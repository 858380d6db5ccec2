# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the MPS daemons that run here. A client between two kernels need not show in NVML; its server knows it."""

from __future__ import annotations

from pathlib import Path

from .holders_devices import Devices
from .holders_model import MPS, Run, short, unknown
from .holders_proc import Processes
from .model import Gpu, Holder
from .mps_control import CONTROL, PIPE_DIRECTORY, SERVER, Control, MpsError

#: Where a daemon has its pipes that is told nothing (nvidia-cuda-mps-control(1)).
_DEFAULT = "/tmp/nvidia-mps"


def mps(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], run: Run) -> list[Holder]:
    """A holder for each client of each MPS server, on what the server has open."""
    holders: list[Holder] = []
    # Both names are longer than the kernel keeps, and are one and the same when cut.
    running = [process for process in processes.named(CONTROL) if _program(processes, process.pid) == CONTROL]
    for daemon in running:
        if processes.in_container(daemon.pid):
            # That container's affair: the container was given the GPU, and its server has the GPU open.
            continue
        control = Control(run, _pipe_directory(processes, daemon.pid))
        try:
            for server in control.servers():
                for client in control.clients(server):
                    holders += _client(devices, processes, gpus, server, client)
        except MpsError as error:
            problem = "an MPS daemon (pid %d) runs here, and its clients are not known: %s"
            problem %= (daemon.pid, error.problem)
            holders += unknown(gpus, problem, "Stop it (echo quit | %s) if nobody needs it." % CONTROL, pid=daemon.pid)
    return holders


def is_mps(processes: Processes, pid: int) -> bool:
    """Whether a process is a daemon or server of MPS itself."""
    return _program(processes, pid) in (CONTROL, SERVER)


def _client(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], server: int, client: int) -> list[Holder]:
    command, user = processes.command(client), processes.user(client)
    origin = processes.origin(client)
    about = short(command) or "of a process that /proc does not show"
    who = "pid %d (%s%s), a client of the MPS server %d" % (client, about, ", user %s" % user if user else "", server)
    nodes = processes.seen[server].nodes if server in processes.seen else ()
    places = {place for place in (devices.place(node) for node in nodes) if place}
    inside = {uuid for uuid, instance in places if instance is not None}
    # A server that shows no open device cannot be matched with a GPU: its clients hold any.
    held = [place for place in places if place[1] is not None or place[0] not in inside]
    return [
        Holder(uuid, instance, MPS, who, client, user, command, origin.unit_or_container, origin.job or origin.pod)
        for uuid, instance in held or [(gpu.uuid, None) for gpu in gpus]
    ]


def _pipe_directory(processes: Processes, pid: int) -> str | None:
    """The daemon's, by a path that leads there from here: a daemon of Kubernetes has the host's PIDs and its own files."""
    told = processes.environment(pid).get(PIPE_DIRECTORY)
    here, there = Path(told or _DEFAULT), Path("%s/%d/root%s" % (processes.proc, pid, told or _DEFAULT))
    try:
        there.stat()
        return told if here.exists() and here.samefile(there) else str(there)
    except OSError:
        return told


def _program(processes: Processes, pid: int) -> str:
    words = processes.arguments(pid)
    return words[0].rpartition("/")[2] if words else ""
