# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test gpu-layout metrics on simulated GPUs.

The metrics report drift until a repair. Each run removes an earlier run's metrics.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.nvml_child import go_on, stopped_children
from tests.integration.patience import wait_until
from tests.integration.simulated_host import ROOT

H100 = [{"model": "H100-80GB", "count": 3}]
HALF = [{"profile": "3g.40gb", "placement": 4}]
LAYOUT = [{"gpus": [0, 1], "sharing": "mig", "mig": HALF}, {"gpus": [2], "sharing": "exclusive"}]
MAKE = str(Path(__file__).resolve().parents[1] / "make_instance.py")
FILE = "openfleet_gpu_layout.prom"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(ROOT / ".lab/prometheus/usr/bin"))


@pytest.fixture
def laid_out(host):
    """Return a host whose three GPUs match LAYOUT, with an empty metrics directory."""
    host.simulated.create(H100)
    host("apply", "--layout", host.layout(LAYOUT))
    (host.folder / "textfile").mkdir()
    return host


def parsed(text):
    """Return {metric: {gpu_index: value}}.

    If a GPU has several samples of a metric, the value is a list.
    """
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            by_gpu = found.setdefault(sample.name, {})
            by_gpu.setdefault(sample.labels.get("gpu_index"), []).append(sample.value)
    return {name: {gpu: v[0] if len(v) == 1 else v for gpu, v in by.items()} for name, by in found.items()}


def written(host, *arguments, status=0):
    """Return the metrics that a run wrote to the directory, and its error output."""
    folder = host.folder / "textfile"
    layout = str(host.folder / "layout.json")
    done = host("metrics", "--textfile", str(folder), "--layout", layout, *arguments, status=status)
    assert done.stdout == ""
    assert [path.name for path in folder.iterdir()] == [FILE]
    return parsed((folder / FILE).read_text()), done.stderr


def drift(host):
    found, said = written(host)
    assert said == ""
    return found["openfleet_layout_drift"]


@pytest.mark.host_python
def test_applied_layout_has_no_drift(laid_out):
    before = time.time()
    found, said = written(laid_out)
    assert said == ""
    assert found["openfleet_layout_check_success"] == {None: 1}
    assert before <= found["openfleet_layout_check_timestamp_seconds"][None] <= time.time()
    assert found["openfleet_layout_drift"] == {"0": 0, "1": 0, "2": 0}
    assert found["openfleet_layout_differences"] == {"0": 0, "1": 0, "2": 0}
    # The metric has two series for GPU 0: one for the whole GPU and one for its instance.
    assert found["openfleet_holders"] == {"0": [0, 0], "1": [0, 0], "2": 0}
    assert (laid_out.folder / "textfile" / FILE).stat().st_mode & 0o777 == 0o644


def test_manual_change_is_drift_until_repaired(laid_out):
    laid_out.simulated.run([sys.executable, MAKE, "1", "1g.10gb", "0"])
    found, _said = written(laid_out)
    assert found["openfleet_layout_drift"] == {"0": 0, "1": 1, "2": 0}
    assert found["openfleet_layout_differences"] == {"0": 0, "1": 1, "2": 0}
    assert written(laid_out, "--unlisted", "keep")[0]["openfleet_layout_drift"] == {"0": 0, "1": 0, "2": 0}
    laid_out("apply", "--layout", str(laid_out.folder / "layout.json"), "--unlisted", "remove")
    assert drift(laid_out) == {"0": 0, "1": 0, "2": 0}


def test_reboot_without_restore_is_drift_until_restored(laid_out):
    laid_out.gpusim("reboot")
    found, _said = written(laid_out)
    assert found["openfleet_layout_drift"]["0"] == found["openfleet_layout_drift"]["1"] == 1
    laid_out("apply", "--layout", str(laid_out.folder / "layout.json"))
    assert drift(laid_out) == {"0": 0, "1": 0, "2": 0}


def test_process_counts_on_its_gpu_or_instance(laid_out):
    work = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo ready; exec sleep 600"
    command = ["gpusim", "run", "--gpu", "2", "--", "sh", "-c", work]
    with laid_out.simulated.popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            found, _said = written(laid_out)
        finally:
            running.send_signal(signal.SIGTERM)
    assert found["openfleet_holders"] == {"0": [0, 0], "1": [0, 0], "2": 1}
    # The metric has one series for each instance, and one for the whole GPU.
    seconds = found["openfleet_holders_cpu_seconds_total"]
    assert seconds.pop("2") > 0 and seconds == {"0": 0, "1": 0}
    assert found["openfleet_layout_drift"]["2"] == 0


