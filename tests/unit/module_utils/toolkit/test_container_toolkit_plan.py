# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the container toolkit from observed states, without running commands."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files, plan, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Host, Request, Unit
from tests.unit.module_utils.toolkit.toolkit_hosts import (
    CONTAINERD,
    CRIO,
    DOCKER,
    RUNNING,
    TRUSTED,
    kinds,
    make,
    packages,
    right,
    wanted,
)


def test_correct_host_needs_no_steps():
    made = make(right())
    assert (made.steps, made.pending, made.notes) == ((), (), ())


def test_bare_host_gets_everything_in_dependency_order():
    daemon = {"docker.service": RUNNING}
    made = make(Host("apt", driver=True, engines=("docker", "podman"), units=daemon))
    assert kinds(made) == ["key", "write", "write", "install", "hold", "engine", "enable", "specification", "reload"]


def test_missing_driver_means_no_specification_with_a_note():
    made = make(right(driver=False, specs=()))
    assert made.steps == () and "no driver" in made.notes[0]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"packages": packages("1.18.1-1")}, ["install", "hold", "specification"]),
        ({"packages": packages()[:3]}, ["install", "hold", "specification"]),
        ({"packages": (*packages("1.18.1-1")[:1], *packages()[1:])}, ["install", "hold", "specification"]),
        ({"packages": packages(broken=True)}, ["repair", "install", "hold", "specification"]),
        ({"packages": packages(held=False)}, ["hold"]),
        ({"key_fingerprints": ("0" * 40,)}, ["key"]),
        ({"key_fingerprints": (*TRUSTED, "0" * 40)}, ["key"]),
        ({"specs": ()}, ["specification"]),
        ({"stale_specs": ("/etc/cdi/nvidia.yaml",)}, ["specification"]),
        ({"private_specs": ("/etc/cdi/nvidia.yaml",)}, ["publish"]),
        ({"selinux_denies": True}, ["selinux"]),
        ({"units": {rules.REFRESH_PATH: Unit()}}, ["enable"]),
    ],
)
def test_only_the_wrong_part_is_repaired(seen, expected):
    assert kinds(make(right(**seen))) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hold": False}, ["release"]),
        ({"source": "host"}, ["delete", "delete"]),
        ({"cdi": False}, ["delete"]),
    ],
)
def test_parts_no_longer_requested_are_removed(change, expected):
    request = replace(Request("1.18.2"), **change)
    assert kinds(plan.present(right(), request, "1.18.2-1", wanted(request), TRUSTED)) == expected


def test_older_toolkit_gets_units_and_newer_one_has_its_own():
    older = Request("1.17.8")
    host = right(older, packages=packages("1.17.8-1"))
    assert set(files.UNITS) <= set(wanted(older))
    assert make(host, older, "1.17.8-1").steps == ()
    made = plan.present(host, Request("1.18.2"), "1.18.2-1", wanted(Request("1.18.2")), TRUSTED)
    deleted = [step.items[0] for step in made.steps if step.kind == "delete"]
    assert deleted == [files.REFRESH_SERVICE, files.REFRESH_PATH]


def test_unit_of_an_administrator_stays():
    host = right(files={**wanted(Request("1.18.2")), files.REFRESH_SERVICE: "[Service]\nExecStart=/opt/ours\n"})
    assert make(host).steps == ()


@pytest.mark.parametrize("version", ["", "1.18", "latest", "v1.18.2", "1.18.2-rc.1", "1.18.2-1 "])
def test_inexact_version_is_refused(version):
    with pytest.raises(PlanError, match="container_toolkit_version"):
        rules.check_version(version)


def test_versions_are_compared_as_numbers():
    assert rules.order("1.9.0-1") < rules.order("1.17.8-1")
    assert rules.is_version("1.18.2-1", "1.18.2") and not rules.is_version("1.18.20-1", "1.18.2")
    assert not rules.keeps_specification("1.9.0") and rules.keeps_specification("2.0.0")


def test_foreign_package_is_removed_only_if_allowed():
    rules.check_removals(["nvidia-container-toolkit", "nvidia-docker2"], ["nvidia-docker2"], "install")
    with pytest.raises(PlanError, match="nvidia-docker2 would have to be removed"):
        rules.check_removals(["nvidia-docker2"], [], "install")


