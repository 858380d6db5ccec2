# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control the hosts of this scenario: jobs that hold GPUs, and interrupted runs.

nvidia-smi, never the collection itself, decides whether a layout is correct.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import uuid
from dataclasses import dataclass
from typing import Any, Iterator

from runs import Run

from tests.lab.lab_fixtures import container_name
from tests.lab.nvidia_smi import Gpu, GpuInstance, read_gpus
from tests.lab.verify_layout import differences

STATE = "/var/lib/openfleet-gpu"
JOURNAL = f"{STATE}/journal.json"
#: The layout file that the host applies at boot.
LAYOUT = "/etc/openfleet-gpu/layout.json"
#: The jobs run as Debian's user nobody.
USER, AS_USER = "nobody", "setpriv --reuid=65534 --clear-groups"
WAIT_SECONDS = 240
#: The call at which the tests interrupt a run: the second creation of a GPU instance. At this point, the old instances
#: are gone and some of the new ones are missing.
HALF_WAY = ("nvmlDeviceCreateGpuInstanceWithPlacement", 2)

#: A program that prints the pid of the process that last held the lock, and whether the child that calls NVML is
#: stopped.
OWNER = rf"""pid=$(sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' {STATE}/lock 2>/dev/null)"""
CHILDREN = '$(grep -ls "^PPid:.$pid$" /proc/[0-9]*/status | grep -o "[0-9]*")'
STOPPED = """grep -qs '^State:.T' $(grep -ls "^PPid:.$pid$" /proc/[0-9]*/status) /dev/null"""
CLEAR = f"gpusim fail --clear; {OWNER}; if {STOPPED}; then kill -KILL $pid; fi"


@dataclass(frozen=True)
class Job:
    """A systemd unit on a host, and the pid of its program."""

    unit: str
    pid: int


