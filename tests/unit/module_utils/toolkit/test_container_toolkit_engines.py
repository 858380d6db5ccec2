# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the configuration of container engines with a simulated nvidia-ctk."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import engines
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Request
from tests.unit.module_utils.toolkit.toolkit_hosts import ASKED, CONTAINERD, CRIO, DOCKER, REPOSITORY

STAND_IN = REPOSITORY / "tests" / "lab" / "stand_in_nvidia_ctk.py"


def call(version):
    """Return a function that runs the replacement for nvidia-ctk as this version."""

    def run(command):
        program = STAND_IN.read_text().replace("{version}", version)
        return subprocess.run(
            [sys.executable, "-c", program, *command[1:]], capture_output=True, text=True, check=False
        )

    return run


SITE = {
    DOCKER.config: json.dumps({"data-root": "/srv", "runtimes": {"other": {"path": "/usr/bin/other"}}}),
    CONTAINERD.config: '# the site\nversion = 2\nimports = ["/etc/containerd/site.d/*.toml"]\n\n'
    "[plugins.'io.containerd.grpc.v1.cri']\n  sandbox_image = \"pause\"\n",
    CRIO.config: '[crio.runtime]\nlog_level = "info"\n',
}


@pytest.mark.parametrize("version", ["1.17.8", "1.18.2"])
@pytest.mark.parametrize("engine", [DOCKER, CONTAINERD, CRIO])
@pytest.mark.parametrize("empty", [True, False])
def test_configuring_merges_and_is_idempotent(engine, version, empty):
    current = {} if empty else {engine.config: SITE[engine.config]}
    request = Request(version, set_as_default=True)
    assert engines.predict(engine, version, request, current)
    found = engines.ask(engine, version, request, current, call(version))
    assert set(found) == set(engines.paths(engine, version, current.get(engine.config, "")))
    assert "/tmp" not in "".join(found.values())
    for word in ("/srv", "/usr/bin/other", "site.d", "sandbox_image", "log_level"):
        assert (word in current.get(engine.config, "")) == (word in {**current, **found}.get(engine.config, "")), word
    now = {path: text for path, text in {**current, **found}.items() if text}
    assert engines.ask(engine, version, request, now, call(version)) == {path: now.get(path, "") for path in found}
    assert not engines.predict(engine, version, request, now)


def test_comments_stay_if_only_formatting_would_change():
    text = '# the site\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    found = engines.ask(CONTAINERD, "1.18.2", Request("1.18.2"), {CONTAINERD.config: text}, call("1.18.2"))
    assert found[CONTAINERD.config] == text


def test_drop_in_must_not_hide_the_main_files_plugin_settings():
    """A manual run of nvidia-ctk leaves a drop-in file that hides settings of the main file."""
    hides = {
        CONTAINERD.drop_in: '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nruntime_type = "x"\n'
    }
    found = engines.ask(CONTAINERD, "1.18.2", ASKED, {**SITE, **hides}, call("1.18.2"))
    assert found[CONTAINERD.drop_in] == "" and "runtimes.nvidia" in found[CONTAINERD.config]
    plain = {CONTAINERD.config: 'version = 2\nimports = ["/etc/containerd/site.d/*.toml"]\n'}
    found = engines.ask(CONTAINERD, "1.18.2", ASKED, plain, call("1.18.2"))
    assert "runtimes.nvidia" in found[CONTAINERD.drop_in] and "runtimes.nvidia" not in found[CONTAINERD.config]


def test_nvidia_ctk_that_would_drop_imports_is_stopped():
    plain = {CONTAINERD.config: 'version = 2\nimports = ["/etc/containerd/site.d/*.toml"]\n'}
    with pytest.raises(PlanError, match=r"would drop /etc/containerd/site\.d/\*\.toml"):
        engines.ask(CONTAINERD, "1.18.0", Request("1.18.0"), plain, call("1.18.0"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"data-root": "/srv"}, {"runtimes": {}}),
        ({"runtimes": {"other": {"path": "a"}}}, {"runtimes": {"nvidia": {}}}),
        ({"features": {"buildkit": True}}, {"features": {"cdi": True}}),
    ],
)
def test_run_stops_if_docker_would_lose_settings(before, after):
    with pytest.raises(PlanError, match="would drop"):
        engines.settle(DOCKER, DOCKER.config, json.dumps(before), json.dumps(after), "")


def test_unreadable_configuration_is_named_with_a_fix():
    with pytest.raises(
        PlanError, match=r"^/etc/docker/daemon.json: nvidia-ctk cannot configure docker: .*Fix the file"
    ):
        engines.ask(DOCKER, "1.18.2", Request("1.18.2"), {DOCKER.config: "{,}"}, call("1.18.2"))


@pytest.mark.parametrize("version", ["1.17.8", "1.18.2"])
@pytest.mark.parametrize("engine", [DOCKER, CONTAINERD, CRIO])
@pytest.mark.parametrize("empty", [True, False])
def test_rollback_restores_the_previous_configuration(engine, version, empty):
    current = {} if empty else {engine.config: SITE[engine.config]}
    request = Request(version, set_as_default=True, engine_cdi=True)
    found = engines.ask(engine, version, request, current, call(version))
    noted = engines.note(engine, current, {**current, **found})
    now = {**current, **found}
    back = {**now, **engines.without(engine, now, noted)}
    left = {path: text for path, text in back.items() if text}
    assert "nvidia-container-runtime" not in "".join(left.values())
    assert '"nvidia"' not in "".join(left.values())
    if engine is DOCKER:
        assert json.loads(left.get(engine.config, "{}")) == json.loads(current.get(engine.config, "{}"))
    else:
        for word in ("site.d", "sandbox_image", "log_level"):
            assert (word in current.get(engine.config, "")) == (word in left.get(engine.config, ""))
    assert engines.without(engine, left, noted) == {}


def test_cdi_setting_of_others_in_docker_stays():
    text = json.dumps({"features": {"cdi": True}, "default-runtime": "other"})
    found = engines.ask(
        DOCKER, "1.18.2", Request("1.18.2", set_as_default=True, engine_cdi=True), {DOCKER.config: text}, call("1.18.2")
    )
    noted = engines.note(DOCKER, {DOCKER.config: text}, found)
    back = engines.without(DOCKER, found, noted)
    assert json.loads(back[DOCKER.config]) == json.loads(text)


def test_record_contains_no_configuration():
    secret = json.dumps({"http-proxy": "http://user:secret@proxy"})
    found = engines.ask(DOCKER, "1.18.2", Request("1.18.2"), {DOCKER.config: secret}, call("1.18.2"))
    assert "secret" in found[DOCKER.config]
    assert "secret" not in json.dumps(engines.note(DOCKER, {DOCKER.config: secret}, found))
