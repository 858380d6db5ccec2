# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report NVIDIA's MIG manager for systemd as an error of a change, or disable it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import mig_manager
from ansible_collections.openfleet.gpu.plugins.module_utils.change.pending import RESTARTED
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FollowError, PlanError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.site.plans import plans

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


def systemctl(state, load="loaded", status=0):
    def run(command, **_options):
        answer = "Id=nvidia-mig-manager.service\nLoadState=%s\nUnitFileState=%s\n" % (load, state)
        return subprocess.CompletedProcess(command, status, answer, "Access denied" if status else "")

    return run


@pytest.mark.parametrize("state", ["enabled", "enabled-runtime", "linked"])
def test_an_enabled_mig_manager_is_refused_or_disabled(root, state):
    with pytest.raises(PlanError, match=r"nvidia-mig-manager\.service: it is enabled, and would repartition") as caught:
        mig_manager.plan("refuse", systemctl(state), root)
    assert caught.value.cure.startswith("Set gpu_layout_mig_manager: disable")
    assert mig_manager.plan("disable", systemctl(state), root) == ("disable nvidia-mig-manager.service",)


@pytest.mark.parametrize(("state", "load"), [("disabled", "loaded"), ("masked", "masked"), ("", "not-found")])
def test_disabled_mig_manager_needs_nothing(root, state, load):
    assert mig_manager.plan("refuse", systemctl(state, load), root) == ()


def test_host_without_systemd_is_not_queried(tmp_path):
    assert mig_manager.plan("refuse", systemctl("enabled"), tmp_path) == ()


def test_undisablable_unit_fails_with_the_command():
    mig_manager.disable(systemctl("enabled"))
    with pytest.raises(FollowError, match="it could not be disabled") as caught:
        mig_manager.disable(systemctl("enabled", status=1))
    assert "systemctl disable nvidia-mig-manager.service" in caught.value.cure


def test_plan_of_a_host_names_mig_manager():
    result = {
        "driver_present": True,
        "counts": {"create": 0, "destroy": 0, "keep": 0, "gpus_changed": 0},
        "plan_lines": [{"text": "disable nvidia-mig-manager.service"}],
    }
    assert plans({"h1": result}) == {"h1": ["disable nvidia-mig-manager.service"]}


def test_exporter_of_nvidias_package_is_restarted():
    assert "nvidia-dcgm-exporter.service" in RESTARTED
    text = (ROOT / "roles/gpu_layout/templates/gpu-layout.service.j2").read_text()
    before = [line for line in text.splitlines() if line.startswith("Before=")]
    assert "nvidia-dcgm-exporter.service" in " ".join(before).split()
