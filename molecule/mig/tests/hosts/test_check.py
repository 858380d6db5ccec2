# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run check_gpu.yml and accept.yml on a lab host that has a driver's files.

At first, the host is healthy. Then it has a fault.
"""

from __future__ import annotations

import json

from runs import SCENARIO, Run

#: The areas of a report that compare NVML with files of the kernel and the driver.
OF_FILES = ("kernel", "capabilities", "PCI")


def play(folder, playbook: str, directory: str, **variables) -> Run:
    command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), f"playbooks/{playbook}", "--limit", "canary"]
    return Run(folder, [*command, "-e", json.dumps({directory: str(folder / "reports"), **variables})]).end()


def test_readings_match_nvidia_smi_and_kernel_files(canary, tmp_path):
    play(tmp_path, "check_gpu.yml", "gpu_check_dir").succeeded()
    report = json.loads((tmp_path / "reports" / "canary" / "gpu-check.json").read_text())
    outcomes = {}
    for check in report["checks"]:
        outcomes.setdefault(check["area"], []).append(check["outcome"])
    assert all("passed" in outcomes[area] for area in (*OF_FILES, "nvidia-smi")), outcomes
    assert (tmp_path / "reports" / "canary" / "gpu-check.html").exists()


def test_healthy_host_is_accepted_and_faulty_host_rejected(canary, tmp_path):
    play(tmp_path, "accept.yml", "gpu_accept_dir", gpu_accept_gpus=1).succeeded()
    accepted = tmp_path / "reports" / "accepted"
    assert accepted.read_text() == "canary\n"
    canary.ask("gpusim set 0 throttle hw_power_brake")
    try:
        run = play(tmp_path, "accept.yml", "gpu_accept_dir", gpu_accept_gpus=1)
        assert run.process.returncode == 2, run.told[-3000:]
        assert "gpu 0: clocks: " in " ".join(run.told.split())
        assert accepted.read_text() == ""
    finally:
        canary.ask("gpusim set 0 throttle off")