# -- Engines: which, and how they take it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "kubelet", "expected"),
    [
        (("docker", "containerd", "podman"), False, ["docker", "podman"]),
        (("docker", "containerd"), True, ["docker", "containerd"]),
        (("containerd",), False, ["containerd"]),
        (("crio", "podman"), True, ["crio", "podman"]),
        ((), False, []),
    ],
)
def test_detected_engines(there, kubelet, expected):
    host = Host("apt", engines=there, kubelet=kubelet)
    assert [engine.name for engine in rules.engines(host, Request("1.18.2"))] == expected


def test_named_engine_must_be_installed():
    with pytest.raises(PlanError, match="crio is not installed"):
        rules.engines(Host("apt", engines=("podman",)), Request("1.18.2", engines=("crio",)))


@pytest.mark.parametrize(
    ("engine", "policy", "cdi", "seen", "expected"),
    [
        (DOCKER, "safe", False, {}, "reload"),
        (DOCKER, "never", False, {}, "pending"),
        (DOCKER, "safe", True, {"docker_containers": True, "docker_live_restore": False}, "pending"),
        (DOCKER, "safe", True, {"docker_containers": False, "docker_live_restore": False}, "restart"),
        (DOCKER, "safe", True, {"docker_containers": True, "docker_live_restore": True}, "restart"),
        (DOCKER, "safe", True, {}, "pending"),
        (DOCKER, "always", True, {"docker_containers": True}, "restart"),
        (CONTAINERD, "safe", False, {}, "restart"),
        (
            CONTAINERD,
            "safe",
            False,
            {"units": {"containerd.service": replace(RUNNING, children_stay=False)}},
            "pending",
        ),
        (CONTAINERD, "never", False, {}, "pending"),
        (CONTAINERD, "always", False, {"units": {"containerd.service": Unit()}}, ""),
        (CRIO, "safe", False, {}, "restart"),
    ],
)
def test_how_engines_apply_their_configuration(engine, policy, cdi, seen, expected):
    host = replace(Host("apt", units={engine.unit: RUNNING}), **seen)
    assert rules.takes_effect_by(engine, host, policy, cdi) == expected


def pending(start, cdi=False):
    return {"pending": {"docker": {"start": start, "cdi": cdi}}}


@pytest.mark.parametrize(
    ("record", "policy", "expected"),
    [
        (pending("first"), "never", ([], ("docker",))),
        (pending("first"), "safe", (["reload"], ())),
        (pending("first", cdi=True), "safe", ([], ("docker",))),
        (pending("first", cdi=True), "always", (["restart"], ())),
        # The record shows that the engine was restarted after its configuration had changed.
        (pending("earlier"), "never", ([], ())),
    ],
)
def test_pending_restart_is_remembered(record, policy, expected):
    texts = {DOCKER.config: "{}"}
    host = right(
        engines=("docker",), units={"docker.service": RUNNING}, configured={"docker": texts}, record=record,
        docker_containers=True, docker_live_restore=False,
    )  # fmt: skip
    host = replace(host, files={**host.files, **texts})
    made = make(host, replace(Request("1.18.2"), restart=policy))
    assert (kinds(made), made.pending) == expected
    assert bool(made.notes) == bool(made.pending)


# -- Taking it away ----------------------------------------------------------------------------------------------------


def test_removal_from_a_bare_host_does_nothing():
    assert plan.absent(Host("apt", engines=("docker",), files={DOCKER.config: "{}"}), Request("")).steps == ()


def test_engines_are_unconfigured_before_removal():
    text = json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}})
    host = right(engines=("docker",), units={"docker.service": RUNNING}, record={"selinux": True},
                 specs=(files.SPECIFICATION, "/etc/cdi/site.yaml"))  # fmt: skip
    made = plan.absent(replace(host, files={**host.files, DOCKER.config: text}), Request(""))
    assert kinds(made)[:4] == ["unconfigure", "reload", "disable", "remove"]
    deleted = [step.items[0] for step in made.steps if step.kind == "delete"]
    assert deleted == [files.SOURCES["apt"], files.SETTINGS, files.KEYRINGS["apt"], files.SPECIFICATION]
    assert kinds(made)[-1] == "selinux"
    assert "/etc/cdi/site.yaml remains" in made.notes[0]
