# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for running lab hosts.

`make lab-up` starts the hosts, and OPENFLEET_LAB selects the fleet. A conftest.py imports the fixtures by name.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import testinfra
import yaml

from tests.lab.host_state import BOOT_SECONDS, Run, describe_failures

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORY = REPOSITORY / "inventories" / "simulated"

#: GPU hosts of inventories/simulated that the tests use. OPENFLEET_LIMIT can restrict them.
HOSTS = ["a100", "h100", "l40s", "pro6000"]
if os.environ.get("OPENFLEET_LIMIT", "all") != "all":
    HOSTS = sorted({*HOSTS} & {*os.environ["OPENFLEET_LIMIT"].split(",")})

#: The unit that restores a host's layout at boot.
BOOT_UNIT = "gpu-layout.service"

# Use the podman that tests/lab/prepare configured for this machine. `make` sets this path itself, but a manual run of
# pytest does not.
os.environ["PATH"] = f"{REPOSITORY / '.lab' / 'bin'}:{os.environ['PATH']}"


def container_name(host_name: str) -> str:
    """Return the name of the container of a lab host, for example `h100`."""
    return f"openfleet-{os.environ.get('OPENFLEET_LAB') or 'demo'}-{host_name}"


def changed_tasks(told: str) -> set[tuple[str, str]]:
    """Return (role, task, host) for each change in the output of ansible-playbook."""
    return {
        (part.partition("] **")[0], host)
        for part in told.split("\nTASK [")[1:]
        for host in re.findall(r"^changed: \[([^\s\]]+)", part, re.MULTILINE)
    }


def boot_time(host) -> str:
    """Return the start time of a lab host's first process.

    The time is in clock ticks (proc(5), stat). It is a text, because callers only compare it.
    """
    return host.check_output('cut -d" " -f22 /proc/1/stat')


def runner(host) -> Run:
    """Return a function that runs shell commands on a testinfra host.

    Functions of host_state take such a function.
    """

    def run(command: str) -> tuple[int, str]:
        done = host.run(command)
        return done.rc, done.stdout + done.stderr

    return run


def wait_until_up(host, after: str) -> None:
    """Wait until everything on a lab host has started or failed.

    `after` is the boot_time of an earlier boot. The host must have booted again since then.
    """
    deadline = time.monotonic() + BOOT_SECONDS
    up = f'[ "$(cut -d" " -f22 /proc/1/stat)" != {after} ] && systemctl is-system-running | grep -qE "running|degraded"'
    while host.run(up).rc != 0:
        if time.monotonic() > deadline:
            pytest.fail(no_restart(host, BOOT_SECONDS))
        time.sleep(0.1)


def no_restart(host, seconds: float) -> str:
    """Return the error message for a lab host that did not restart within `seconds`.

    The message includes the failed units.
    """
    return f"the host did not restart within {seconds:g} s. {describe_failures(runner(host))}".rstrip()


def reboot(host) -> None:
    """Restart a lab host, and wait until everything on it has started."""
    started = boot_time(host)
    host.run("systemctl reboot")
    wait_until_up(host, started)


@pytest.fixture(scope="session")
def lab_host():
    """Return a function from a lab host's name (such as `h100`) to its testinfra host."""

    def connect(host_name: str):
        host = testinfra.get_host(f"podman://{container_name(host_name)}")
        if host.run("true").rc != 0:
            pytest.fail(f"lab host {container_name(host_name)} does not answer: start it with `make lab-up`")
        return host

    return connect


@pytest.fixture(scope="session")
def host_vars():
    """Return a function from the name of a lab host to its variables.

    The variables come from inventories/simulated.
    """
    return lambda host_name: yaml.safe_load((INVENTORY / "host_vars" / f"{host_name}.yml").read_text())
