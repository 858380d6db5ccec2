# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test driver calls that hang.

Each call must end at its timeout, and the error must name the call. Afterwards, the host's lock must be free. The
simulated NVML stops its caller before a call. The stopped caller reacts only to SIGKILL and SIGCONT. The tests shorten
timeouts where possible, so that they take only seconds.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.command_host import CommandHost, build_command
from tests.integration.nvml_child import state_of
from tests.integration.patience import PATIENCE_SECONDS, wait_until

H100 = [{"model": "H100-80GB", "count": 4}]
HALVES = {"sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}
LAYOUT = [dict(HALVES, gpus=[0])]
#: Runs a module with timeouts of two seconds.
MODULE = """
import runpy, sys
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import bounded_session
bounded_session.READ_SECONDS = bounded_session.START_SECONDS = bounded_session.CHANGE_SECONDS = 2.0
sys.argv[1:] = []
runpy.run_module("ansible_collections.openfleet.gpu.plugins.modules.%s", run_name="__main__", alter_sys=True)
"""


def python(host, code: str, stdin: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [host.python, "-c", code],
        env=host.environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def module(host, name: str, check: bool = False, **arguments) -> dict:
    """Run a module with short timeouts, and return its result."""
    if name not in ("gpu_info", "reclaim"):
        arguments.setdefault("state_directory", str(host.folder / "state.d"))
    told = {"_ansible_check_mode": check, "_ansible_remote_tmp": str(host.folder), "_ansible_keep_remote_files": False}
    done = python(host, MODULE % name, json.dumps({"ANSIBLE_MODULE_ARGS": dict(arguments, **told)}))
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def hang(host, call: str, nth: int = 1) -> None:
    host.gpusim("fail", call, "--nth", str(nth), "--code", "stop")


def uuid_of(host, index: int) -> str:
    return next(gpu["uuid"] for gpu in host.module("gpu_info")["gpus"] if gpu["index"] == index)


def lock_is_free(host) -> bool:
    path = host.folder / "state.d" / "lock"
    if not path.exists():
        return True
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def stopped_processes() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and state_of(path.name) == "T"]


QUESTIONS = [
    ("gpu_info", {"telemetry": False}, False),
    ("layout", {"layout": LAYOUT}, True),
    ("layout", {"layout": LAYOUT}, False),
    ("mig", {"layout": LAYOUT}, True),
    ("mps", {"layout": [{"gpus": [0], "sharing": "exclusive"}]}, True),
    (
        "time_slicing",
        {"layout": [{"gpus": [0], "sharing": "time_slicing", "time_slicing": {"slice": "default"}}]},
        True,
    ),
    ("vgpu_quota", {"layout": [{"gpus": [0], "sharing": "exclusive"}]}, True),
]


@pytest.mark.parametrize(("name", "arguments", "check"), QUESTIONS)
def test_hanging_read_ends_the_module_with_call_and_gpu(host, name, arguments, check):
    host.create(H100)
    uuid = uuid_of(host, 2)
    hang(host, "nvmlDeviceGetMemoryInfo", nth=3)
    done = module(host, name, check, **arguments)
    assert done["failed"], done
    assert done["msg"].startswith("gpu 2 (%s): nvmlDeviceGetMemoryInfo did not return within 2 s. " % uuid), done
    assert "Xid 119" in done["msg"] and done["msg"].endswith("Nothing was changed."), done
    assert done["host_fault"] and done["nvml"]["call"] == "nvmlDeviceGetMemoryInfo" and done["nvml"]["gpu"] == uuid
    assert lock_is_free(host)
    assert not stopped_processes(), "the hung child is ended"
    # The driver responds again, so the hang must not affect later runs.
    assert not module(host, name, True, **arguments).get("failed")


@pytest.mark.parametrize(
    ("function", "call"),
    [("nvmlInitWithFlags", "nvmlInit"), ("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")],
)
def test_call_without_gpu_is_reported_for_the_host(host, function, call):
    host.create(H100)
    hang(host, function)
    done = module(host, "layout", True, layout=LAYOUT)
    assert done["failed"] and done["host_fault"], done
    assert done["msg"].startswith("this host: %s did not return within 2 s. " % call), done
    assert done["msg"].endswith("Nothing was changed."), done


CHANGES = [
    ("nvmlDeviceSetMigMode", 1, LAYOUT),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", 2, LAYOUT),
    ("nvmlGpuInstanceCreateComputeInstance", 1, LAYOUT),
    ("nvmlDeviceSetComputeMode", 1, [{"gpus": [1], "sharing": "exclusive"}]),
]


@pytest.mark.parametrize(("call", "nth", "layout"), CHANGES, ids=[call for call, _nth, _layout in CHANGES])
def test_hang_during_a_change_keeps_the_journal_for_the_next_run(host, call, nth, layout):
    host.create(H100)
    gpu = layout[0]["gpus"][0]
    uuid = uuid_of(host, gpu)
    hang(host, call, nth)
    done = module(host, "layout", layout=layout)
    assert done["failed"] and done["outcome"] == "unknown" and done["host_fault"], done
    said = "gpu %d (%s): %s did not return within 2 s, in the middle of a change. " % (gpu, uuid, call)
    assert done["msg"].startswith(said), done
    assert "Nothing was changed" not in done["msg"] and "the next run" in done["msg"], done
    assert lock_is_free(host) and (host.folder / "state.d" / "journal.json").exists()
    again = module(host, "layout", layout=layout)
    assert not again.get("failed") and again["recovered"] in ("old", "new"), again
    assert not (host.folder / "state.d" / "journal.json").exists()
    assert not module(host, "layout", layout=layout)["changed"]


def test_hanging_recovery_keeps_the_journal(host):
    host.create(H100)
    hang(host, "nvmlDeviceCreateGpuInstanceWithPlacement", 2)
    assert module(host, "layout", layout=LAYOUT)["failed"]
    hang(host, "nvmlGpuInstanceDestroy")
    done = module(host, "layout", layout=LAYOUT)
    assert done["failed"] and "nvmlGpuInstanceDestroy did not return within 2 s" in done["msg"], done
    assert "The journal is kept" in done["msg"]
    assert lock_is_free(host)
    assert module(host, "layout", layout=LAYOUT)["recovered"] in ("old", "new")


def test_a_crash_of_the_library_is_reported_with_its_call(host):
    """Report the call in which the library crashed.

    Only the child that calls NVML dies, as it does after a fault in the driver's library.
    """
    host.create(H100)
    uuid = uuid_of(host, 1)
    code = """
import os
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import bounded_session, session
first = session.Session._processes
session.Session._processes = lambda self, handle: os.abort() if self._gpu_label.startswith("gpu 1 ") else first(self, handle)
with bounded_session.BoundedSession() as opened:
    for _again in range(2):
        try:
            opened.observe()
        except bounded_session.UnansweredCallError as error:
            print(error)
"""
    done = python(host, code)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1], (done.stdout, done.stderr)
    assert lines[0].startswith("gpu 1 (%s): the process that called NVML ended in nvmlDevice" % uuid), lines


