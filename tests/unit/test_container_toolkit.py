# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container toolkit: what is decided from what is seen. Nothing is run here but stand-ins of nvidia-ctk and dnf."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import engines, files, plan, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.dnf import Dnf
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Host, Package, Request, Unit
from ansible_collections.openfleet.gpu.plugins.modules import container_toolkit

REPOSITORY = Path(__file__).parents[2]
ROLE = REPOSITORY / "roles" / "container_toolkit"
STAND_IN = REPOSITORY / "tests" / "lab" / "stand_in_nvidia_ctk.py"
TRUSTED = ("C95B321B61E88C1809C4F759DDCAE044F796ECB0",)
URL = "https://mirror.example.org/stable/deb/amd64"
RUNNING = Unit(enabled=True, active=True, start="first", children_stay=True)
DOCKER, CONTAINERD, CRIO, _PODMAN = rules.ENGINES
ASKED = Request("1.18.2")


def wanted(request, manager="apt"):
    own = bool(request.version) and not rules.keeps_specification(request.version)
    return files.wanted(manager, request.source, URL, request.cdi, own, {})


def packages(version="1.18.2-1", held=True, **more):
    return tuple(Package(name, version, held, **more) for name in rules.PACKAGES)


def right(request=ASKED, **more):
    """A host that is as asked."""
    units = dict.fromkeys((rules.REFRESH_PATH, rules.REFRESH_SERVICE), RUNNING)
    known = {
        "packages": packages(),
        "files": wanted(request),
        "key_fingerprints": TRUSTED,
        "units": {**units, **more.pop("units", {})},
        "driver": True,
        "specs": (files.SPECIFICATION,),
    }
    return Host("apt", **{**known, **more})


def make(host, request=ASKED, version="1.18.2-1"):
    return plan.present(host, request, version, wanted(request), TRUSTED)


def kinds(made):
    return [step.kind for step in made.steps]


# -- The plan ----------------------------------------------------------------------------------------------------------


def test_nothing_is_done_where_all_is_right():
    made = make(right())
    assert (made.steps, made.pending, made.notes) == ((), (), ())


def test_a_bare_host_gets_everything_in_an_order_in_which_each_finds_what_it_needs():
    daemon = {"docker.service": RUNNING}
    made = make(Host("apt", driver=True, engines=("docker", "podman"), units=daemon))
    assert kinds(made) == ["key", "write", "write", "install", "hold", "engine", "enable", "specification", "reload"]


def test_without_a_driver_there_is_no_specification_yet_and_that_is_said():
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
def test_one_thing_that_is_not_right_is_mended_and_nothing_else(seen, expected):
    assert kinds(make(right(**seen))) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hold": False}, ["release"]),
        ({"source": "host"}, ["delete", "delete"]),
        ({"cdi": False}, ["delete"]),
    ],
)
def test_what_is_asked_for_no_more_goes(change, expected):
    request = replace(Request("1.18.2"), **change)
    assert kinds(plan.present(right(), request, "1.18.2-1", wanted(request), TRUSTED)) == expected


def test_an_older_toolkit_gets_units_from_here_and_a_newer_one_has_its_own():
    older = Request("1.17.8")
    host = right(older, packages=packages("1.17.8-1"))
    assert set(files.UNITS) <= set(wanted(older))
    assert make(host, older, "1.17.8-1").steps == ()
    made = plan.present(host, Request("1.18.2"), "1.18.2-1", wanted(Request("1.18.2")), TRUSTED)
    deleted = [step.items[0] for step in made.steps if step.kind == "delete"]
    assert deleted == [files.REFRESH_SERVICE, files.REFRESH_PATH]


def test_an_administrators_own_unit_stays():
    host = right(files={**wanted(Request("1.18.2")), files.REFRESH_SERVICE: "[Service]\nExecStart=/opt/ours\n"})
    assert make(host).steps == ()


