# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure site.yml in the lab: a run without changes, and the demo's times."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.benchmark import naive_site
from tests.lab.fleet import LAB, FleetError, Run, play_and_read, play_quietly

#: The demo's GPU hosts, with settings that make site.yml run every role on them.
INVENTORY = ("-i", "inventories/simulated", "-i", "tests/benchmark/inventory")
ROLES = tuple(
    f"openfleet.gpu.{name} :"
    for name in ("gpu_simulator", "nvidia_driver", "container_toolkit", "gpu_layout", "dcgm_exporter")
)


FIGURES = (
    "demo_cold",
    "demo_loop",
    "demo_warm",
    "site_bytes_per_host_noop",
    "site_module_executions_naive",
    "site_module_executions_noop",
    "site_seconds_per_host_noop",
)


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    yield from demo_times()
    yield from run_without_changes("l40s" if options.get("SMALL") else "gpu_hosts")


def demo_times():
    """Yield the times that the last cold and the last warm `make demo` recorded.

    The loop is the part that audits, reclaims, resizes and audits again.
    """
    noted = LAB / "times.json"
    times = json.loads(noted.read_text()) if noted.exists() else {}
    for name, how in (
        ("demo_cold", "`make clean demo`"),
        ("demo_warm", "`make demo` a second time"),
        ("demo_loop", "`make demo`"),
    ):
        yield (name, times[name], "s") if name in times else (name, None, f"not measured yet: {how} measures it")


def run_without_changes(hosts):
    """Run all roles, from simulator to exporter, on lab hosts without changes.

    There is nothing to drain. `hosts` is a pattern of the inventory.
    """
    inventory = (*INVENTORY, "--limit", f"{hosts},localhost")
    names = ("site_module_executions_noop", "site_seconds_per_host_noop", "site_bytes_per_host_noop")
    yield "site_module_executions_naive", naive_site.executions(), "count per host"
    os.environ["OPENFLEET_LAB"] = "bench-%s" % (os.environ.get("OPENFLEET_CHECKOUT") or "local")
    try:
        play_quietly("tests/lab/destroy.yml", "bench-destroy.log", *inventory)
        try:
            play_quietly("tests/benchmark/prepare.yml", "bench-create.log", *inventory)
            print("bench: site.yml with all roles on bare hosts, then twice more", file=sys.stderr)
            first = play_and_read("site.yml", "bench-first.json", *inventory)
            counter = PodmanCounter(LAB / "bin" / "podman-counted", LAB / "podman-calls", LAB / "podman-sent")
            counted = play_and_read(
                "site.yml", "bench-counted.json", *inventory, "-e", f"ansible_podman_executable={counter.path}"
            )
            # Time a separate run, because counting takes time.
            timed = play_and_read("site.yml", "bench-timed.json", *inventory)
        finally:
            play_quietly("tests/lab/destroy.yml", "bench-destroy.log", *inventory)
    except FleetError as error:
        reason = str(error).splitlines()[0]
        yield from ((name, None, reason) for name in names)
        return
    problem = what_is_wrong(first, counted, timed)
    if problem:
        yield from ((name, None, problem) for name in names)
        return
    hosts = len(timed.hosts)
    yield names[0], counter.module_executions() / hosts, "count per host"
    yield names[1], timed.seconds / hosts, "s"
    yield names[2], counter.bytes_sent() // hosts, "bytes per host"


def what_is_wrong(first: Run, *later: Run) -> str:
    """Return why the benchmark's results would be invalid.

    Return `""` if they are valid. Results are invalid if a role was disabled, or if a later run changed something.
    """
    brought = {(change.host, role) for change in first.changes for role in ROLES if change.task.startswith(role)}
    missing = sorted(f"{role} on {host}" for host in first.hosts for role in ROLES if (host, role) not in brought)
    if missing:
        return f"the first run brought nothing by {', '.join(missing)}"
    return "the run was to change nothing, and did" if any(run.changes for run in later) else ""


class PodmanCounter:
    """A wrapper for podman that logs each call and the input of each command.

    Each module that Ansible runs on a host is one Python process, which reads the module from standard input.
    """

    def __init__(self, path: Path, calls: Path, sent: Path) -> None:
        self.path, self.calls, self.sent = path, calls, sent
        calls.unlink(missing_ok=True)
        sent.unlink(missing_ok=True)
        podman = LAB / "bin" / "podman"
        path.write_text(f"""\
#!/bin/sh
printf '%s\\n' "$(echo $*)" >>'{calls}'
case " $* " in
*" exec --interactive "*) tee -a '{sent}' | '{podman}' "$@" ;;
*) exec '{podman}' "$@" ;;
esac
""")
        path.chmod(0o755)

    def bytes_sent(self) -> int:
        """Return how many bytes all hosts received.

        These are the modules and their arguments.
        """
        return self.sent.stat().st_size if self.sent.exists() else 0

    def module_executions(self) -> int:
        """Return how many modules ran on all hosts since the counter exists."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return sum("exec " in line and "python3" in line for line in lines)
