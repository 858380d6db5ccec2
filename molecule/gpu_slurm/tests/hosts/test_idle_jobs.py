# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the audit finds idle Slurm jobs.

Slurm, Prometheus and the playbook are real. The history of the GPUs is generated.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

import pytest
from slurm_host import INVENTORY, layout

from tests.audit.fleet_history import AT_REST, CLEAR, NOBODY, Device, prometheus, steady
from tests.lab.lab_fixtures import REPOSITORY

pytestmark = pytest.mark.thorough
USER = "alice"
# Length of the history in hours.
HOURS = 50


@dataclass(frozen=True)
class Known(Device):
    """A GPU with the UUID that its host reports."""

    known_uuid: str = ""

    @property
    def uuid(self) -> str:
        return self.known_uuid


def test_idle_job_is_found_with_its_user(host, tmp_path):
    """Check a job on a GPU that was at rest for two days, without processes."""
    host.reset(layout())
    host.ask(f"id {USER} >/dev/null 2>&1 || useradd --create-home {USER}")
    batch = "cd /tmp && sbatch --parsable --output=/dev/null --gres=gpu:h100:1 --wrap 'sleep 1d'"
    job = host.ask(f'runuser -u {USER} -- sh -c "{batch}"').strip()
    host.wait_until(f"squeue --noheader --states R --jobs {job} | grep -q .")
    info = host.module("gpu_info", telemetry=False, holders=True)
    (held,) = {gpu["uuid"] for gpu in info["gpus"] for holder in gpu["holders"] if holder["kind"] == "slurm"}
    history = []
    for gpu in info["gpus"]:
        idle = gpu["uuid"] == held
        kinds = {("gpu:held", "kind", "slurm"): steady(1)} if idle else CLEAR
        series = {**AT_REST, "gpu:processes": steady(0), "gpu:processes:max5m": steady(0)} if idle else NOBODY
        history.append(Known("one", gpu["index"], series=series, labelled=kinds, known_uuid=gpu["uuid"]))
    (tmp_path / "prometheus").mkdir()
    with prometheus(history, HOURS, tmp_path / "prometheus") as url:
        given = {
            "gpu_audit_prometheus": {"url": url},
            "gpu_audit_dir": str(tmp_path),
            "gpu_audit_window": f"{HOURS}h",
            "gpu_audit_thresholds": {"least_history_hours": 0, "idle_hours": 24, "new_holder_hours": 24},
        }
        command = ["ansible-playbook", "-i", str(INVENTORY), "playbooks/audit.yml", "-e", json.dumps(given)]
        environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=480, check=False
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    findings = json.loads((tmp_path / "audit.json").read_text())["findings"]
    verdicts = {row["holding"]["subject"]["gpu_uuid"]: row["verdict"] for row in findings}
    assert verdicts[held]["word"] == "held_without_process", verdicts[held]
    assert f"Slurm job {job} (wrap) of user {USER}. No process runs on it." in verdicts[held]["reason"]
    assert [verdict["word"] for uuid, verdict in verdicts.items() if uuid != held] == ["free"] * 3
