# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show leases on a host of the demo.

Two users take leases, and a third request is refused with the free amounts in the message. Then both leases are given
back.
"""

from __future__ import annotations

import json
import time

from tests.lab.fleet import FleetError
from tests.lab.nvidia_smi import Run
from tests.lab.verify_layout import podman_run

HOST = "l40s"
#: Users with the arguments of their leases. Both users are members of the group that the inventory names.
TAKEN = {"alice": "--memory 8GiB --sm 20", "bob": "--memory 20GiB --sm 30"}
REFUSED = "--memory 24GiB --sm 40"
#: Exit status of a refused lease.
EXIT_REFUSED = 125
#: Timeout in seconds for leases to start and to end.
PATIENCE_SECONDS = 60.0


def show() -> list[str]:
    """Show leases, and return the checks that failed.

    Raises FleetError if a step fails.
    """
    run = podman_run(HOST)
    for user, size in TAKEN.items():
        _must(run, f"id {user} >/dev/null 2>&1 || useradd --create-home --groups users {user}")
        print(f"{user}@{HOST}$ gpu-layout lease {size} -- sleep infinity &")
        _must(run, f"systemd-run --quiet --collect --uid={user} gpu-layout lease {size} -- sleep infinity")
    _wait_for(run, len(TAKEN))
    print(_must(run, "gpu-layout lease list").rstrip())
    wrong = [f"{user} has no lease" for user in TAKEN if user not in {row["account"] for row in _rows(run)}]

    print(f"\nalice@{HOST}$ gpu-layout lease {REFUSED} -- true")
    status, output = run(f"runuser --user alice -- gpu-layout lease {REFUSED} -- true 2>&1")
    print(output.rstrip())
    if status != EXIT_REFUSED or "Free is: " not in output:
        wrong.append(f"a lease that does not fit ended with status {status}, and not with what is free")

    print(f"\nroot@{HOST}# gpu-layout lease end NUMBER")
    for row in _rows(run):
        print(_must(run, f"gpu-layout lease end {row['number']}").rstrip())
    _wait_for(run, 0)
    print(_must(run, "gpu-layout lease list").rstrip())
    left = [line for line in _must(run, "vgpu-run --list").splitlines() if line.startswith("lease-")]
    return wrong + [f"{line.split()[0]} still has a quota" for line in left]


def _rows(run: Run) -> list[dict]:
    return json.loads(_must(run, "gpu-layout lease list --json"))["leases"]


def _must(run: Run, command: str) -> str:
    """Run a command that must succeed, and return its output."""
    status, output = run(command)
    if status != 0:
        raise FleetError(f"{HOST}: {command} ended with status {status}: {output.strip()[-500:]}")
    return output


def _wait_for(run: Run, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(rows := [row for row in _rows(run) if row["state"] != "waiting"]) != count:
        if time.monotonic() > deadline:
            raise FleetError(f"{HOST} has {len(rows)} leases after {PATIENCE_SECONDS:.0f} s, and not {count}")
        time.sleep(0.2)