def test_tenants_are_exported_and_a_manual_quota_is_drift(host, monkeypatch):
    root = host.folder / "root"
    monkeypatch.setenv("OPENFLEET_VGPU_ROOT", str(root))
    library = root / "usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    host.simulated.create([{"model": "H100-80GB", "count": 2}])
    vgpu = {"tenants": [{"name": "a", "memory": "8GiB", "sm_percent": 60}]}
    host("apply", "--layout", host.layout([{"gpus": [1], "sharing": "vgpu", "vgpu": vgpu}]))
    (host.folder / "textfile").mkdir()
    found, said = written(host)
    assert said == "" and found["openfleet_layout_drift"] == {"1": 0}
    assert found["openfleet_tenant_memory_limit_bytes"] == {"1": 8 * 2**30}
    assert found["openfleet_tenant_sm_limit_ratio"] == {"1": 0.6}
    assert found["openfleet_tenant_memory_used_bytes"] == found["openfleet_tenant_denied_total"] == {"1": 0}
    quota = root / "etc/openfleet-gpu/vgpu/a/quota"
    text = quota.read_text()
    quota.write_text(text.replace("sm 60", "sm 90"))
    assert quota.read_text() != text and drift(host) == {"1": 1}
    quota.write_text(text)
    assert drift(host) == {"1": 0}
    library.unlink()
    assert drift(host) == {"1": 1}


def test_lost_gpu_is_left_out_and_others_are_exported(laid_out):
    laid_out.gpusim("lose", "1")
    found, said = written(laid_out)
    assert said == ""
    assert found["openfleet_layout_check_success"] == {None: 1}
    assert found["openfleet_layout_drift"] == {"0": 0, "2": 0}
    assert set(found["openfleet_holders"]) == {"0", "2"}
    laid_out.simulated.run([sys.executable, MAKE, "0", "1g.10gb", "0"])
    assert drift(laid_out) == {"0": 1, "2": 0}
    laid_out.gpusim("restore", "1")
    assert drift(laid_out) == {"0": 1, "1": 0, "2": 0}


def test_failing_gpu_is_an_error_and_others_are_exported(laid_out):
    laid_out.gpusim("fail", "nvmlDeviceGetPciInfo_v3", "--nth", "2", "--code", "UNKNOWN")
    found, said = written(laid_out, status=1)
    assert found["openfleet_layout_check_success"] == {None: 0}
    assert found["openfleet_layout_drift"] == {"0": 0, "2": 0}
    assert "nvmlDeviceGetPciInfo" in said and "failed" in said


def test_without_nvml_old_metrics_are_removed(laid_out):
    written(laid_out)
    laid_out.gpusim("fail", "nvmlInitWithFlags", "--code", "DRIVER_NOT_LOADED")
    found, said = written(laid_out, status=1)
    assert set(found) == {"openfleet_layout_check_success", "openfleet_layout_check_timestamp_seconds"}
    assert found["openfleet_layout_check_success"] == {None: 0}
    assert "NVML does not start" in said


@pytest.mark.parametrize("text", [None, "[{", '[{"gpus": [0], "sharing": "migg"}]'])
def test_without_a_layout_holders_are_exported(laid_out, text):
    path = laid_out.folder / "layout.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    found, said = written(laid_out, status=1)
    assert found["openfleet_layout_check_success"] == {None: 0}
    assert set(found["openfleet_holders"]) == {"0", "1", "2"}
    assert "openfleet_layout_drift" not in found
    assert str(path) in said or "Did you mean mig?" in said


