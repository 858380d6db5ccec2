#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the demonstration of `make demo`, after the setup.

Starts a bare fleet and runs site.yml on it twice. Compares the result with the output of nvidia-smi and the metrics in
Prometheus. Then audits the fleet with a recorded history, follows the proposal, audits it again, and leases parts of
GPUs. Exits with 0 only if the second run changed nothing, every host matches the inventory, Prometheus sees the fleet
without an alert, both audits have the expected verdicts, less is reserved and unused after the changes, and all leases
are given back. The durations are written to .lab/times.json for `make bench`. With --kubernetes, a cluster follows
(demo_kubernetes.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import demo_audit, demo_kubernetes, demo_leases, verify_layout, verify_monitoring
from tests.lab.fleet import LAB, FleetError, play, play_and_read, play_quietly

REPORT = LAB / "report" / "report.txt"
TIMES = LAB / "times.json"


def banner(text: str) -> None:
    print(f"\n=== {text} ".ljust(100, "="), flush=True)


def run_demo(kubernetes: bool) -> tuple[list[str], dict[str, float]]:
    """Run the demo. Return the failed checks, and each phase's duration in seconds."""
    wrong = []
    seconds = {}
    last = 8 if kubernetes else 7

    banner(f"1/{last}  Start the hosts, with a real systemd and no GPUs yet")
    REPORT.unlink(missing_ok=True)
    # Start with bare hosts each time, so that earlier changes to the fleet have no effect.
    seconds["start the hosts"] = play_quietly("tests/lab/destroy.yml", "destroy.log") + play_quietly(
        "tests/lab/create.yml", "create.log"
    )
    print(f"up in {seconds['start the hosts']:.0f} s")

    banner(f"2/{last}  ansible-playbook site.yml: plan every host, apply in waves, report")
    seconds["first run"] = play("site.yml")
    first_report = REPORT.read_text()

    banner(f"3/{last}  ansible-playbook site.yml again: nothing should change")
    run = play_and_read("site.yml", "second-run.json")
    seconds["second run"] = run.seconds
    if run.changes:
        wrong.append("the second run changed something")
        print(*(f"CHANGED  {change.host}: {change.play} / {change.task}" for change in run.changes), sep="\n")
    else:
        print(f"{len(run.hosts)} hosts, nothing changed ({run.seconds:.0f} s)")

    banner(f"4/{last}  Compare nvidia-smi on each host with the inventory")
    started = time.monotonic()
    if verify_layout.main([]) != 0:
        wrong.append("a host is not as the inventory asks")

    banner(f"5/{last}  Compare Prometheus on the monitoring host with the hosts")
    if verify_monitoring.main() != 0:
        wrong.append("the monitoring host does not see all GPUs")
    seconds["check"] = time.monotonic() - started

    banner(f"6/{last}  Audit services, stop an idle one, resize the two most wasteful, and audit again")
    started = time.monotonic()
    wrong += demo_audit.show()
    seconds["loop"] = time.monotonic() - started

    banner(f"7/{last}  Lease parts of GPUs: two leases, a third that does not fit, and all given back")
    started = time.monotonic()
    wrong += demo_leases.show()
    seconds["leases"] = time.monotonic() - started

    if kubernetes:
        banner(f"8/{last}  Start a Kubernetes cluster, and change the layout of a node beside a pod")
        started = time.monotonic()
        wrong += demo_kubernetes.show()
        seconds["Kubernetes"] = time.monotonic() - started

    banner("The report of the first run")
    print(first_report)
    return wrong, seconds


def note_times(temperature: str, total: float, loop: float) -> None:
    """Save how long a demo and its loop took.

    A demo is cold if nothing was set up before, and warm if everything was. The duration of any other demo is not
    comparable, so it is not saved.
    """
    if temperature in ("cold", "warm"):
        times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
        times[f"demo_{temperature}"] = round(total, 1)
        times["demo_loop"] = round(loop, 1)
        TIMES.write_text(json.dumps(times, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--started", type=float, default=time.time(), help="when `make demo` began, seconds since 1970")
    parser.add_argument("--temperature", default="unknown", help="cold (nothing was set up), warm (all was) or partly")
    parser.add_argument("--kubernetes", action="store_true", help="show a Kubernetes cluster too, which takes Go")
    options = parser.parse_args()
    set_up = time.time() - options.started
    try:
        wrong, seconds = run_demo(options.kubernetes)
    except FleetError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1

    total = time.time() - options.started
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in {"set up": set_up, **seconds}.items())
    banner("Done" if not wrong else "FAILED")
    print(f"{total:.0f} s in all ({options.temperature}): {spent}")
    if wrong:
        print(*(f"demo: {sentence}" for sentence in wrong), sep="\n", file=sys.stderr)
        return 1
    if not options.kubernetes:
        note_times(options.temperature, total, seconds["loop"])
    print("The second run changed nothing. Every GPU is as the inventory asks, and Prometheus sees it.")
    print(f"The report:   {REPORT} (also .json, .html)")
    print("All audits:   {}\nThe audit:    {}\nThe proposal: {}".format(*demo_audit.PAGES))
    print("A host:       .lab/bin/podman exec -it openfleet-demo-h100 bash")
    print("Remove all:   make clean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
