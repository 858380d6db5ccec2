# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test show, plan, apply and export of gpu-layout against the simulated NVML."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml

from tests.integration.patience import PATIENCE_SECONDS, wait_until
from tests.thorough import THOROUGH

H100 = [{"model": "H100-80GB", "count": 2}]
HALVES = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
LINE = "gpu 0: enable MIG mode, create 3g.40gb@0, create 3g.40gb@4"


@pytest.mark.host_python
def test_plan_prints_and_changes_nothing(host):
    host.simulated.create(H100)
    layout = host.layout(HALVES)
    assert host("plan", "--layout", layout).stdout.splitlines() == [
        LINE,
        "Plan: 2 to create, 0 to destroy, 0 kept; 1 GPU to change",
    ]
    host("plan", "--layout", layout, "--exit-code", status=2)
    told = json.loads(host("plan", "--layout", layout, "--json").stdout)
    assert told == {
        "changed": True,
        "plan": [LINE],
        "counts": {"create": 2, "destroy": 0, "keep": 0, "gpus_changed": 1},
        "busy": [],
        "cut_off": False,
    }
    assert host.seen() == {0: [], 1: []}


def test_apply_is_idempotent_and_agrees_with_the_module(host):
    host.simulated.create(H100)
    layout = host.layout(HALVES)
    assert host("apply", "--layout", layout).stdout.splitlines() == [
        LINE,
        "Done: 2 created, 0 destroyed, 0 kept; 1 GPU changed",
    ]
    assert host.seen() == {0: [("3g.40gb", 0), ("3g.40gb", 4)], 1: []}
    assert json.loads(host("apply", "--layout", layout, "--json").stdout)["changed"] is False
    host("plan", "--layout", layout, "--exit-code")
    assert host.module("mig", layout=HALVES)["changed"] is False


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"gpu_layout": HALVES}),
        yaml.safe_dump(HALVES),
        "# my host\ngpu_layout:\n  - {gpus: [0], sharing: mig, mig: [{profile: 3g.40gb, count: 2}]}\n",
    ],
)
def test_layout_can_be_json_or_yaml_with_or_without_its_name(host, text):
    host.simulated.create(H100)
    assert LINE in host("plan", "--layout", host.layout(text, "layout")).stdout
    assert LINE in host("plan", "--layout", "-", input=text).stdout


def test_yaml_layout_without_pyyaml_is_refused_with_a_fix(host):
    host.simulated.create(H100)
    (host.folder / "yaml.py").write_text("raise ImportError('as on a host without PyYAML')\n")
    # Python puts the folder of a script first on its path. If the script is a zip archive, the path starts with the
    # archive itself.
    program = f"import sys, runpy; sys.path.insert(0, {str(host.folder)!r}); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    arguments = host.words("plan", "--layout", host.layout("- {gpus: [0], sharing: shared}", "layout.yml"))
    done = host.simulated.run([arguments[0], "-c", program, *arguments[1:]], check=False)
    assert done.returncode == 1
    assert "has no PyYAML" in done.stderr and "python3-yaml" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{", "not valid JSON"),
        ("a: [", "not valid YAML"),
        ('[{"gpus": [0], "sharing": "migg"}]', "Did you mean mig?"),
        ('[{"gpus": [7], "sharing": "shared"}]', "gpu_layout[0].gpus[0]: this host has no GPU 7"),
        (
            '[{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 3}]}]',
            "The largest part that fits is",
        ),
    ],
)
def test_invalid_layout_is_an_error_and_changes_nothing(host, text, said):
    host.simulated.create(H100)
    done = host("apply", "--layout", host.layout(text), "--json", status=1)
    assert said in done.stderr
    assert json.loads(done.stdout)["error"]["problem"]
    assert host.seen() == {0: [], 1: []}


@pytest.mark.host_python
def test_missing_file_is_named(host):
    host.simulated.create(H100)
    assert (
        "/nowhere/layout.json: there is no such file"
        in host("plan", "--layout", "/nowhere/layout.json", status=1).stderr
    )


def test_failed_step_rolls_back(host):
    host.simulated.create(H100)
    host("apply", "--layout", host.layout(HALVES))
    there = host.seen()
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--code", "UNKNOWN")
    other = host.layout([{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}])
    done = host("apply", "--layout", other, "--json", status=1)
    assert json.loads(done.stdout)["error"]["outcome"] == "old"
    assert "the previous layout was restored" in done.stderr
    assert host.seen() == there