@pytest.mark.parametrize("version", ["", "1.18", "latest", "v1.18.2", "1.18.2-rc.1", "1.18.2-1 "])
def test_what_is_no_exact_version_is_refused(version):
    with pytest.raises(PlanError, match="container_toolkit_version"):
        rules.check_version(version)


def test_versions_are_compared_as_numbers():
    assert rules.numbers("1.9.0-1") < rules.numbers("1.17.8-1")
    assert rules.is_version("1.18.2-1", "1.18.2") and not rules.is_version("1.18.20-1", "1.18.2")
    assert not rules.keeps_specification("1.9.0") and rules.keeps_specification("2.0.0")


def test_a_package_of_others_goes_only_where_that_is_allowed():
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
def test_engines_that_are_found(there, kubelet, expected):
    host = Host("apt", engines=there, kubelet=kubelet)
    assert [engine.name for engine in rules.engines(host, Request("1.18.2"))] == expected


def test_an_engine_that_is_named_must_be_there():
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
def test_how_an_engine_takes_its_configuration(engine, policy, cdi, seen, expected):
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
        # Somebody restarted it since.
        (pending("earlier"), "never", ([], ())),
    ],
)
def test_a_restart_that_is_still_due_is_remembered(record, policy, expected):
    texts = {DOCKER.config: "{}"}
    host = right(
        engines=("docker",), units={"docker.service": RUNNING}, configured={"docker": texts}, record=record,
        docker_containers=True, docker_live_restore=False,
    )  # fmt: skip
    host = replace(host, files={**host.files, **texts})
    made = make(host, replace(Request("1.18.2"), restart=policy))
    assert (kinds(made), made.pending) == expected
    assert bool(made.notes) == bool(made.pending)


# -- Engines: what becomes of their configuration ----------------------------------------------------------------------


def call(version):
    """nvidia-ctk of a version, by its stand-in."""

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
def test_configuring_is_merging_and_then_finds_nothing_to_do(engine, version, empty):
    current = {} if empty else {engine.config: SITE[engine.config]}
    request = Request(version, set_as_default=True)
    assert engines.foretell(engine, version, request, current)
    found = engines.ask(engine, version, request, current, call(version))
    assert set(found) == set(engines.paths(engine, version, current.get(engine.config, "")))
    assert "/tmp" not in "".join(found.values())
    for word in ("/srv", "/usr/bin/other", "site.d", "sandbox_image", "log_level"):
        assert (word in current.get(engine.config, "")) == (word in {**current, **found}.get(engine.config, "")), word
    now = {path: text for path, text in {**current, **found}.items() if text}
    assert engines.ask(engine, version, request, now, call(version)) == {path: now.get(path, "") for path in found}
    assert not engines.foretell(engine, version, request, now)


def test_comments_stay_where_only_the_layout_would_change():
    text = '# the site\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    found = engines.ask(CONTAINERD, "1.18.2", Request("1.18.2"), {CONTAINERD.config: text}, call("1.18.2"))
    assert found[CONTAINERD.config] == text


def test_a_drop_in_must_not_hide_what_the_main_file_says_of_the_same_plugin():
    """As one does that an nvidia-ctk run by hand has left."""
    hides = {
        CONTAINERD.drop_in: '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nruntime_type = "x"\n'
    }
    found = engines.ask(CONTAINERD, "1.18.2", ASKED, {**SITE, **hides}, call("1.18.2"))
    assert found[CONTAINERD.drop_in] == "" and "runtimes.nvidia" in found[CONTAINERD.config]
    plain = {CONTAINERD.config: 'version = 2\nimports = ["/etc/containerd/site.d/*.toml"]\n'}
    found = engines.ask(CONTAINERD, "1.18.2", ASKED, plain, call("1.18.2"))
    assert "runtimes.nvidia" in found[CONTAINERD.drop_in] and "runtimes.nvidia" not in found[CONTAINERD.config]


