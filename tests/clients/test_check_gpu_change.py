# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run check-gpu --change with NVIDIA's nvidia-smi on the lab's hosts."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.clients.client_archive import NotOffered
from tests.clients.client_hosts import DRIVER_VERSION
from tests.clients.client_matrix import CLIENTS, Client
from tests.integration.simulated_host import ROOT, SimulatedHost

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML's setters need root: run as root")

TOOL = ROOT / "tools" / "check_gpu.py"
VERSION = "535.261.03"


@pytest.fixture(scope="module")
def nvidia_smi():
    (client,) = [Client(e) for e in CLIENTS if (e["kind"], str(e["version"])) == ("nvidia-smi", VERSION)]
    try:
        client.fetch()
    except NotOffered as reason:
        pytest.skip(f"{client.name}: {reason}")
    (program,) = client.folder.glob("usr/lib/nvidia/*/nvidia-smi")
    return program


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return SimulatedHost.build(tmp_path_factory.mktemp("change"))


@pytest.mark.parametrize("model, most", [("H100-80GB", 7), ("A30-24GB", 4)])
def test_nvidia_smi_sees_what_was_changed_and_all_is_restored(nvidia_smi, build, tmp_path, model, most):
    host = SimulatedHost(tmp_path / "host", build.library).create([{"model": model}], driver_version=DRIVER_VERSION)
    (host.bin / "nvidia-smi").symlink_to(nvidia_smi)
    before = json.loads(host.gpusim("show", "--json"))["gpus"]
    options = [
        "--change",
        "--library",
        "none",
        "--directory",
        str(tmp_path),
        "--state-directory",
        str(tmp_path / "state"),
    ]
    done = host.run([sys.executable, str(TOOL), *options], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((tmp_path / "gpu-check.json").read_text())["checks"]
    found = {(check["area"], check["what"]): check for check in checks if check["area"].startswith("change: ")}
    devices = found["change: MIG, nvidia-smi", "MIG devices (GPU instance, compute instance)"]
    assert (devices["outcome"], devices["found"].count(",")) == ("passed", 2 * most - 1), devices
    assert found["change: MIG, nvidia-smi", "MIG mode"]["outcome"] == "passed"
    assert {check["outcome"] for (area, _what), check in found.items() if area == "change: time slice"} == {"passed"}
    assert {check["outcome"] for (area, _what), check in found.items() if area == "change: compute mode"} == {"passed"}
    after = json.loads(host.gpusim("show", "--json"))["gpus"]
    for key in ("mig", "compute_mode", "timeslice", "gpu_instances", "power_limit_mw", "persistence_mode"):
        assert [gpu[key] for gpu in after] == [gpu[key] for gpu in before], key
