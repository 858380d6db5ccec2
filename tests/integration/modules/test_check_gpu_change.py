# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run check-gpu --change on simulated GPUs, with refused and interrupted runs.

nvidia-smi is a stand-in for time slices. tests/clients/test_check_gpu_change.py uses the real one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.integration.nvml_child import go_on, stopped_children
from tests.integration.patience import wait_until
from tests.integration.simulated_host import ROOT
from tests.integration.slicing_nvidia_smi import NVIDIA_SMI
from tests.thorough import sample

TOOL = ROOT / "tools" / "check_gpu.py"
AREAS = ["change: MIG", "change: compute mode", "change: time slice"]
#: A program that only makes the changes. It does not read all GPUs before the changes, and writes no report after them.
CHANGES = """
import json, sys
sys.path[:0] = [%r, %r]
import change, signals
gpu, directory, calls = json.loads(sys.argv[1])
tell = lambda text: print(text, file=sys.stderr)
request = change.Request(gpu, directory, {int(k): v for k, v in calls.items()}, lambda index: [], tell)
try:
    with signals.as_exceptions():
        print(json.dumps([check.to_data() for check in change.checks(request)]))
except signals.Ended as ended:
    sys.exit(128 + ended.number)
""" % (str(ROOT / "collections"), str(ROOT / "tools" / "gpu_change"))
#: The number of changing NVML calls in a complete run on an A30. Each MIG mode change has a reset, and four instances
#: are created.
CALLS = {
    "nvmlDeviceSetMigMode": 2,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 4,
    "nvmlGpuInstanceCreateComputeInstance": 4,
    "nvmlComputeInstanceDestroy": 4,
    "nvmlGpuInstanceDestroy": 4,
    # The module sets the compute mode again after disabling MIG mode, because it cannot read the compute mode while MIG
    # mode is on.
    "nvmlDeviceSetComputeMode": 3,
}
KILLS = [
    (call, nth, action)
    for call, count in CALLS.items()
    for nth in range(1, count + 1)
    for action in ("kill", "kill-inside", "kill-after")
]


class Changes:
    """Run `--change` on a host with simulated GPUs."""

    def __init__(self, host) -> None:
        self.host, self.directory = host, host.folder / "state.d"
        self.record = self.directory / "check-gpu" / "found.json"

    def create(self, *gpus, time_slice="Default", **settings):
        self.host.create(list(gpus), **settings)
        tool = self.host.bin / "nvidia-smi"
        tool.write_text(NVIDIA_SMI % sys.executable)
        tool.chmod(0o755)
        uuids = [gpu["uuid"] for gpu in self.show()["gpus"]]
        (self.host.folder / "slices.json").write_text(json.dumps(dict.fromkeys(uuids, time_slice)))
        return self

    def command(self, gpu=None, calls=None):
        return [sys.executable, "-c", CHANGES, json.dumps([gpu, str(self.directory), calls or {}])]

    def run(self, gpu=None, calls=None):
        """Return the checks of an uninterrupted run."""
        done = self.host.run(self.command(gpu, calls))
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout)

    def killed(self, gpu=None):
        assert self.host.run(self.command(gpu), check=False).returncode == -9

    def show(self):
        return json.loads(self.host.gpusim("show", "--json"))

    def state(self):
        """Return the simulator's state of the GPUs, and the time slices.

        Leave out values that change without a command.
        """
        passing = ("power_mw", "energy_mj", "temperature_c", "memory")
        gpus = [{key: value for key, value in gpu.items() if key not in passing} for gpu in self.show()["gpus"]]
        return gpus, json.loads((self.host.folder / "slices.json").read_text())

    def set(self, call, *arguments):
        script = "import pynvml as n; n.nvmlInit(); n.%s(n.nvmlDeviceGetHandleByIndex(0), *%r)" % (call, arguments)
        self.host.run([sys.executable, "-c", script])


@pytest.fixture
def changes(host):
    return Changes(host)


def outcomes(checks):
    return {check["outcome"] for check in checks}


def refused(checks, reason):
    """Return whether nothing changed and each area reports the reason."""
    return [check["area"] for check in checks] == AREAS and all(reason in check["reason"] for check in checks)


def of(checks, area):
    return [check for check in checks if check["area"] == area]