def test_nvidia_ctk_that_loses_imports_is_stopped():
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
def test_whatever_would_be_lost_from_docker_stops_the_run(before, after):
    with pytest.raises(PlanError, match="would drop"):
        engines.settle(DOCKER, DOCKER.config, json.dumps(before), json.dumps(after), "")


def test_a_configuration_that_cannot_be_read_is_named_with_its_cure():
    with pytest.raises(
        PlanError, match=r"^/etc/docker/daemon.json: nvidia-ctk cannot configure docker: .*Mend the file"
    ):
        engines.ask(DOCKER, "1.18.2", Request("1.18.2"), {DOCKER.config: "{,}"}, call("1.18.2"))


@pytest.mark.parametrize("version", ["1.17.8", "1.18.2"])
@pytest.mark.parametrize("engine", [DOCKER, CONTAINERD, CRIO])
@pytest.mark.parametrize("empty", [True, False])
def test_the_way_back_leaves_what_was_there(engine, version, empty):
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


def test_a_docker_that_was_told_of_cdi_by_somebody_else_keeps_it():
    text = json.dumps({"features": {"cdi": True}, "default-runtime": "other"})
    found = engines.ask(
        DOCKER, "1.18.2", Request("1.18.2", set_as_default=True, engine_cdi=True), {DOCKER.config: text}, call("1.18.2")
    )
    noted = engines.note(DOCKER, {DOCKER.config: text}, found)
    back = engines.without(DOCKER, found, noted)
    assert json.loads(back[DOCKER.config]) == json.loads(text)


def test_the_record_has_nothing_of_what_a_configuration_says():
    secret = json.dumps({"http-proxy": "http://user:secret@proxy"})
    found = engines.ask(DOCKER, "1.18.2", Request("1.18.2"), {DOCKER.config: secret}, call("1.18.2"))
    assert "secret" in found[DOCKER.config]
    assert "secret" not in json.dumps(engines.note(DOCKER, {DOCKER.config: secret}, found))


# -- Taking it away ----------------------------------------------------------------------------------------------------


def test_nothing_is_taken_from_a_bare_host():
    assert plan.absent(Host("apt", engines=("docker",), files={DOCKER.config: "{}"}), Request("")).steps == ()


def test_engines_forget_the_toolkit_before_it_goes():
    text = json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}})
    host = right(engines=("docker",), units={"docker.service": RUNNING}, record={"selinux": True},
                 specs=(files.SPECIFICATION, "/etc/cdi/site.yaml"))  # fmt: skip
    made = plan.absent(replace(host, files={**host.files, DOCKER.config: text}), Request(""))
    assert kinds(made)[:4] == ["unconfigure", "reload", "disable", "remove"]
    deleted = [step.items[0] for step in made.steps if step.kind == "delete"]
    assert deleted == [files.SOURCES["apt"], files.SETTINGS, files.KEYRINGS["apt"], files.SPECIFICATION]
    assert kinds(made)[-1] == "selinux"
    assert "/etc/cdi/site.yaml is left" in made.notes[0]


# -- Files and package managers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manager", "machine", "expected"),
    [
        ("apt", "x86_64", "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"),
        ("apt", "aarch64", "https://nvidia.github.io/libnvidia-container/stable/deb/arm64"),
        ("dnf", "x86_64", "https://nvidia.github.io/libnvidia-container/stable/rpm/x86_64"),
        ("dnf", "aarch64", "https://nvidia.github.io/libnvidia-container/stable/rpm/aarch64"),
    ],
)
def test_the_default_address_is_the_documented_one(manager, machine, expected):
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert files.repository_url(defaults["container_toolkit_repository_url"], manager, machine) == expected


def test_a_repository_is_never_used_unverified():
    apt, dnf = (files.sources(manager, URL, files.KEYRINGS[manager]) for manager in ("apt", "dnf"))
    assert "[signed-by=/etc/apt/keyrings/openfleet-container-toolkit.gpg]" in apt and "trusted" not in apt
    assert "repo_gpgcheck=1\n" in dnf and "gpgkey=file:///etc/pki/rpm-gpg/" in dnf and "sslverify=1" in dnf


