# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reload Docker, and check that dockerd reports the new settings.

If it does not, the reload fails, and the previous file is restored.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from types import SimpleNamespace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.packages import change as packages_change
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Step
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import apply, engines, rules

FORMER = {"log-driver": "journald"}
NEW = {**FORMER, "default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}


class Docker:
    """Replace dockerd and systemctl.

    A reload reads Docker's configuration file, or fails. Tests can query the settings.
    """

    def __init__(self, path, refuses):
        self.path, self.refuses, self.called = path, refuses, []
        self.settings = FORMER
        self.asked = 0

    def __call__(self, command, **_options):
        self.called.append(" ".join(command[:2]))
        if command[0] == "systemctl" and command[1] in ("reload", "restart") and not self.refuses:
            self.settings = json.loads(self.path.read_text())
        if command[:2] == ["docker", "info"]:
            self.asked += 1
            settings = FORMER if self.asked == 1 else self.settings
            names = {name: {} for name in ["runc", *settings.get("runtimes", {})]}
            answer = {"Runtimes": names, "DefaultRuntime": settings.get("default-runtime", "runc")}
            return subprocess.CompletedProcess(command, 0, json.dumps(answer), "")
        return subprocess.CompletedProcess(command, 0, "", "")


def change(tmp_path, monkeypatch, refuses):
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps(FORMER))
    engine = rules.BY_NAME["docker"]
    monkeypatch.setitem(rules.BY_NAME, "docker", dataclasses.replace(engine, config=str(path)))
    monkeypatch.setattr(apply, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(packages_change, "program", lambda _name: None)
    docker = Docker(path, refuses)
    host = SimpleNamespace(record={}, files={})
    made = apply.ToolkitChange(SimpleNamespace(call=docker, manager=None, host=host, key=b""), None)
    made._put(str(path), json.dumps(NEW).encode())
    return docker, made, path


def test_reload_is_awaited(tmp_path, monkeypatch):
    docker, made, path = change(tmp_path, monkeypatch, refuses=False)
    made._reload(Step("reload", "reload docker", ("docker",)))
    assert docker.asked == 2 and json.loads(path.read_text()) == NEW


def test_file_refused_by_dockerd_is_rolled_back_without_a_restart(tmp_path, monkeypatch):
    docker, made, path = change(tmp_path, monkeypatch, refuses=True)
    monkeypatch.setattr(apply, "_DOCKER_SECONDS", 0.05)
    with pytest.raises(ApplyError, match="dockerd does not have the runtime nvidia") as raised:
        made._reload(Step("reload", "reload docker", ("docker",)))
    assert "It runs with its previous configuration" in raised.value.cure
    assert json.loads(path.read_text()) == FORMER
    assert "systemctl restart" not in docker.called and docker.called.count("systemctl reload") == 2


@pytest.mark.parametrize(
    ("configured", "info", "lacks"),
    [
        ("", {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}, ""),
        (NEW, {"Runtimes": {"runc": {}, "nvidia": {}}, "DefaultRuntime": "nvidia"}, ""),
        (NEW, {"Runtimes": {"runc": {}, "nvidia": {}}, "DefaultRuntime": "runc"}, "is runc instead of nvidia"),
        (NEW, {"Runtimes": None, "DefaultRuntime": "nvidia"}, "does not have the runtime nvidia"),
        (NEW, {"ServerErrors": ["no daemon"]}, "gives no runtimes"),
        (NEW, [], "gives no runtimes"),
    ],
)
def test_missing_settings_of_dockerd(configured, info, lacks):
    problem = engines.docker_lacks(json.dumps(configured) if configured else "", json.dumps(info))
    assert lacks in problem and bool(lacks) == bool(problem)