def test_everything_is_changed_verified_and_restored(changes):
    changes.create({"model": "H100-80GB", "count": 2})
    before = changes.state()
    folder = changes.host.folder / "report"
    command = [sys.executable, str(TOOL), "--change", "--library", "none", "--directory", str(folder)]
    done = changes.host.run([*command, "--state-directory", str(changes.directory), "--gpu", "1"])
    checks = json.loads((folder / "gpu-check.json").read_text())["checks"]
    made = [check for check in checks if check["area"].startswith("change: ")]
    assert [check for check in made if check["outcome"] == "differs"] == [], done.stdout
    assert {check["gpu"] for check in made} == {1}
    by_name = {(check["area"], check["what"]): check for check in made}
    places = ", ".join("1g.10gb@%d" % start for start in range(7))
    assert by_name["change: MIG", "7 instances of 1g.10gb"]["found"] == places
    assert by_name["change: MIG", "MIG devices with different UUIDs"]["found"] == "7"
    # In MIG mode, gpu_info and every NVML function read each instance.
    assert by_name["change: MIG, NVML", "nvmlDeviceGetMigMode"]["found"].lower() in ("yes, yes", "1, 1")
    assert by_name["change: MIG, model file", "profiles.1g.10gb.profile_id"]["outcome"] == "passed"
    assert {check["outcome"] for check in of(made, "change: compute mode")} == {"passed"}
    assert {check["outcome"] for check in of(made, "change: time slice")} == {"passed"}
    (restored,) = of(made, "change: restored")
    assert (restored["outcome"], restored["found"]) == ("passed", "MIG off, compute mode default")
    assert "change: restored" in (folder / "gpu-check.html").read_text()
    assert changes.state() == before
    assert not changes.record.parent.exists()


@pytest.mark.parametrize("model", ["A30-24GB", "H100-80GB"])
def test_any_original_state_is_restored(changes, model):
    changes.create({"model": model}, time_slice="Short")
    changes.set("nvmlDeviceSetComputeMode", 3)
    before = changes.state()
    assert before[0][0]["compute_mode"] == "EXCLUSIVE_PROCESS"
    checks = changes.run()
    assert outcomes(checks) == {"passed"}, checks
    assert [check["found"] for check in of(checks, "change: compute mode") if "read back" in check["what"]] == [
        "default", "exclusive_process",
    ]  # fmt: skip
    assert [check["found"] for check in of(checks, "change: time slice") if "read back" in check["what"]] == [
        "long", "short",
    ]  # fmt: skip
    assert changes.state() == before


def test_enabled_mig_mode_stays_enabled(changes):
    changes.create({"model": "A30-24GB"})
    assert changes.host.module("mig", layout=[{"gpus": [0], "sharing": "mig", "mig": []}])["changed"]
    before = changes.state()
    checks = changes.run()
    assert of(checks, "change: MIG")[0]["outcome"] == "passed"
    assert "MIG mode" in of(checks, "change: compute mode")[0]["reason"]
    assert "MIG mode" in of(checks, "change: time slice")[0]["reason"]
    assert changes.state() == before


def test_gpu_without_mig_gets_the_other_changes(changes):
    changes.create({"model": "L40S-48GB"})
    before = changes.state()
    checks = changes.run()
    assert [(check["outcome"], check["reason"]) for check in of(checks, "change: MIG")] == [
        ("not run", "this GPU has no MIG")
    ]
    assert outcomes(check for check in checks if check["area"] != "change: MIG") == {"passed"}
    assert changes.state() == before


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_without_root_nothing_is_changed(changes):
    changes.create({"model": "H100-80GB"})
    before = changes.state()
    # The interpreter may be in a folder that another user cannot read, such as root's home. So import first, and then
    # change the user.
    become = "import os; os.setgid(65534); os.setuid(65534)\n"
    text = CHANGES.replace("gpu, directory", become + "gpu, directory", 1)
    done = changes.host.run([sys.executable, "-c", text, json.dumps([None, str(changes.directory), {}])])
    assert refused(json.loads(done.stdout), "needs root")
    assert changes.state() == before and not changes.directory.exists()


def test_busy_gpu_is_refused_and_another_is_used(changes):
    changes.create({"model": "H100-80GB", "count": 2})
    with subprocess.Popen(
        [str(changes.host.bin / "gpusim"), "run", "--gpu", "0", "--memory", "1GiB", "--", "sleep", "300"],
        env=changes.host.environment,
    ) as job:
        try:
            wait_until(lambda: changes.show()["processes"], "the process is on the GPU")
            before = changes.state()
            assert refused(changes.run(0), "GPU 0 is in use: pid %d" % job.pid)
            assert changes.state() == before
            assert {check["gpu"] for check in changes.run()} == {1}
        finally:
            job.kill()