def test_killed_run_leaves_no_child(host):
    host.create(H100)
    hang(host, "nvmlDeviceGetMemoryInfo")
    code = """
import os, signal, sys, time
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import bounded_session
opened = bounded_session.BoundedSession()
opened.__enter__()
print(opened._child, flush=True)
opened.observe()
"""
    with host.popen([host.python, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        child = int(run.stdout.readline())
        wait_until(lambda: state_of(child) == "T", "the child stops in its call")
        run.kill()
        run.wait(PATIENCE_SECONDS)
        wait_until(lambda: state_of(child) in ("", "Z", "X"), "the child ends with its parent")


def test_an_interrupted_request_does_not_answer_the_next_one(host):
    host.create(H100)
    code = """
import os, signal, threading, time
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import bounded_session
with bounded_session.BoundedSession() as opened:
    child = opened._child
    gpu = opened.observe().gpus[0].uuid
    os.kill(child, signal.SIGSTOP)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        opened.observe()
    except KeyboardInterrupt:
        print("interrupted")
    os.kill(child, signal.SIGCONT)
    print(opened.mig_mode(gpu))
"""
    done = python(host, code)
    assert done.stdout.splitlines() == ["interrupted", "(False, False)"], (done.stdout, done.stderr)


COMMANDS = {
    "show": ("show",),
    "export": ("export",),
    "plan": ("plan", "--layout", "LAYOUT", "--state-directory", "STATE"),
    "apply": ("apply", "--layout", "LAYOUT", "--state-directory", "STATE"),
    "metrics": ("metrics", "--layout", "LAYOUT", "--state-directory", "STATE"),
}
COMMAND = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.cli.main import main
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import bounded_session
bounded_session.READ_SECONDS = 2.0
sys.argv[1:] = %r
sys.exit(main())
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_hanging_command_names_the_call_and_frees_the_lock(host, name):
    host.create(H100)
    uuid = uuid_of(host, 0)
    hang(host, "nvmlDeviceGetMemoryInfo")
    layout = host.folder / "layout.json"
    layout.write_text(json.dumps(LAYOUT))
    paths = {"LAYOUT": str(layout), "STATE": str(host.folder / "state.d")}
    done = python(host, COMMAND % [paths.get(word, word) for word in COMMANDS[name]])
    assert done.returncode == 1, done
    assert "gpu 0 (%s): nvmlDeviceGetMemoryInfo did not return within 2 s" % uuid in done.stderr, done
    assert lock_is_free(host)
    assert not stopped_processes()


def test_metrics_do_not_call_a_driver_that_still_hangs(host):
    """Skip the driver while it hangs.

    A timer reads the metrics each minute. Without this rule, each reading would leave one more hanging process.
    """
    host.create(H100[:1])
    layout = host.folder / "layout.json"
    layout.write_text("[]")
    host.gpusim("calls", "--clear")
    code = COMMAND.replace(
        "sys.argv[1:]",
        """
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics import look
look.hung_children = lambda: [4711]
sys.argv[1:]""",
    )
    words = ["metrics", "--layout", str(layout), "--state-directory", str(host.folder / "state.d")]
    done = python(host, code % words)
    assert done.returncode == 1 and "an earlier NVML call has not returned (pid 4711)" in done.stderr, done
    assert "nvmlInit" not in host.gpusim("calls")


def test_a_user_waits_half_a_minute_for_a_reading(host, tmp_path):
    host.create(H100[:1])
    command = CommandHost(host, build_command(tmp_path / "gpu-layout"))
    hang(host, "nvmlDeviceGetMemoryInfo")
    done = command("apply", "--layout", command.layout(LAYOUT), status=1, timeout=PATIENCE_SECONDS)
    assert "nvmlDeviceGetMemoryInfo did not return within 30 s" in done.stderr, done


def test_service_leaves_only_one_hung_child(host):
    """Leave only one child that SIGKILL does not end, as in uninterruptible sleep."""
    host.create(H100[:1])
    hang(host, "nvmlDeviceGetMemoryInfo")
    code = """
import os, signal
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import child_process
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import bounded_session
bounded_session.READ_SECONDS = 2.0
child_process._REAP_SECONDS = 0.1
kill, started = os.killpg, []
start = child_process.start
child_process.start = lambda *given: started.append(start(*given)) or started[-1]
child_process.os.killpg = lambda child, number: None
for _again in range(3):
    try:
        with bounded_session.BoundedSession() as opened:
            print(len(opened.observe().gpus))
    except bounded_session.UnansweredCallError as error:
        print(error.problem)
print(len(started))
child_process.os.killpg = kill
kill(started[0], signal.SIGKILL)
os.waitid(os.P_PID, started[0], os.WEXITED | os.WNOWAIT)
with bounded_session.BoundedSession() as opened:
    print(len(opened.observe().gpus))
"""
    done = python(host, code)
    problem = "nvmlDeviceGetMemoryInfo did not return within 2 s"
    assert done.stdout.splitlines() == [problem] * 3 + ["1", "4"], (done.stdout, done.stderr)