class GpuHost:
    """A host of the scenario. Tests run commands on it with testinfra.

    `variables` are its inventory variables.
    """

    def __init__(self, name: str, host: Any, variables: dict) -> None:
        self.name, self.host, self.variables = name, host, variables

    def podman(self, command: str) -> None:
        """Run podman on the host's container.

        `kill` acts like a loss of power, and `start` like a boot.
        """
        subprocess.run(["podman", command, container_name(self.name)], check=True, stdout=subprocess.DEVNULL)

    def ask(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        return self.host.check_output(command)

    def wait_until(self, condition: str) -> str:
        """Wait until a shell condition is true, and return its output."""
        return self.ask(f"timeout {WAIT_SECONDS} sh -c {shlex.quote(f'until {condition}; do sleep 0.05; done')}")

    # --- state in nvidia-smi ----------------------------------------------------------------------------------------

    def gpus(self) -> list[Gpu]:
        def run(command: str) -> tuple[int, str]:
            done = self.host.run(command)
            return done.rc, done.stdout + done.stderr

        return read_gpus(run)

    def not_as(self, stage: str) -> list[str]:
        """Return the differences between the GPUs and a stage of the layout, as sentences."""
        return differences({**self.variables, "gpu_layout": self.variables["layouts"][stage]}, self.gpus())

    def instance(self, gpu: int, start: int) -> tuple[int, GpuInstance]:
        """Return (id, instance) of the GPU instance that starts at a memory slice."""
        ((number, found),) = [(n, i) for n, i in self.gpus()[gpu].instances.items() if i.start == start]
        return number, found

    # --- initial state of each test ---------------------------------------------------------------------------------

    def to_first(self) -> None:
        """Apply the first layout like site.yml, whatever state the previous test left."""
        layout = shlex.quote(json.dumps(self.variables["layouts"]["first"], indent=2))
        lead = f"echo {layout} > {LAYOUT} && gpu-layout apply --unlisted remove && test ! -e {JOURNAL}"
        self.ask(f"{CLEAR}; {lead}")
        assert self.not_as("first") == []

    def clear(self) -> None:
        """Clear pending faults, and end a run that was stopped."""
        self.ask(CLEAR)

    # --- jobs -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def job(self, unit: str, command: str, program: str = "sleep") -> Iterator[Job]:
        """Run a command in a unit, and yield the job.

        Before yielding, waits until the unit's main process executes `program`.
        """
        # systemd keeps ended units for some time, so use unique names.
        unit += f"-{uuid.uuid4().hex[:6]}"
        self.ask(f"systemd-run --quiet --collect --unit={unit} {command}")
        try:
            pid = int(self.ask(f"systemctl show --property=MainPID --value {unit}"))
            self.wait_until(f'[ "$(cat /proc/{pid}/comm)" = {program[:15]} ]')
            yield Job(unit, pid)
        finally:
            self.host.run(f"systemctl stop {unit}")

    def gpu_job(self, gpu: int, start: int | None = None, unit: str = "trainer") -> Any:
        """Run a job that NVML lists, on a whole GPU or in an instance.

        The instance starts at the memory slice `start`.
        """
        where = f"--gpu {gpu}" if start is None else f"--gpu {gpu} --gi {self.instance(gpu, start)[0]}"
        return self.job(unit, f"gpusim run {where} --memory 1GiB -- {AS_USER} sleep 600")

    @contextlib.contextmanager
    def node(self, path: str) -> Iterator[str]:
        """Create a file that represents a device node, which no program has open yet."""
        self.ask(f"mkdir -p $(dirname {path}) && touch {path}")
        try:
            yield path
        finally:
            self.host.run(f"rm -f {path}; rmdir /dev/nvidia-caps 2>/dev/null")

    @contextlib.contextmanager
    def handle(self, path: str, unit: str = "notebook", program: str = "sleep") -> Iterator[Job]:
        """Run a program that has a device node open.

        The program has no context, so NVML does not list it.
        """
        # Use a program directory that only root can change. Otherwise the collection would not accept a program that
        # claims to monitor.
        copy = f"/usr/local/bin/{program}"
        self.ask(f"[ {program} = sleep ] || cp /bin/sleep {copy}")
        run = f"{'sleep' if program == 'sleep' else copy} 600"
        with self.node(path), self.job(unit, f"sh -c 'exec {AS_USER} {run} 3<{path}'", program) as job:
            yield job

    def container(self, node: str, unit: str = "box") -> Any:
        """Start a unit that looks like a container with a GPU.

        Its /dev has the GPU's node, which no process has open.
        """
        setup = f"mount -t tmpfs tmpfs /dev && touch /dev/{node}"
        return self.job(unit, f"unshare --mount sh -c '{setup} && exec {AS_USER} sleep 600'")

    def runs(self, job: Job) -> bool:
        return self.host.run(f"kill -0 {job.pid}").rc == 0

    # --- interrupted runs -------------------------------------------------------------------------------------------

    @property
    def cut_off(self) -> bool:
        """Return whether a journal of an unfinished change exists."""
        return self.host.file(JOURNAL).exists

    @property
    def is_neither(self) -> bool:
        """Return whether the GPUs match neither the old nor the new layout.

        An interruption tests the recovery only if this is true.
        """
        return self.cut_off and self.not_as("first") != [] and self.not_as("second") != []

    def stop_at(self, call: str, nth: int = 1) -> None:
        """Stop the next run before its nth call of a function, as if NVML hung."""
        self.fail_at(call, nth, "stop")

    def fail_at(self, call: str, nth: int = 1, code: str = "INSUFFICIENT_RESOURCES") -> None:
        self.ask(f"gpusim fail {call} --nth {nth} --code {code}")

    def until_stopped(self, run: Run) -> int:
        """Wait until the run has stopped at the call. Return its pid on the host."""
        while (found := self.host.run(f"{OWNER}; {STOPPED} && echo $pid")).rc != 0:
            run.goes_on()
        return int(found.stdout)

    def until_waiting_for(self, pid: int) -> None:
        """Wait until a process other than `pid` has the lock's file open."""
        others = f"ls -l $(ls -d /proc/[0-9]*/fd | grep -v /{pid}/) 2>/dev/null"
        self.wait_until(f"{others} | grep -q 'lock$'")

    def until_unlocked(self) -> None:
        """Wait until no run changes the host."""
        self.ask(f"timeout {WAIT_SECONDS} flock {STATE}/lock true")

    def go_on(self, pid: int) -> None:
        self.ask(f"pid={pid}; kill -CONT {CHILDREN}")

    def end(self, signal: str, pid: int) -> None:
        """Send a signal to a run whose child is stopped, and continue the child.

        After SIGKILL, the stopped child is killed too, as soon as the run has ended.
        """
        last = (
            f"while kill -0 {pid} 2>/dev/null; do sleep 0.01; done" if signal == "KILL" else "kill -CONT $child || true"
        )
        self.ask(f"pid={pid}; child={CHILDREN}; kill -{signal} $pid; {last}")