def test_gpu_with_instances_is_refused_and_keeps_them(changes):
    changes.create({"model": "H100-80GB"})
    layout = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]
    assert changes.host.module("mig", layout=layout)["changed"]
    before = changes.state()
    assert refused(changes.run(), "GPU 0 has instances already: 3g.40gb@")
    assert changes.state() == before


def test_pending_mode_is_refused(changes):
    changes.create({"model": "A30-24GB"})
    changes.host.gpusim("set", "0", "passthrough", "on")
    changes.set("nvmlDeviceSetMigMode", 1)
    before = changes.state()
    assert refused(changes.run(), "GPU 0 has a change of its MIG mode pending")
    assert changes.state() == before


def test_refused_reset_leaves_the_mode(changes):
    changes.create({"model": "A30-24GB"})
    changes.host.gpusim("set", "0", "passthrough", "on")
    changes.host.gpusim("set", "0", "reset_refused", "on")
    before = changes.state()
    checks = changes.run()
    (mig,) = of(checks, "change: MIG")
    assert mig["outcome"] == "not run" and "reboot needed" in mig["reason"]
    assert outcomes(check for check in checks if check is not mig) == {"passed"}
    assert changes.state() == before


def test_settings_that_a_reset_would_end_keep_mig_mode_off(changes):
    changes.create({"model": "A30-24GB"})
    limit = {"call": "nvmlDeviceGetPowerManagementLimit", "value": 150000}
    default = {"call": "nvmlDeviceGetPowerManagementDefaultLimit", "value": 165000}
    (mig,) = of(changes.run(0, {0: [limit, default]}), "change: MIG")
    assert mig["outcome"] == "not run" and "its power limit is 150000 instead of the default 165000" in mig["reason"]


def test_hidden_profiles_are_reported(changes):
    changes.create({"model": "H100-80GB"})
    changes.host.gpusim("set", "0", "profiles_without_mig", "off")
    (mig,) = of(changes.run(), "change: MIG")
    assert mig["outcome"] == "not run" and "550 or later" in mig["reason"]


@pytest.mark.parametrize("file, reason", [("journal.json", "was interrupted"), ("check-gpu/found.json", "is damaged")])
def test_unreadable_files_of_other_runs_are_not_guessed(changes, file, reason):
    changes.create({"model": "H100-80GB"})
    before = changes.state()
    (changes.directory / "check-gpu").mkdir(parents=True)
    (changes.directory / file).write_text("{}")
    assert refused(changes.run(), reason)
    assert changes.state() == before
    assert (changes.directory / file).exists()


def test_concurrent_run_is_named(changes):
    changes.create({"model": "H100-80GB"})
    changes.host.gpusim("fail", "nvmlDeviceSetComputeMode", "--code", "stop")
    with subprocess.Popen(changes.command(), env=changes.host.environment, stdout=subprocess.DEVNULL) as first:
        try:
            wait_until(lambda: stopped(first.pid), "the first run is at its change")
            assert refused(changes.run(), "pid %d " % first.pid)
        finally:
            first.kill()
    assert changes.run(7)[0]["outcome"] == "passed"


def test_unknown_index_is_reported(changes):
    changes.create({"model": "H100-80GB"})
    assert refused(changes.run(7), "the host has no GPU 7")


# --- failures, kills and signals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("nvmlDeviceSetMigMode", marks=pytest.mark.thorough),
        "nvmlGpuInstanceCreateComputeInstance",
        pytest.param("nvmlGpuInstanceDestroy", marks=pytest.mark.thorough),
        "nvmlDeviceSetComputeMode",
    ],
)
def test_failed_step_is_a_difference_and_everything_is_restored(changes, call):
    changes.create({"model": "A30-24GB"})
    before = changes.state()
    changes.host.gpusim("fail", call, "--nth", "2", "--code", "UNKNOWN")
    checks = changes.run()
    assert "Unknown Error" in " ".join(check["found"] for check in checks if check["outcome"] == "differs"), checks
    assert of(checks, "change: restored")[-1]["outcome"] == "passed"
    assert changes.state() == before
    assert not changes.record.exists()


def test_kill_sweep_covers_all_calls(changes):
    changes.create({"model": "A30-24GB"})
    changes.host.gpusim("calls", "--clear")
    assert outcomes(changes.run()) == {"passed"}
    counted = {name: int(count) for count, name in map(str.split, changes.host.gpusim("calls").splitlines())}
    changing = {name: n for name, n in counted.items() if any(word in name for word in ("Set", "Create", "Destroy"))}
    assert changing == CALLS


