#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a lab host has started, and name its failed units.

usage: host_state.py PODMAN CONTAINER [SECONDS]     exits with 1 and prints the reason if the start failed
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Callable

#: A function that runs a shell command on a lab host, and returns (status, output).
Run = Callable[[str], "tuple[int, str]"]

BOOT_SECONDS = 180
_POLL_SECONDS = 0.2
_JOURNAL_LINES = 5
#: systemd and Prometheus print this text if root has used up its inotify instances (inotify_init(2), EMFILE).
_NO_INOTIFY = "too many open files"
_HINT = "All lab hosts share fs.inotify.max_user_instances: raise it with sysctl, or stop some hosts (make lab-down)."


class HostError(Exception):
    """A lab host did not start.

    The message has the failed units and their last journal lines.
    """


def failed_units(run: Run) -> list[str]:
    """Return the names of the failed units, or [] if the host does not respond."""
    status, output = run("systemctl list-units --failed --plain --no-legend")
    return [line.split()[0] for line in output.splitlines() if line.strip()] if status == 0 else []


def describe_failures(run: Run) -> str:
    """Return failed units with their journals, or report missing inotify instances.

    Only the last lines of each journal are included. The result is "" if nothing failed. A service without an inotify
    instance can keep running and read no files. For example, Prometheus then has no targets.
    """
    units = failed_units(run)
    texts = []
    for unit in units:
        journal = run(f"journalctl --unit={unit} --lines={_JOURNAL_LINES} --no-pager --output=cat")[1].strip()
        texts.append(f"unit {unit} has failed: {journal or 'its journal is empty'}")
    status, line = run(f"journalctl --boot --no-pager --output=cat | grep -i -m 1 '{_NO_INOTIFY}'")
    if status == 0:
        texts.append(f"{line.strip()}\n{_HINT}")
    return "\n".join(texts)


def wait_until_started(run: Run, seconds: float = BOOT_SECONDS) -> None:
    """Wait until systemd has started everything on the host.

    Raises HostError if a unit fails, if the host lacks inotify instances, or after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        output = run("systemctl is-system-running")[1].strip()
        state = output.splitlines()[-1] if output else "unknown"
        if state in ("running", "degraded", "maintenance", "starting"):
            failures = describe_failures(run)
            if failures:
                raise HostError(failures)
        if state == "running":
            return
        if time.monotonic() > deadline:
            jobs = run("systemctl list-jobs --no-legend")[1].strip()
            raise HostError(f"the host did not start within {seconds:g} s: its state is {state}\n{jobs}".rstrip())
        time.sleep(_POLL_SECONDS)


def in_container(podman: str, container: str) -> Run:
    """Return a function that runs shell commands in a container."""

    def run(command: str) -> tuple[int, str]:
        done = subprocess.run(
            [podman, "exec", container, "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def main(podman: str, container: str, seconds: float = BOOT_SECONDS) -> int:
    try:
        wait_until_started(in_container(podman, container), seconds)
    except HostError as error:
        print(f"{container}: {error}", file=sys.stderr)
        # Print the state of the container. It shows whether the container restarts again and again.
        look = [
            "inspect",
            "--type=container",
            "--format={{.State.Status}}, exit code {{.State.ExitCode}} {{.State.Error}}",
        ]
        for command in ([*look, container], ["logs", "--tail=5", container]):
            subprocess.run([podman, *command], stdout=sys.stderr, check=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:4])))