def test_next_run_completes_an_interrupted_one(host):
    host.simulated.create(H100)
    host("apply", "--layout", host.layout(HALVES))
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--code", "kill")
    other = host.layout([{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}], "other.json")
    host("apply", "--layout", other, status=-9)
    assert "an earlier run was interrupted" in host("plan", "--layout", other, "--exit-code", status=2).stderr
    assert "this run started from the old layout" in host("apply", "--layout", other).stdout
    assert host.seen()[0] == [("1g.10gb", start) for start in range(7)]


def test_layout_is_not_touched_during_another_run(host):
    host.simulated.create(H100)
    layout = host.layout(HALVES)
    (host.folder / "state.d").mkdir()
    with (host.folder / "state.d" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = host("apply", "--layout", layout, "--lock-timeout", "0", status=1)
    assert "another run is changing the layout" in done.stderr
    assert host.seen() == {0: [], 1: []}


def has_open(pid, path):
    with contextlib.suppress(OSError):
        return any(file.samefile(path) for file in Path("/proc/%d/fd" % pid).iterdir() if file.exists())
    return False


def test_run_ends_at_once_after_sigterm(host):
    host.simulated.create(H100)
    words = host.words("apply", "--layout", host.layout(HALVES), "--lock-timeout", str(2 * PATIENCE_SECONDS))
    (host.folder / "state.d").mkdir()
    with (host.folder / "state.d" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = host.simulated.popen(words)
        lock = host.folder / "state.d" / "lock"
        # Wait until the run has opened the lock. Before, SIGTERM would end the run without its own handler.
        wait_until(lambda: run.poll() is not None or has_open(run.pid, lock), "it waits for the lock")
        assert run.poll() is None, "it did not wait for the lock"
        run.terminate()
        assert run.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
    assert host.seen() == {0: [], 1: []}


def test_apply_waits_for_a_late_driver(host):
    host.simulated.create(H100)
    late = host.folder / "late"
    late.mkdir()
    here, host.simulated.library = host.simulated.library, late
    words = [*host.words("apply", "--layout", host.layout(HALVES)), "--driver-timeout"]
    assert "NVML does not start" in host.simulated.run([*words, "0"], check=False).stderr
    run = host.simulated.popen([*words, str(PATIENCE_SECONDS)])
    time.sleep(1)
    assert run.poll() is None, "it did not wait"
    shutil.copy(here / "libnvidia-ml.so.1", late / "new")
    (late / "new").rename(late / "libnvidia-ml.so.1")
    assert run.wait(PATIENCE_SECONDS) == 0
    assert host.seen()[0] == [("3g.40gb", 0), ("3g.40gb", 4)]


LAYOUTS = {
    "H100-80GB": [
        {"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 2}, {"profile": "3g.40gb"}]},
        {
            "gpus": [1],
            "sharing": "mig",
            "mig": [
                {"profile": "4g.40gb", "compute_instances": ["1c.4g.40gb", "2c.4g.40gb"]},
                {"profile": "1g.10gb+me", "placement": 6},
            ],
        },
        {"gpus": [2], "sharing": "exclusive"},
        {"gpus": [3], "sharing": "mig", "mig": []},
    ],
    "A100-80GB": [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]}],
    "RTXPRO6000-96GB": [
        {
            "gpus": [0, 2],
            "sharing": "mig",
            "mig": [{"profile": "1g.24gb+me.all"}, {"profile": "1g.24gb-me", "count": 3}],
        },
        {"gpus": [1, 3], "sharing": "mig", "mig": [{"profile": "2g.48gb"}, {"profile": "1g.24gb+gfx"}]},
    ],
    "L40S-48GB": [{"gpus": [0], "sharing": "exclusive"}],
}


@pytest.mark.host_python
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (model, options)
        for model in LAYOUTS
        for options in ([], ["--pin-placements"], ["--select-by", "uuid"], ["--select-by", "pci"])
        # Test each model once and each option once, but not all combinations.
        if THOROUGH or not options or model == "H100-80GB"
    ],
)
def test_plan_for_the_export_is_empty(host, model, options):
    host.simulated.create([{"model": model, "count": 4}])
    host("apply", "--layout", host.layout(LAYOUTS[model]))
    there = host.seen()
    done = host("export", *options)
    assert done.stderr == ""
    told = host("plan", "--layout", host.layout(done.stdout, "export.yml"), "--exit-code").stdout
    assert "nothing to change" in told
    data = yaml.safe_load(done.stdout)["gpu_layout"]
    assert data == json.loads(host("export", *options, "--json").stdout)["gpu_layout"]
    named = [s for entry in data for s in (range(4) if entry["gpus"] == "all" else entry["gpus"])]
    assert len(named) == 4, "every GPU of the host is named, once"
    pinned = {i.get("placement") is not None for entry in data for i in entry.get("mig", ())}
    assert pinned <= {options == ["--pin-placements"]}
    # After the GPUs are empty, a pinned export restores every instance at its placement.
    if options == ["--pin-placements"]:
        host("apply", "--layout", host.layout([{"gpus": "all", "sharing": "shared"}]))
        host("apply", "--layout", str(host.folder / "export.yml"))
        assert host.seen() == there