@pytest.mark.parametrize("call, nth, action", sample(KILLS, 16))
def test_next_run_after_a_kill_restores_the_original_state(changes, call, nth, action):
    changes.create({"model": "A30-24GB"}, time_slice="Medium")
    before = changes.state()
    changes.host.gpusim("fail", call, "--nth", str(nth), "--code", action)
    changes.killed()
    assert changes.record.exists()
    # The run's GPU is unknown, so the run only restores the first GPU.
    restored, *others = changes.run(7)
    assert (restored["what"], restored["outcome"]) == ("state before an interrupted run", "passed"), restored
    assert refused(others, "the host has no GPU 7")
    assert changes.state() == before
    assert not changes.record.exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_the_time_slice_is_restored_and_next_run_continues(changes, when):
    changes.create({"model": "L40S-48GB"}, time_slice="Medium")
    before = changes.state()
    (changes.host.folder / "kill").write_text(when)
    changes.killed()
    (changes.host.folder / "kill").unlink()
    checks = changes.run()
    assert outcomes(checks) == {"passed", "not run"}
    assert [check["what"] for check in of(checks, "change: restored")] == [
        "state before an interrupted run", "original state",
    ]  # fmt: skip
    assert changes.state() == before


def test_run_without_change_reports_an_interrupted_one(changes):
    changes.create({"model": "H100-80GB"})
    changes.host.gpusim("fail", "nvmlGpuInstanceDestroy", "--code", "kill")
    changes.killed()
    there = changes.state()
    command = [sys.executable, str(TOOL), "--library", "none", "--directory", str(changes.host.folder)]
    done = changes.host.run([*command, "--state-directory", str(changes.directory)], check=False)
    assert "a GPU was changed and is not restored (%s)" % changes.record in done.stderr
    assert changes.state() == there


def test_foreign_instances_after_a_kill_stay(changes):
    changes.create({"model": "H100-80GB"})
    changes.host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--code", "kill")
    changes.killed()
    make = ROOT / "tests" / "integration" / "make_instance.py"
    changes.host.run([sys.executable, str(make), "0", "3g.40gb", "0"])
    there = changes.state()
    first, *others = changes.run()
    assert first["outcome"] == "differs" and "did not make: 3g.40gb@0" in first["found"]
    assert refused(others, "see above")
    assert changes.state() == there
    assert changes.record.exists()


ENDED_AT = [("nvmlGpuInstanceCreateComputeInstance", 2), ("nvmlGpuInstanceDestroy", 3), ("nvmlDeviceSetComputeMode", 2)]
SIGNALS = [(*where, number) for where in ENDED_AT for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("call, nth, number", sample(SIGNALS, 8))
def test_signal_ends_the_run_and_everything_is_restored(changes, call, nth, number):
    changes.create({"model": "A30-24GB"})
    before = changes.state()
    changes.host.gpusim("fail", call, "--nth", str(nth), "--code", "stop")
    with subprocess.Popen(changes.command(), env=changes.host.environment) as run:
        wait_until(lambda: stopped(run.pid), "the run is at its change")
        assert changes.record.exists()
        run.send_signal(number)
        # Send a second, different signal, as an impatient user does. The run still restores the state before it exits.
        run.send_signal(signal.SIGTERM)
        go_on(run.pid)
        assert run.wait() in (128 + number, 128 + signal.SIGTERM)
    assert changes.state() == before
    assert not changes.record.exists()


def test_ended_command_reports_it_and_writes_no_report(changes):
    changes.create({"model": "L40S-48GB"})
    before = changes.state()
    changes.host.gpusim("fail", "nvmlDeviceSetComputeMode", "--code", "stop")
    folder = changes.host.folder / "report"
    command = [sys.executable, str(TOOL), "--change", "--library", "none", "--directory", str(folder)]
    command += ["--state-directory", str(changes.directory)]
    with subprocess.Popen(command, env=changes.host.environment, stderr=subprocess.PIPE, text=True) as run:
        wait_until(lambda: stopped(run.pid), "the run is at its change")
        run.send_signal(signal.SIGTERM)
        go_on(run.pid)
        _output, said = run.communicate()
    assert run.returncode == 143, said
    assert said.splitlines()[-1] == "check-gpu: ended by SIGTERM, and wrote no report"
    assert changes.state() == before and not changes.record.exists() and not folder.exists()


def stopped(pid: int) -> bool:
    """Return whether the child process that calls NVML is stopped."""
    return bool(stopped_children(pid))
