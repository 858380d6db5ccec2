# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sources of holders share: kinds, texts and a way to run a host's tools. Free of I/O but that."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Iterable, Sequence

from .model import Gpu, Holder, Host

PROCESS, DEVICE_HANDLE, CONTAINER, SLURM, KUBELET, MPS, UNKNOWN = (
    "process",
    "device_handle",
    "container",
    "slurm",
    "kubelet",
    "mps",
    "unknown",
)

#: The kernel cuts the name of a process after 15 characters.
NAME_LENGTH = 15

#: How much of a command line a message has room for.
_COMMAND_LENGTH = 80

#: How long a scheduler's or runtime's tool may take; one whose controller does not answer counts as failed after it.
TOOL_TIMEOUT_SECONDS = 10
#: What a tool may say: a controller of ten thousand jobs says less.
_MOST_BYTES, _CHUNK_BYTES = 1 << 25, 1 << 16
#: What was killed is gone in a moment.
_REAP_SECONDS = 2.0

#: Called as run(command, input=text, env=variables to add); returns what subprocess.run with text=True returns.
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def unknown(gpus: Iterable[Gpu], problem: str, cure: str, **details: Any) -> list[Holder]:
    """What could not be determined holds every GPU that it may concern."""
    who = "%s. %s" % (problem.rstrip("."), cure)
    return [Holder(gpu.uuid, None, UNKNOWN, who, **details) for gpu in gpus]


def short(command: str | None) -> str | None:
    """A command line as messages show it."""
    if command is None or len(command) <= _COMMAND_LENGTH:
        return command
    return command[: _COMMAND_LENGTH - 3] + "..."


def place_of(host: Host, device_uuid: str) -> tuple[str, int | None] | None:
    """(GPU UUID, GPU instance id or None) of a GPU's or MIG device's UUID; None where the host has no such device."""
    for gpu in host.gpus:
        if gpu.uuid == device_uuid:
            return gpu.uuid, None
        for instance in gpu.mig.instances:
            for compute in instance.compute_instances:
                # Drivers before 470 name a MIG device by its GPU and its ids (MIG user guide, "MIG Device Names").
                old = "MIG-%s/%d/%d" % (gpu.uuid, instance.id, compute.id)
                if device_uuid in (compute.mig_uuid, old):
                    return gpu.uuid, instance.id
    return None


def run_tool(
    command: list[str],
    input: str = "",
    env: dict[str, str] | None = None,
    timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
) -> Any:
    """Run a tool of the host. Raises FileNotFoundError where it is not installed, TimeoutExpired where it does not end.

    That goes for one that hangs and for one that never stops talking: it is killed with all that it started. `input` is a line or
    two.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, LANG="C", LC_ALL="C", **(env or {})),
        start_new_session=True,
    )
    deadline = time.monotonic() + timeout_seconds
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(input.encode())
        said = _read((process.stdout, process.stderr), deadline)
        if said is None:
            raise subprocess.TimeoutExpired(command, timeout_seconds)
        process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # One that hangs in the kernel is not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SECONDS)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            stream.close()
    return subprocess.CompletedProcess(command, process.returncode, *said)


def _read(streams: Sequence[Any], deadline: float) -> list[str] | None:
    """All that they say; None where that is too much, or takes too long."""
    found = {stream: bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                found[key.fileobj] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(found[key.fileobj]) > _MOST_BYTES:
                    return None
    return [text.decode(errors="replace") for text in found.values()]


def ask(run: Run, command: list[str], **options: Any) -> tuple[str | None, str]:
    """(output, "") of a tool, or (None, why there is none). Raises FileNotFoundError where it is not installed."""
    try:
        done = run(command, **options)
    except (subprocess.TimeoutExpired, PermissionError) as error:
        return None, "%s failed: %s" % (" ".join(command), error)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        return None, "%s failed with exit status %d: %s" % (" ".join(command), done.returncode, said[:200])
    return done.stdout, ""