TENANTS = [
    {
        "gpus": [0, 1],
        "sharing": "vgpu",
        "vgpu": {
            "policy": "contended",
            "oversubscribe": {"sm": 1.2},
            "tenants": [
                {"name": "a", "memory": "8GiB", "sm_percent": 60, "gpu": 1},
                {"name": "pair", "memory": "512MiB", "sm_percent": 60, "priority": 1, "gpus": 2},
            ],
        },
    }
]


def test_tenants_are_applied_shown_and_exported(host, monkeypatch):
    root = host.folder / "root"
    monkeypatch.setenv("OPENFLEET_VGPU_ROOT", str(root))
    host.simulated.create(H100)
    layout = host.layout(TENANTS)
    refused = host("plan", "--layout", layout, status=1).stderr
    assert "Install it with the role openfleet.gpu.vgpu_limiter." in refused
    library = root / "usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert "vgpu pair: add" in host("apply", "--layout", layout).stdout
    assert host("show").stdout.splitlines()[-2:] == [
        "vgpu a  gpu 1  8GiB and 60 %, contended, by preload  0 MiB used by 0 processes  not isolated from neighbours",
        "vgpu pair  gpu 0 and gpu 1  512MiB and 60 %, contended, priority 1, by preload  "
        "0 MiB and 0 MiB used by 0 processes  not isolated from neighbours",
    ]
    told = json.loads(host("show", "--json").stdout)["vgpu_tenants"]
    assert [(each["tenant"]["name"], each["isolation"]) for each in told] == [("a", "none"), ("pair", "none")]
    for options in ([], ["--pin-placements"]):
        done = host("export", *options)
        assert done.stderr == ""
        plan = host("plan", "--layout", host.layout(done.stdout, "export.yml"), "--exit-code").stdout
        assert "nothing to change" in plan
    by_preload = dict(TENANTS[0]["vgpu"], provider="preload")
    assert yaml.safe_load(done.stdout)["gpu_layout"] == [dict(TENANTS[0], gpus="all", vgpu=by_preload)]


def test_boot_restores_a_renamed_tenant(host, monkeypatch):
    """Run `gpu-layout apply` as gpu-layout.service does at boot.

    /run is empty, and no process of the tenant is running.
    """
    root = host.folder / "root"
    monkeypatch.setenv("OPENFLEET_VGPU_ROOT", str(root))
    host.simulated.create(H100)
    library = root / "usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so"
    library.parent.mkdir(parents=True)
    library.touch()

    def layout(**name):
        tenant = {"memory": "8GiB", "sm_percent": 60, **name}
        return host.layout([{"gpus": [0], "sharing": "vgpu", "vgpu": {"tenants": [tenant]}}])

    def boot(saved):
        shutil.rmtree(root / "run")
        return host("apply", "--driver-timeout", "30", "--layout", saved).stdout

    def there():
        (seen,) = json.loads(host("show", "--json").stdout)["vgpu_tenants"]
        regions = [path.parent.name for path in (root / "run").rglob("region.1")]
        quotas = sorted(path.parent.name for path in (root / "etc").rglob("quota"))
        return seen["tenant"]["name"], seen["outdated"], quotas, regions

    host("apply", "--layout", layout(name="a"))
    # The role saved the layout, but the host restarted before applying it.
    assert "vgpu b: rename tenant a to b" in boot(layout(name="b", was="a"))
    assert there() == ("b", [], ["a", "b"], ["a"])
    assert "vgpu b: rewrite its files" in boot(layout(name="b", was="a"))
    assert there() == ("b", [], ["a", "b"], ["a"])
    assert "vgpu b: end the name a" in boot(layout(name="b"))
    assert there() == ("b", [], ["b"], ["a"])
    assert "vgpu b: rewrite its files" in boot(layout(name="b"))
    assert there() == ("b", [], ["b"], ["a"])


