# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of this scenario: nvidia-smi, jobs that hold GPUs, and interrupted runs.

Whether a layout is what it should be is nvidia-smi's word, never the collection's own.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import uuid
from dataclasses import dataclass
from typing import Any, Iterator

from lab_fixtures import container_name
from nvidia_smi import Gpu, GpuInstance, read_gpus
from runs import Run
from verify_layout import differences

STATE = "/var/lib/openfleet-gpu"
JOURNAL = f"{STATE}/journal.json"
#: What a restart of the host restores.
LAYOUT = "/etc/openfleet-gpu/layout.json"
#: Owner of the jobs: Debian's user nobody.
USER, AS_USER = "nobody", "setpriv --reuid=65534 --clear-groups"
WAIT_SECONDS = 240
#: The second GPU instance that a change makes: by then old ones are gone, and the new ones are not all there.
HALF_WAY = ("nvmlDeviceCreateGpuInstanceWithPlacement", 2)

#: The pid of the run that had the host's lock last, and whether the child in which it calls NVML is stopped.
OWNER = rf"""pid=$(sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' {STATE}/lock 2>/dev/null)"""
CHILDREN = '$(grep -ls "^PPid:.$pid$" /proc/[0-9]*/status | grep -o "[0-9]*")'
STOPPED = """grep -qs '^State:.T' $(grep -ls "^PPid:.$pid$" /proc/[0-9]*/status) /dev/null"""
CLEAR = f"gpusim fail --clear; {OWNER}; if {STOPPED}; then kill -KILL $pid; fi"


@dataclass(frozen=True)
class Job:
    """A unit of systemd on a host, and the pid of its program."""

    unit: str
    pid: int


