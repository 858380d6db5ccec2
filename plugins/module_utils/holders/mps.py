# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the clients of root's MPS daemons.

NVML sometimes does not list a client that is between two CUDA kernels, but its MPS server does.

Root in a client's container can write to the pipe directory and answer in place of the daemon. So kernel data must
confirm an answer: the server belongs to the daemon, and the client and the server have the same GPU open.

Other users' daemons are not queried, because these users control the answers. Their servers and clients are found by
the device nodes that they have open.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from ..model import MPS_CONTROL, MPS_SERVER, Gpu, Holder
from ..processes.accounts import account_of
from ..processes.command import TOOL_TIMEOUT_SECONDS, Run
from ..processes.file_worker import NoAnswerError, ask, task
from ..processes.proc_files import read
from .devices import Devices, Place
from .model import MPS, short, unknown
from .mps_control import PIPE_DIRECTORY, Control, MpsError
from .open_files import device_of
from .processes import Processes, executable_of, in_container, owner_of
from .tasks import can_compare, tables

#: Default pipe directory (nvidia-cuda-mps-control(1)).
_DEFAULT = "/tmp/nvidia-mps"
#: Time limit in seconds for queries to all daemons of a host. It is short, because the scan holds the host's lock.
_DEADLINE_SECONDS = 3 * TOOL_TIMEOUT_SECONDS
#: Minor numbers of GPU nodes, and the lowest minor number of an instance's capability
#: (/proc/driver/nvidia-caps/mig-minors). Higher minors with the same major number belong to nvidiactl and
#: nvidia-modeset.
_GPU_MINORS, _FIRST_INSTANCE_CAPABILITY = range(254), 3


def mps(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], run: Run) -> list[Holder]:
    """Return a holder for each client of each MPS server.

    A client holds the GPUs and instances that both the client and its server have open.
    """
    holders: list[Holder] = []
    deadline = time.monotonic() + _DEADLINE_SECONDS
    # `named` also returns servers, because the kernel truncates process names. `is_roots` excludes them.
    for daemon in processes.named(MPS_CONTROL):
        # If the daemon is in a container, the container and its server's open files already count as holders.
        if not processes.is_roots(daemon.pid, MPS_CONTROL) or processes.in_container(daemon.pid):
            continue
        control = Control(run, _pipe_directory(processes, daemon.pid), deadline)
        try:
            for server in control.servers():
                for client in control.clients(server):
                    control.check_time()
                    holders += _client(devices, processes, gpus, (daemon.pid, server, client))
        except MpsError as error:
            problem = "the clients of the MPS daemon with pid %d are not known: %s"
            problem %= (daemon.pid, error.problem)
            holders += unknown(
                gpus, problem, "Stop the daemon (echo quit | %s) if it is not needed." % MPS_CONTROL, pid=daemon.pid
            )
    return holders


def _client(devices: Devices, processes: Processes, gpus: tuple[Gpu, ...], pids: tuple[int, int, int]) -> list[Holder]:
    """Return a client's holders.

    `pids` has the PIDs of the daemon, the server and the client.
    """
    daemon, server, client = pids
    command, user, origin = processes.command(client), processes.user(client), processes.origin(client)
    text = short(command) or "a process that /proc does not show"
    who = "pid %d (%s%s), a client of the MPS server %d" % (client, text, ", user %s" % user if user else "", server)
    of_server = _places(devices, processes, server)
    own = _places(devices, processes, client)
    # Simulated GPUs have no nodes, so it is unknown which GPU the client uses.
    places = [place for place in of_server if place in own] if devices.can_be_open else of_server
    contradiction = "" if serves(server, client, daemon, processes.proc) else "may not be a client of this server"
    if devices.can_be_open and not places:
        contradiction = "has none of the server's GPUs open" if own else "has no GPU open"
    everywhere = [(gpu.uuid, None) for gpu in gpus]
    if contradiction:
        who += ", %s and is not ended. Stop this server if it is not needed" % contradiction
        return [Holder(uuid, instance, MPS, who) for uuid, instance in of_server or everywhere]
    return [
        Holder(uuid, instance, MPS, who, client, user, command, origin.unit_or_container, origin.job or origin.pod)
        for uuid, instance in places or everywhere
    ]


def is_server(server: int, daemon: int | None, proc: str) -> bool:
    """Return whether a process is one of the daemon's servers.

    Checks the process's parent, executed file and PID namespace. A program that answers in place of the daemon can name
    any PID, but cannot make that process a child of the daemon.
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
    """Return whether a process is the daemon's server and may serve the client.

    A server may only serve processes that run as the same user.
    """
    if not is_server(server, daemon, proc):
        return False
    owner, of_client = owner_of(server, proc), owner_of(client, proc)
    # A server with uid 0 may serve all users.
    return of_client is not None and owner in (0, of_client)


def shares_gpu(server: int, client: int, proc: str) -> bool:
    """Return whether two processes have the same GPU open.

    In MIG mode, both must have the same instance open. Returns True if there is no driver (simulated GPUs).
    """
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
    """Return (major, minor) of the devices that a process has open.

    Returns an empty set if the process has ended or does not answer.
    """
    process = "%s/%d" % (proc, pid)
    try:
        return set(map(tuple, ask(account_of(process), _open_devices, proc, pid)))
    except (OSError, NoAnswerError):
        return set()


@task
def _open_devices(proc: str, pid: int) -> list[tuple[int, int]]:
    """Read open devices. Runs in a child process, because the read may take long.

    A forged answer may name a process with any number of open files.
    """
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
    """Return the GPU instances that a process has open.

    If a process has only a GPU open, and none of its instances, returns the whole GPU.
    """
    nodes = processes.seen[pid].nodes if pid in processes.seen else ()
    places = {place for place in (devices.place(node) for node in nodes) if place}
    inside = {uuid for uuid, instance in places if instance is not None}
    return [place for place in places if place[1] is not None or place[0] not in inside]


def _pipe_directory(processes: Processes, pid: int) -> str | None:
    """Return a path to the daemon's pipe directory.

    The path leads through the daemon's root, because a daemon in a pod has its own file system.
    """
    configured = processes.environment(pid).get(PIPE_DIRECTORY)
    process, own = "%s/%d" % (processes.proc, pid), configured or _DEFAULT
    through_root = "%s/root%s" % (process, own)
    try:
        return configured if ask(account_of(process), _is_same, own, through_root) else through_root
    except (OSError, NoAnswerError):
        return configured


@task
def _is_same(own: str, through_root: str) -> bool:
    """Return whether two paths are the same folder. Runs in a child process.

    One path leads through another process's root directory, whose file system may hang. Raises OSError if a path
    does not exist.
    """
    other = Path(through_root)
    other.stat()
    return Path(own).exists() and Path(own).samefile(other)