@pytest.mark.host_python
def test_export_reports_what_a_layout_cannot_express(host):
    host.simulated.create(H100)
    program = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceSetComputeMode(n.nvmlDeviceGetHandleByIndex(1), 2)"
    host.simulated.run([host.simulated.python, "-c", program])
    done = host("export")
    assert "gpu 1" in done.stderr and "prohibited" in done.stderr
    assert yaml.safe_load(done.stdout) == {"gpu_layout": [{"gpus": [0], "sharing": "shared"}]}


def test_show_lists_instances_and_their_users(host):
    host.simulated.create(H100)
    host("apply", "--layout", host.layout(HALVES))
    process = host.simulated.popen(["gpusim", "run", "--gpu", "1", "--memory", "1GiB", "--", "sleep", "300"])
    try:
        wait_until(lambda: "pid %d" % process.pid in host("show").stdout, "the process in gpu-layout show")
        shown = host("show").stdout
    finally:
        process.kill()
        process.wait()
    lines = shown.splitlines()
    assert lines[0].endswith("2 GPUs, simulated")
    info = host.module("gpu_info")
    uuids = [c["mig_uuid"] for i in info["gpus"][0]["mig"]["instances"] for c in i["compute_instances"]]
    assert [line.split()[:2] for line in lines[2:4]] == [["3g.40gb@0", uuids[0]], ["3g.40gb@4", uuids[1]]]
    told = json.loads(host("show", "--json", "--telemetry").stdout)
    assert [gpu["uuid"] for gpu in told["gpus"]] == [gpu["uuid"] for gpu in info["gpus"]]
    assert told["gpus"][0]["telemetry"]["power_watts"] > 0


@pytest.mark.parametrize(
    "arguments", [["plan", "--lock"], ["aply"], ["apply", "--lock-timeout", "-1"], ["fits"], ["show", "x"]]
)
def test_wrong_usage_is_status_2(host, arguments):
    assert "usage: gpu-layout" in host.simulated.run([*host.words("show")[:2], *arguments], check=False).stderr
    assert host.simulated.run([*host.words("show")[:2], *arguments], check=False).returncode == 2


@pytest.mark.parametrize("name", ["show", "plan", "apply", "export", "fits", "import"])
def test_every_subcommand_has_help(host, name):
    done = host.simulated.run([*host.words("show")[:2], name, "--help"])
    assert "--json" in done.stdout and "usage: gpu-layout %s" % name in done.stdout


def _shows_the_wait(host, layout, message):
    """Start a run that waits for busy GPUs, and end it once it prints that it waits."""
    log = host.folder / "waiting"
    words = ["apply", "--layout", layout, "--on-busy", "wait", "--busy-timeout", str(2 * PATIENCE_SECONDS)]
    with log.open("w") as output:
        run = host.simulated.popen(host.words(*words), stdout=output, stderr=output)
    try:
        wait_until(lambda: run.poll() is not None or re.search(message, log.read_text()), "the message")
        assert run.poll() is None, log.read_text()
    finally:
        run.kill()
        run.wait()