def test_settings_survive_systemds_quoting():
    assert 'Environment="A=50%% \\"x\\" \\\\"' in files.settings({"A": '50% "x" \\'})


class Machine:
    """Answers commands as RHEL's tools do, and notes them."""

    def __init__(self, **answers):
        self.commands, self.answers = [], answers

    def __call__(self, command):
        self.commands.append(command)
        for word, (code, output, errors) in self.answers.items():
            if word in command:
                return subprocess.CompletedProcess(command, code, output, errors)
        return subprocess.CompletedProcess(command, 0, "", "")


def test_dnf_installs_exact_versions_with_verified_metadata(tmp_path):
    listed = "".join("%s\t%s\n\n" % (name, version) for name in rules.PACKAGES for version in ("1.17.8-1", "1.18.2-1"))
    machine = Machine(repoquery=(0, listed, ""))
    dnf = Dnf(machine, str(tmp_path / "versionlock.list"))
    dnf.open(URL, b"key")
    assert dnf.choose("1.18.2") == "1.18.2-1"
    assert "--setopt=openfleet-container-toolkit.repo_gpgcheck=1" in machine.commands[0]
    with pytest.raises(PlanError, match=r"There is: 1\.18\.2-1, 1\.17\.8-1"):
        dnf.choose("1.19.0")
    dnf.close()
    assert dnf.download("1.18.2-1") == "" and dnf.install("1.18.2-1") == ""
    assert machine.commands[-1][-4:] == ["%s-1.18.2-1" % name for name in rules.PACKAGES]
    assert not any("nogpgcheck" in part for command in machine.commands for part in command)


def test_dnf_goes_back_to_an_older_version_by_its_own_command(tmp_path):
    there = "".join("%s\t1.18.2-1\n" % name for name in rules.PACKAGES)
    machine = Machine(rpm=(0, there, ""))
    Dnf(machine, str(tmp_path / "versionlock.list")).install("1.17.8-1")
    assert "downgrade" in machine.commands[-1]


def test_dnf_locks_and_sees_what_is_locked(tmp_path):
    lock = tmp_path / "versionlock.list"
    lock.write_text("libnvidia-container1-0:1.18.2-1.*\n")
    machine = Machine(
        rpm=(1, "libnvidia-container1\t1.18.2-1\npackage nvidia-container-toolkit is not installed\n", "")
    )
    dnf = Dnf(machine, str(lock))
    assert dnf.packages() == (Package("libnvidia-container1", "1.18.2-1", held=True),)
    assert dnf.hold(rules.PACKAGES) == ""
    assert machine.commands[-1][-5:] == ["add", *rules.PACKAGES]


def test_dnf_says_who_would_be_left_without(tmp_path):
    said = "error: Failed dependencies:\n\tnvidia-container-toolkit is needed by (installed) nvidia-docker2-2.14.0-1.noarch\n"
    dnf = Dnf(Machine(rpm=(1, "", said)), str(tmp_path / "versionlock.list"))
    assert dnf.removals_of_removing(["nvidia-container-toolkit"]) == ["nvidia-docker2"]


# -- The role and the module -------------------------------------------------------------------------------------------


def test_the_modules_documentation_is_its_argument_spec():
    documented = yaml.safe_load(container_toolkit.DOCUMENTATION)["options"]
    spec = container_toolkit.argspec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required", "choices", "elements"):
            assert documented[name].get(key) == option.get(key), (name, key)


def test_the_roles_defaults_are_those_of_its_argument_specs():
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    for entry_point in specs.values():
        assert {name: option["default"] for name, option in entry_point["options"].items()} == defaults


def test_the_role_hands_every_option_to_the_module():
    (block,) = yaml.safe_load((ROLE / "tasks" / "main.yml").read_text())
    assert set(block["module_defaults"]["openfleet.gpu.container_toolkit"]) == set(container_toolkit.argspec())
