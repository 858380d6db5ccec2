# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the scenario's host with systemd and Slurm, and define units and jobs."""

from __future__ import annotations

import shlex
import time
from typing import Any

from tests.lab.host_modules import run_module
from tests.lab.lab_fixtures import no_restart

NODE = "gpu-a"
RECORD = "/var/lib/openfleet-gpu/drain.json"
WAIT_SECONDS = 300

#: Units by name. The units lab-off, lab-inetd and lab-tick do not run, and all other units run. The socket of lab-inetd
#: and the timer of lab-tick are active.
UNITS = {
    "lab-a.service": "[Service]\nExecStart=/bin/sleep infinity",
    "lab-b.service": "[Service]\nExecStart=/bin/sleep infinity",
    # If lab-b stops, this unit stops too. If lab-b starts again, this unit does not.
    "lab-exporter.service": "[Unit]\nRequires=lab-b.service\nAfter=lab-b.service\n[Service]\nExecStart=/bin/sleep infinity",
    "lab-off.service": "[Service]\nExecStart=/bin/sleep infinity",
    "lab-inetd.socket": "[Socket]\nListenStream=/run/lab-inetd",
    "lab-inetd.service": "[Service]\nExecStart=/bin/sleep infinity",
    "lab-tick.timer": "[Timer]\nOnActiveSec=1h",
    "lab-tick.service": "[Service]\nType=oneshot\nExecStart=/bin/true",
    # This unit stops only when the file is removed.
    "lab-slow.service": "[Service]\nExecStart=/bin/sleep infinity\nTimeoutStopSec=infinity\n"
    "ExecStop=/bin/sh -c 'sleep 1; while [ -e /run/lab-hold ]; do sleep 0.1; done'",
    # systemd refuses to stop this unit.
    "lab-firm.service": "[Unit]\nRefuseManualStop=yes\n[Service]\nExecStart=/bin/sleep infinity",
    # While the file exists, this unit cannot start.
    "lab-lame.service": "[Service]\nExecStartPre=/bin/sh -c 'test ! -e /run/lab-lame'\nExecStart=/bin/sleep infinity",
}
RUNNING = [name for name in UNITS if name not in ("lab-off.service", "lab-inetd.service", "lab-tick.service")]


class DrainedHost:
    """The host, through testinfra. The host's own Python runs the module."""

    def __init__(self, name: str, host: Any) -> None:
        self.name, self.host = name, host

    # --- the module ----------------------------------------------------------------------------

    def drain(self, check: bool = False, **arguments: object) -> dict:
        """Run the module, check that it succeeded, and return its result."""
        return self._module("drained", check, arguments)

    def resume(self, check: bool = False) -> dict:
        return self._module("resumed", check, {})

    def refused(self, state: str, **arguments: object) -> str:
        """Run the module, check that it failed, and return its message."""
        result = run_module(self.name, "drain", state=state, **arguments)
        assert result.get("failed"), result
        return result["msg"]

    def _module(self, state: str, check: bool, arguments: dict) -> dict:
        result = run_module(self.name, "drain", check, state=state, **arguments)
        assert not result.get("failed"), result
        return result

    # --- the host ------------------------------------------------------------------------------

    def ask(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        return self.host.check_output(command)

    def wait_until(self, condition: str) -> str:
        """Wait until a shell condition is true, and return its output."""
        return self.ask(f"timeout {WAIT_SECONDS} bash -c {shlex.quote(f'until {condition}; do sleep 0.1; done')}")

    def bare(self) -> None:
        """Restore the initial state of the host, whatever an earlier test changed."""
        self.ask(
            f"rm -rf {RECORD} /run/lab-* /tmp/lab-*; squeue --noheader --format %A | xargs --no-run-if-empty scancel; "
            "systemctl start munge slurmctld slurmd; systemctl daemon-reload; "
            "systemctl unmask --quiet lab-a.service; systemctl reset-failed"
        )
        self.wait_until("scontrol ping >/dev/null")
        self.wait_until(f"scontrol show node {NODE} >/dev/null")
        self.host.run(f"scontrol update NodeName={NODE} State=RESUME")
        # If the node's report about the end of a job is lost, Slurm may wait minutes for the report. A node that was
        # down has no jobs.
        again = f"scontrol update NodeName={NODE} State=DOWN Reason=lab; scontrol update NodeName={NODE} State=RESUME"
        idle = f'[ "$(sinfo --noheader --nodes {NODE} --format %T)" = idle ]'
        self.wait_until(f"{{ {idle} || {{ [ $((++looks % 300)) != 0 ] || {{ {again}; }}; false; }}; }}")
        self.ask(f"systemctl stop {' '.join(name for name in UNITS if name not in RUNNING)}")
        self.ask(f"systemctl start {' '.join(RUNNING)}")

    # --- systemd -------------------------------------------------------------------------------

    def active(self) -> set[str]:
        """Return the test units that run."""
        shown = self.host.run(f"systemctl is-active {' '.join(UNITS)}").stdout.split()
        return {name for name, state in zip(UNITS, shown) if state == "active"}

    def is_whole(self) -> bool:
        """Wait for slurmd. Return whether the state is the same as before the drain."""
        self.node_comes_to("idle: none")
        return self.active() == set(RUNNING) and not self.host.file(RECORD).exists

    def reboot(self) -> None:
        started = self.ask('cut -d" " -f22 /proc/1/stat')
        time.sleep(1)  # The start time of PID 1 is in whole seconds.
        self.host.run("systemctl reboot")
        deadline = time.monotonic() + WAIT_SECONDS
        while self.host.run('cut -d" " -f22 /proc/1/stat').stdout.strip() in ("", started) or self.host.run(
            "systemctl is-system-running"
        ).stdout.strip() not in ("running", "degraded"):
            assert time.monotonic() < deadline, no_restart(self.host, WAIT_SECONDS)
            time.sleep(0.2)

    # --- Slurm ---------------------------------------------------------------------------------

    def node(self) -> str:
        """Return the state and the reason of the node in Slurm's format."""
        return self.ask(f"sinfo --noheader --nodes {NODE} --format '%T: %E'").strip()

    def node_comes_to(self, state: str) -> None:
        """Wait until the node has this state and reason.

        After its start, slurmd needs some time to respond.
        """
        shown = f"$(sinfo --noheader --nodes {NODE} --format '%T: %E' | xargs)"
        try:
            self.wait_until(f'[ "{shown}" = {shlex.quote(state)} ]')
        except AssertionError as error:
            log = "tail -n 40 /var/log/slurm/slurmctld.log /var/log/slurm/slurmd.log"
            error.add_note(self.ask(f"scontrol show node {NODE}; scontrol show job; {log}"))
            raise

    def queue(self, seconds: int, name: str = "train", options: str = "--gres=gpu:1") -> str:
        """Submit a job as Debian's user nobody, and return its id."""
        options += f" --parsable --chdir=/ --output=/dev/null --job-name={shlex.quote(name)}"
        as_user = "setpriv --reuid=65534 --regid=65534 --clear-groups"
        return self.ask(f"{as_user} sbatch {options} --wrap='sleep {seconds}'")

    def submit(self, seconds: int, name: str = "train", options: str = "--gres=gpu:1") -> str:
        """Submit a job like `queue`, and wait until it runs."""
        job = self.queue(seconds, name, options)
        self.wait_until(f'[ "$(squeue --noheader --job {job} --format %T)" = RUNNING ]')
        return job

    def job_state(self, job: str) -> str:
        return self.ask(f"scontrol show job {job} | grep -o 'JobState=[A-Z]*'").partition("=")[2]