def test_busy_gpu_is_refused_waited_for_or_ended(host):
    host.simulated.create(H100)
    host("apply", "--layout", host.layout([{"gpus": [0], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]))
    gpusim = str(host.simulated.bin / "gpusim")
    job = host.simulated.popen([gpusim, "run", "--gpu", "0", "--gi", "0", "--memory", "1MiB", "--", "sleep", "300"])
    try:
        while not json.loads(host.simulated.gpusim("show", "--json"))["processes"]:
            assert job.poll() is None
        layout = host.layout(HALVES)
        refused = host("apply", "--layout", layout, "--json", status=1)
        assert "pid %d" % job.pid in json.loads(refused.stdout)["error"]["busy"][0]["who"][0]
        planned = host("plan", "--layout", layout, "--on-busy", "wait").stdout
        held = r"gpu 0 \(GPU-[0-9a-f]{8}\): 7g\.80gb@0 \(1 process\) is in use by pid %d\b" % job.pid
        assert re.search("blocking: " + held, planned)
        # With timeout 0, the command does not wait. Other tests cover the start and the end of a wait.
        waited = host("apply", "--layout", layout, "--on-busy", "wait", "--busy-timeout", "0", status=1)
        assert re.search("in use by pid %d" % job.pid, waited.stderr)
        _shows_the_wait(host, layout, "gpu-layout: waiting: " + held)
        threading.Thread(target=job.wait, daemon=True).start()
        done = host("apply", "--layout", layout, "--on-busy", "force").stdout
        assert "ended: pid %d" % job.pid in done
        assert host.seen()[0] == [("3g.40gb", 0), ("3g.40gb", 4)]
    finally:
        job.kill()
        job.wait()


ALL_MIG = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]
UNIT, OLD_UNIT = "[Unit]\nDescription=new\n", "[Unit]\nDescription=old\n"


@pytest.fixture
def on_trial(host):
    """Return a layout file and a unit file that are on trial until the next reboot.

    The GPUs cannot be reset, so the new layout needs a reboot. The installation has written the new files, and keeps
    the previous ones next to them.
    """
    host.simulated.create([{"model": "A100-80GB", "count": 2}])
    for gpu in "01":
        host.gpusim("set", gpu, "passthrough", "on")
        host.gpusim("set", gpu, "reset_refused", "on")
    layout, unit = host.folder / "etc/openfleet-gpu/layout.json", host.folder / "etc/systemd/system/gpu-layout.service"
    for path, new, old in (
        (layout, json.dumps(ALL_MIG), json.dumps([{"gpus": "all", "sharing": "exclusive"}])),
        (unit, UNIT, OLD_UNIT),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(new)
        path.with_name(path.name + ".former").write_text(old)
    return layout, unit


def leftovers(host):
    return sorted(path.name for path in (host.folder / "etc").rglob("*") if path.suffix == ".former")


def test_boot_rolls_back_a_layout_without_pending_modes(host, on_trial):
    layout, unit = on_trial
    host.gpusim("reboot")
    done = host("apply", "--layout", str(layout))
    assert "the previous layout was restored" in done.stderr
    assert "exclusive" in layout.read_text() and unit.read_text() == OLD_UNIT
    assert leftovers(host) == []
    assert host.seen() == {0: [], 1: []}
    assert "compute mode exclusive_process" in host("show").stdout


def test_boot_removes_a_first_layout_on_trial(host, on_trial):
    layout, unit = on_trial
    for path in on_trial:
        path.with_name(path.name + ".former").write_text("")
    assert "there was no previous layout" in host("apply", "--layout", str(layout)).stderr
    assert not layout.exists() and not unit.exists() and leftovers(host) == []


def test_layout_of_the_operator_is_never_on_trial(host, on_trial):
    own = host.folder / "mine.json"
    own.write_text(json.dumps([{"gpus": "all", "sharing": "exclusive"}]))
    former = own.with_name("mine.json.former")
    former.write_text("[]")
    host("apply", "--layout", str(own))
    assert "exclusive" in own.read_text() and former.read_text() == "[]"
    assert leftovers(host) == sorted(path.name + ".former" for path in on_trial)


def test_boot_keeps_a_layout_with_pending_modes(host, on_trial):
    layout, unit = on_trial
    assert host.module("mig", layout=ALL_MIG, leave_pending=True)["reboot_required"]
    host.gpusim("reboot")
    done = host("apply", "--layout", str(layout))
    assert "was restored" not in done.stderr and "create 7g.80gb@0" in done.stdout
    assert json.loads(layout.read_text()) == ALL_MIG and unit.read_text() == UNIT and leftovers(host) == []
    # The host boots a second time before the run that requested the reboot reconnects. Then no file is on trial any
    # longer.
    assert "was restored" not in host("apply", "--layout", str(layout)).stderr


def test_refused_or_reverted_pending_modes_do_not_keep_the_layout(host, on_trial):
    layout, _unit = on_trial
    host.module("mig", layout=ALL_MIG, leave_pending=True)
    # A later run that may not reboot reverts the pending modes.
    assert host.module("mig", layout=ALL_MIG)["reboot_required"]
    assert "was restored" in host("apply", "--layout", str(layout)).stderr
    assert "exclusive" in layout.read_text()
