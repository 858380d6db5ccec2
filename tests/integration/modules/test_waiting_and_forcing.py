# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that `on_busy` waits for or ends blocking processes, and no others."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.integration.patience import PATIENCE_SECONDS, wait_until

H100 = [{"model": "H100-80GB", "count": 2}]
HALVES = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
WHOLE = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]

#: A program that ignores SIGTERM and then starts a command. An ignored signal stays ignored after exec, so the command
#: ignores it from the start.
STUBBORN = ["sh", "-c", "trap '' TERM; exec \"$@\"", "sh"]


@pytest.fixture
def jobs(host):
    """Return a function that starts a process on a GPU.

    The function returns when NVML lists the process. The fixture ends all processes after the test.
    """
    started = []

    def start(gpu: int, command=("sleep", "300"), instance: int = 0, below=()) -> subprocess.Popen:
        place = ["--gpu", str(gpu), "--gi", str(instance), "--memory", "1MiB"]
        job = host.popen([*below, str(host.bin / "gpusim"), "run", *place, "--", *command])
        started.append(job)
        while job.pid not in pids(host):
            assert job.poll() is None
        # NVML lists the process before the process runs the command.
        wait_until(lambda: "gpusim" not in Path(f"/proc/{job.pid}/cmdline").read_text(), "the command")
        return job

    yield start
    for job in started:
        job.kill()
        job.wait()


def pids(host) -> set[int]:
    state = json.loads(host.gpusim("show", "--json"))
    return {process["pid"] for process in state["processes"]}


@pytest.fixture
def whole(host):
    host.create(H100)
    assert host.module("mig", layout=WHOLE)["changed"]
    return host


def test_waiting_run_continues_after_the_job_ended(whole, jobs):
    job = jobs(1)
    threading.Timer(1.5, job.kill).start()
    threading.Thread(target=job.wait, daemon=True).start()
    done = whole.module("mig", layout=HALVES, on_busy="wait", busy_timeout=PATIENCE_SECONDS)
    assert done["changed"], done
    assert whole.seen() == {0: [("3g.40gb", 0), ("3g.40gb", 4)], 1: [("3g.40gb", 0), ("3g.40gb", 4)]}


def test_timeout_of_waiting_names_holders_and_changes_nothing(whole, jobs):
    job = jobs(1)
    there = whole.seen()
    failed = whole.module("mig", layout=HALVES, on_busy="wait", busy_timeout=1)
    assert failed["failed"]
    assert "pid %d" % job.pid in failed["msg"]
    (found,) = failed["busy"]
    assert re.fullmatch(r"gpu 1 \(GPU-[0-9a-f]{8}\): 7g\.80gb@0 \(1 process\)", found["what"])
    assert whole.seen() == there
    assert job.poll() is None


def test_waiting_run_holds_no_lock(whole, jobs):
    job = jobs(1)
    command = {"layout": HALVES, "on_busy": "wait", "busy_timeout": PATIENCE_SECONDS}
    other = threading.Thread(target=whole.module, args=("mig",), kwargs=command)
    other.start()
    try:
        # While the other run waits for GPUs, this run gets the lock at once.
        wait_until(lambda: not whole.module("mig", layout=WHOLE, lock_timeout=0).get("failed"), "the lock")
        assert other.is_alive()
    finally:
        job.kill()
        job.wait()
        other.join()


def test_dry_run_with_wait_or_force_names_blocking_processes(whole, jobs):
    job = jobs(0)
    for policy in ("wait", "force"):
        planned = whole.module("mig", check=True, layout=HALVES, on_busy=policy)
        assert planned["changed"]
        assert "pid %d" % job.pid in planned["busy"][0]["who"][0]
    assert job.poll() is None
    assert "busy" not in whole.module("mig", check=True, layout=WHOLE, on_busy="wait")


def test_force_ends_only_blocking_holders(whole, jobs):
    host = whole
    host.module("mig", layout=[dict(HALVES[0], gpus=[0])])
    doomed, spared = jobs(1), jobs(0, instance=1)
    done = host.module("mig", layout=HALVES, on_busy="force")
    assert done["changed"], done
    assert doomed.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert spared.poll() is None
    assert len(done["ended"]) == 1
    assert "pid %d" % doomed.pid in done["ended"][0]
    assert host.seen()[1] == [("3g.40gb", 0), ("3g.40gb", 4)]


def test_secret_in_a_command_line_is_not_shown(whole, jobs):
    # The message hides the secret, but the run still recognizes the process when it ends it.
    job = jobs(0, [sys.executable, "-c", "import signal; signal.pause()", "--api-key", "s3cret"])
    (holder,) = whole.module("gpu_info")["gpus"][0]["holders"]
    assert holder["command"].endswith(" --api-key ***")
    refused = whole.module("mig", layout=HALVES)
    assert "pid %d" % job.pid in refused["msg"]
    assert "s3cret" not in json.dumps(refused)
    done = whole.module("mig", layout=HALVES, on_busy="force")
    assert done["changed"], done
    assert job.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert "s3cret" not in json.dumps(done)


def test_force_waits_a_limited_time_for_a_process(whole, jobs):
    job = jobs(0, below=STUBBORN)
    threading.Thread(target=job.wait, daemon=True).start()
    done = whole.module("mig", layout=HALVES, on_busy="force", grace_period=1)
    assert done["changed"], done
    job.wait(PATIENCE_SECONDS)
    assert job.returncode == -signal.SIGKILL


def test_force_never_ends_the_run(whole):
    """Never end the run itself.

    The shell or program that started the run may have a GPU open.
    """
    # gpusim sets its own PYTHONPATH.
    python = ["env", "PYTHONPATH=" + whole.environment["PYTHONPATH"], sys.executable]
    inside = [str(whole.bin / "gpusim"), "run", "--gpu", "0", "--gi", "0", "--", *python]
    done = whole.run([*inside, "-c", FORCE, str(whole.folder / "state.d")])
    assert "it is part of this run" in done.stdout
    assert whole.seen()[0] == [("7g.80gb", 0)]


FORCE = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.plan import busy
from ansible_collections.openfleet.gpu.plugins.module_utils.change import converge
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
asked = parse_layout([{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}])
try:
    converge.converge(converge.Request(asked, sys.argv[1], "fail"), 0, busy.OnBusy("force"))
except ApplyError as error:
    print(error)
"""


def test_force_gives_up_on_restarting_processes(whole, jobs):
    """Stop trying after some attempts.

    A service may restart at once, so its processes outlive every attempt to end them.
    """
    jobs(1)
    there = whole.seen()
    done = whole.run([sys.executable, "-c", COMES_BACK, str(whole.folder / "state.d")])
    assert done.stdout.splitlines() == [
        "ended",
        "ended",
        "ended",
        "old: it was ended and started again; the previous layout was restored",
    ]
    assert whole.seen() == there


COMES_BACK = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import BusyError
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import MigDivision, WantedInstance
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal

with Session() as session:
    gpus = session.observe().gpus
    plan = planner.plan(gpus, [Target(g.uuid, "", "mig", MigDivision((WantedInstance("3g.40gb"),))) for g in gpus])
    try:
        clear = lambda disturbs: print("ended") is None
        apply_plan.apply(apply_plan.Context(session, Journal(sys.argv[1]), None, session.observe, clear), plan)
    except BusyError as error:
        print("%s: %s" % (error.outcome, error.problem))
"""