class GpuHost:
    """A host of the scenario by its testinfra host; `variables` are its own of the inventory."""

    def __init__(self, name: str, host: Any, variables: dict) -> None:
        self.name, self.host, self.variables = name, host, variables

    def podman(self, command: str) -> None:
        """What befalls the host as a whole: kill is a loss of power, start its return."""
        subprocess.run(["podman", command, container_name(self.name)], check=True, stdout=subprocess.DEVNULL)

    def ask(self, command: str) -> str:
        """What a shell command printed, which must succeed."""
        return self.host.check_output(command)

    def wait_until(self, condition: str) -> str:
        """Waits until a shell condition holds; what it printed then."""
        return self.ask(f"timeout {WAIT_SECONDS} sh -c {shlex.quote(f'until {condition}; do sleep 0.05; done')}")

    # --- what nvidia-smi says -------------------------------------------------------------------

    def gpus(self) -> list[Gpu]:
        def run(command: str) -> tuple[int, str]:
            done = self.host.run(command)
            return done.rc, done.stdout + done.stderr

        return read_gpus(run)

    def not_as(self, stage: str) -> list[str]:
        """What is not as the inventory's layout of that stage asks, a sentence each."""
        return differences({**self.variables, "gpu_layout": self.variables["layouts"][stage]}, self.gpus())

    def instance(self, gpu: int, start: int) -> tuple[int, GpuInstance]:
        """(id, instance) of the GPU instance that starts at that memory slice."""
        ((number, found),) = [(n, i) for n, i in self.gpus()[gpu].instances.items() if i.start == start]
        return number, found

    # --- where each test begins -----------------------------------------------------------------

    def to_first(self) -> None:
        """Lead the host to its first layout, whatever the test before this one left, as a run of site.yml would."""
        layout = shlex.quote(json.dumps(self.variables["layouts"]["first"], indent=2))
        lead = f"echo {layout} > {LAYOUT} && gpu-layout apply --unlisted remove && test ! -e {JOURNAL}"
        self.ask(f"{CLEAR}; {lead}")
        assert self.not_as("first") == []

    def clear(self) -> None:
        """Forget faults that wait, and end a run that was stopped."""
        self.ask(CLEAR)

    # --- jobs -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def job(self, unit: str, command: str, program: str = "sleep") -> Iterator[Job]:
        """A unit that runs a command; it is there once the command has become that program."""
        # systemd forgets a unit some time after its end.
        unit += f"-{uuid.uuid4().hex[:6]}"
        self.ask(f"systemd-run --quiet --collect --unit={unit} {command}")
        try:
            pid = int(self.ask(f"systemctl show --property=MainPID --value {unit}"))
            self.wait_until(f'[ "$(cat /proc/{pid}/comm)" = {program[:15]} ]')
            yield Job(unit, pid)
        finally:
            self.host.run(f"systemctl stop {unit}")

    def gpu_job(self, gpu: int, start: int | None = None, unit: str = "trainer") -> Any:
        """A job that NVML lists, on a whole GPU or in the instance that starts at that memory slice."""
        where = f"--gpu {gpu}" if start is None else f"--gpu {gpu} --gi {self.instance(gpu, start)[0]}"
        return self.job(unit, f"gpusim run {where} --memory 1GiB -- {AS_USER} sleep 600")

    @contextlib.contextmanager
    def node(self, path: str) -> Iterator[str]:
        """A device node of the driver's, by name: no program has it open yet."""
        self.ask(f"mkdir -p $(dirname {path}) && touch {path}")
        try:
            yield path
        finally:
            self.host.run(f"rm -f {path}; rmdir /dev/nvidia-caps 2>/dev/null")

    @contextlib.contextmanager
    def handle(self, path: str, unit: str = "notebook", program: str = "sleep") -> Iterator[Job]:
        """A program that has a device node open and has no context, so that NVML does not list it."""
        # Where root alone can change it, and in a directory of programs: else one that watches would not be believed.
        copy = f"/usr/local/bin/{program}"
        self.ask(f"[ {program} = sleep ] || cp /bin/sleep {copy}")
        run = f"{'sleep' if program == 'sleep' else copy} 600"
        with self.node(path), self.job(unit, f"sh -c 'exec {AS_USER} {run} 3<{path}'", program) as job:
            yield job

    def container(self, node: str, unit: str = "box") -> Any:
        """Create what a container runtime makes for a container with a GPU: a /dev with the unopened node."""
        setup = f"mount -t tmpfs tmpfs /dev && touch /dev/{node}"
        return self.job(unit, f"unshare --mount sh -c '{setup} && exec {AS_USER} sleep 600'")

    def runs(self, job: Job) -> bool:
        return self.host.run(f"kill -0 {job.pid}").rc == 0

    # --- a run in the middle of a change --------------------------------------------------------

    @property
    def cut_off(self) -> bool:
        """Whether there is a journal: a change that is neither done nor taken back."""
        return self.host.file(JOURNAL).exists

    @property
    def is_neither(self) -> bool:
        """What a change half done must show, or its end would prove nothing."""
        return self.cut_off and self.not_as("first") != [] and self.not_as("second") != []

    def stop_at(self, call: str, nth: int = 1) -> None:
        """The next run that gets to the nth such call of NVML stops ahead of it, as if the driver hung."""
        self.fail_at(call, nth, "stop")

    def fail_at(self, call: str, nth: int = 1, code: str = "INSUFFICIENT_RESOURCES") -> None:
        self.ask(f"gpusim fail {call} --nth {nth} --code {code}")

    def until_stopped(self, run: Run) -> int:
        """Waits for the run to get there; its pid on the host."""
        while (found := self.host.run(f"{OWNER}; {STOPPED} && echo $pid")).rc != 0:
            run.goes_on()
        return int(found.stdout)

    def until_waiting_for(self, pid: int) -> None:
        """Waits until another process has the lock's file open, beside that one which holds the lock."""
        others = f"ls -l $(ls -d /proc/[0-9]*/fd | grep -v /{pid}/) 2>/dev/null"
        self.wait_until(f"{others} | grep -q 'lock$'")

    def until_unlocked(self) -> None:
        """Waits until no run changes the host."""
        self.ask(f"timeout {WAIT_SECONDS} flock {STATE}/lock true")

    def go_on(self, pid: int) -> None:
        self.ask(f"pid={pid}; kill -CONT {CHILDREN}")

    def end(self, signal: str, pid: int) -> None:
        """Send a signal to a run whose child is stopped, and continue the child. SIGKILL leaves no child."""
        self.ask(f"pid={pid}; child={CHILDREN}; kill -{signal} $pid; kill -CONT $child 2>/dev/null || true")
