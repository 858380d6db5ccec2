# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml where something is in the way: each value of gpu_layout_on_busy that needs no more than the host's GPUs."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time

import pytest
from simulated_fleet import Fleet

WHOLE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]
HALVES = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two"])


@pytest.fixture
def job(fleet):
    """A process on the GPU of the second host, which both hosts' new layout has no room for."""
    for host in fleet.hosts.values():
        assert host.module("mig", layout=WHOLE)["changed"]
    place = ["--gpu", "0", "--gi", "0", "--memory", "1MiB"]
    two = fleet.hosts["two"]
    job = two.popen([str(two.bin / "gpusim"), "run", *place, "--", "sleep", "300"])
    while not json.loads(two.gpusim("show", "--json"))["processes"]:
        assert job.poll() is None
    yield job
    job.kill()
    job.wait()


def play(fleet, **variables):
    given = [word for name, value in variables.items() for word in ("-e", "gpu_layout_%s=%s" % (name, value))]
    run = fleet.play(dict.fromkeys(fleet.hosts, HALVES), *given, waves=["100%"])
    return run.returncode, run.stdout + run.stderr


def test_fail_ends_the_run_before_anything_changes(fleet, job):
    status, said = play(fleet)
    assert status != 0
    assert "pid %d" % job.pid in said
    assert fleet.seen() == {"one": [("7g.80gb", 0)], "two": [("7g.80gb", 0)]}


def test_wait_shows_who_is_waited_for_and_goes_on_when_it_ends(fleet, job):
    lock = fleet.hosts["two"].folder / "state.d" / "lock"

    def end_it_when_two_pieces_of_the_wait_have_begun():
        # The lock names the process that held it last; the first is that of the fixture.
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
    assert "FAILED - RETRYING: [two]: Apply the layout" in said
    assert "RETRYING: [one]" not in said
    assert "two: waiting: gpu 0: 7g.80gb@0 (1 process) is in use by pid %d" % job.pid in said
    assert fleet.seen() == {name: [("3g.40gb", 0), ("3g.40gb", 4)] for name in fleet.hosts}


def test_wait_gives_up_when_its_time_is_over(fleet, job):
    status, said = play(fleet, on_busy="wait", busy_timeout=3, busy_poll=60)
    assert status != 0
    assert "RETRYING" not in said
    assert "Failed: two: gpu 0: 7g.80gb@0 (1 process) is in use by pid %d" % job.pid in said
    assert fleet.seen()["two"] == [("7g.80gb", 0)]
    assert job.poll() is None


def test_force_ends_it(fleet, job):
    threading.Thread(target=job.wait, daemon=True).start()
    status, said = play(fleet, on_busy="force")
    assert status == 0, said
    assert job.wait(5) == -signal.SIGTERM
    assert fleet.seen() == {name: [("3g.40gb", 0), ("3g.40gb", 4)] for name in fleet.hosts}
