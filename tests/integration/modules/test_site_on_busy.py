# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run site.yml with busy GPUs, for each value of gpu_layout_on_busy."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time

import pytest

from tests.integration.patience import PATIENCE_SECONDS
from tests.integration.simulated_fleet import Fleet

WHOLE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]
HALVES = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]

HELD = r"gpu 0 \(GPU-[0-9a-f]{8}\): 7g\.80gb@0 \(1 process\) is in use by pid %d\b"


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two"])


@contextlib.contextmanager
def job_on(host):
    """Start a process on a host's whole GPU, so that the new layout does not fit."""
    assert host.module("mig", layout=WHOLE)["changed"]
    place = ["--gpu", "0", "--gi", "0", "--memory", "1MiB"]
    job = host.popen([str(host.bin / "gpusim"), "run", *place, "--", "sleep", "300"])
    try:
        while not json.loads(host.gpusim("show", "--json"))["processes"]:
            assert job.poll() is None
        (host.folder / "job.pid").write_text(str(job.pid))
        yield job
    finally:
        job.kill()
        job.wait()


@pytest.fixture
def job(fleet):
    """Start a process that uses a GPU on the second host only."""
    done = fleet.hosts["one"].module("mig", layout=WHOLE)
    assert done.get("changed"), done
    with job_on(fleet.hosts["two"]) as job:
        yield job


def play(fleet, *arguments, **variables):
    given = [word for name, value in variables.items() for word in ("-e", "gpu_layout_%s=%s" % (name, value))]
    run = fleet.play(dict.fromkeys(fleet.hosts, HALVES), *given, *arguments, waves=["100%"])
    return run.returncode, run.stdout + run.stderr


def test_fail_ends_the_run_before_any_change(fleet, job):
    status, said = play(fleet)
    assert status != 0
    assert "pid %d" % job.pid in said
    assert fleet.seen() == {"one": [("7g.80gb", 0)], "two": [("7g.80gb", 0)]}


@pytest.mark.thorough
def test_wait_shows_the_holder_and_continues_when_it_ends(fleet, job):
    lock = fleet.hosts["two"].folder / "state.d" / "lock"

    def end_it_when_two_pieces_of_the_wait_have_begun():
        # The lock file contains its last holder's pid. At first, this is the fixture's pid.
        seen = set()
        while len(seen) < 3:
            with contextlib.suppress(OSError, ValueError):
                seen.add(json.loads(lock.read_text())["pid"])
            time.sleep(0.05)
        job.kill()
        job.wait()

    threading.Thread(target=end_it_when_two_pieces_of_the_wait_have_begun, daemon=True).start()
    status, said = play(fleet, on_busy="wait", busy_timeout=120, busy_poll=2)
    assert status == 0, said
    # Newer versions of ansible-core print the role's name before the task's name.
    assert re.search(r"FAILED - RETRYING: \[two\]: .*Apply the layout", said), said
    assert "RETRYING: [one]" not in said
    # A real run prints the plans for hosts with a blocking workload before any change.
    plans = " ".join(said.split("PLAY [Apply", 1)[0].split())
    assert "blocking: gpu 0 (GPU-" in plans and "two: - " in plans and "one: - " not in plans
    assert re.search("two: waiting: " + HELD % job.pid, said), said
    assert fleet.seen() == {name: [("3g.40gb", 0), ("3g.40gb", 4)] for name in fleet.hosts}


@pytest.mark.parametrize(
    "on_busy",
    [pytest.param("wait", marks=pytest.mark.thorough), "drain", pytest.param("force", marks=pytest.mark.thorough)],
)
def test_dry_run_names_holders_to_wait_for_drain_or_end(fleet, job, on_busy):
    status, said = play(fleet, "--check", on_busy=on_busy)
    assert status == 0, said
    plans = " ".join(said.split("PLAY [Decide whether to continue]", 1)[1].split("PLAY [", 1)[0].split())
    assert re.search("two: - .*blocking: " + HELD % job.pid, plans), plans
    assert plans.count("blocking: ") == 1
    assert job.poll() is None
    assert fleet.seen() == {"one": [("7g.80gb", 0)], "two": [("7g.80gb", 0)]}


@pytest.mark.thorough
def test_wait_has_a_timeout(fleet, job):
    status, said = play(fleet, on_busy="wait", busy_timeout=3, busy_poll=60)
    assert status != 0
    assert "RETRYING" not in said
    assert re.search("Failed: two: " + HELD % job.pid, said), said
    assert fleet.seen()["two"] == [("7g.80gb", 0)]
    assert job.poll() is None


@pytest.mark.thorough
def test_force_ends_the_holder(fleet, job):
    threading.Thread(target=job.wait, daemon=True).start()
    status, said = play(fleet, on_busy="force")
    assert status == 0, said
    assert job.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert fleet.seen() == {name: [("3g.40gb", 0), ("3g.40gb", 4)] for name in fleet.hosts}


@pytest.mark.thorough
def test_failed_host_of_a_wave_restores_clients_of_all_hosts(fleet):
    folder = "{{ gpu_layout_state_directory | dirname }}"
    commands = {
        "gpu_drain_commands_before": ["kill $(cat %s/job.pid)" % folder],
        "gpu_drain_commands_after": ["touch %s/back" % folder],
    }
    one, two = fleet.hosts.values()
    with job_on(one) as first, job_on(two) as second:
        for job in (first, second):
            threading.Thread(target=job.wait, daemon=True).start()
        one.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--code", "UNKNOWN")
        run = fleet.play(
            dict.fromkeys(fleet.hosts, HALVES),
            "-e",
            json.dumps(dict(commands, gpu_layout_on_busy="drain")),
            waves=["100%"],
        )
    said = run.stdout + run.stderr
    assert run.returncode != 0
    assert "Failed: one: " in said
    assert fleet.seen() == {"one": [("7g.80gb", 0)], "two": [("3g.40gb", 0), ("3g.40gb", 4)]}, said
    assert [(host.folder / "back").exists() for host in (one, two)] == [True, True], said