def test_gpus_are_not_read_while_a_run_changes_the_host(laid_out):
    laid_out.gpusim("calls", "--clear")
    with (laid_out.folder / "state.d" / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found, said = written(laid_out)
    assert found["openfleet_layout_check_success"] == {None: 0}
    assert set(found) == {"openfleet_layout_check_success", "openfleet_layout_check_timestamp_seconds"}
    assert "another run is changing the layout" in said
    assert "nvmlInit" not in laid_out.gpusim("calls"), "a reset is refused while a process has the GPU open"
    assert drift(laid_out) == {"0": 0, "1": 0, "2": 0}


def test_run_waits_for_a_scan_that_has_gpus_open(laid_out):
    laid_out.gpusim("fail", "nvmlDeviceGetCount_v2", "--code", "stop")
    layout = str(laid_out.folder / "layout.json")
    with laid_out.simulated.popen(laid_out.words("metrics", "--layout", layout), stdout=subprocess.DEVNULL) as looking:
        try:
            wait_until(lambda: stopped_children(looking.pid), "the scan has the GPUs open")
            refused = laid_out("apply", "--layout", layout, "--lock-timeout", "0", status=1)
            assert "another run is changing the layout" in refused.stderr
            # Users other than root may run the command too.
            assert drift(laid_out) == {"0": 0, "1": 0, "2": 0}
        finally:
            go_on(looking.pid)
        assert looking.wait(180) == 0
    laid_out("apply", "--layout", layout)


def test_existing_lock_is_used_and_none_created(host):
    host.simulated.create(H100)
    host("metrics", "--layout", host.layout([{"gpus": [2], "sharing": "shared"}]))
    assert not (host.folder / "state.d").exists()


def test_nvml_is_started_once(laid_out):
    laid_out.gpusim("calls", "--clear")
    written(laid_out)
    calls = dict(reversed(line.split()) for line in laid_out.gpusim("calls").splitlines())
    starts = [name for name in calls if name.startswith("nvmlInit")]
    assert sum(int(calls[name]) for name in starts) == 1, calls
    assert not [name for name in calls if "Set" in name or "Create" in name or "Destroy" in name]


def test_metrics_are_printed_without_a_directory(laid_out):
    layout = str(laid_out.folder / "layout.json")
    laid_out.simulated.run([sys.executable, MAKE, "1", "1g.10gb", "0"])
    assert parsed(laid_out("metrics", "--layout", layout).stdout)["openfleet_layout_drift"]["1"] == 1
    told = json.loads(laid_out("metrics", "--layout", layout, "--json").stdout)
    assert [gpu["differences"] for gpu in told["gpus"]] == [[], ["destroy 1g.10gb@0"], []]
    values = {(m["name"], m["labels"].get("gpu_index")): m["value"] for m in told["metrics"]}
    assert values["openfleet_layout_drift", "1"] == 1
    laid_out("metrics", "--layout", "/nowhere/layout.json", "--json", status=1)


def test_missing_directory_is_named(laid_out):
    done = laid_out("metrics", "--textfile", "/nowhere", "--layout", str(laid_out.folder / "layout.json"), status=1)
    assert f"/nowhere/{FILE}: it cannot be written" in done.stderr


def test_links_in_the_directory_are_not_followed(laid_out):
    victim = laid_out.folder / "victim"
    victim.write_text("mine")
    folder = laid_out.folder / "textfile"
    (folder / FILE).symlink_to(victim)
    (folder / f"{FILE}.new").symlink_to(victim)
    assert drift(laid_out) == {"0": 0, "1": 0, "2": 0}
    assert victim.read_text() == "mine" and not (folder / FILE).is_symlink()


def test_unwritable_directory_keeps_no_old_metrics(laid_out):
    written(laid_out)
    folder = laid_out.folder / "textfile"
    (folder / f"{FILE}.new").mkdir()
    arguments = ("metrics", "--textfile", str(folder), "--layout", str(laid_out.folder / "layout.json"))
    assert "it cannot be written" in laid_out(*arguments, status=1).stderr
    assert not (folder / FILE).exists()


def test_ended_run_keeps_no_old_metrics(laid_out):
    written(laid_out)
    layout = laid_out.folder / "slow"
    os.mkfifo(layout)
    arguments = ("metrics", "--textfile", str(laid_out.folder / "textfile"), "--layout", str(layout))
    with laid_out.simulated.popen(laid_out.words(*arguments), stderr=subprocess.DEVNULL) as running:
        # Open the pipe without blocking. A reader that opens it would otherwise wait forever for data.
        writer = None
        while writer is None and running.poll() is None:
            with contextlib.suppress(OSError):
                writer = os.open(layout, os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait(180) == 128 + signal.SIGTERM
        os.close(writer)
    found = parsed((laid_out.folder / "textfile" / FILE).read_text())
    assert found["openfleet_layout_check_success"] == {None: 0}
    assert set(found) == {"openfleet_layout_check_success", "openfleet_layout_check_timestamp_seconds"}


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not there")
def test_promtool_accepts_the_metrics(laid_out):
    text = laid_out("metrics", "--layout", str(laid_out.folder / "layout.json")).stdout
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
