# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The toolkit's repository and packages: files, DNF commands and host queries."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Package
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files, observe, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.dnf import Dnf
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Request
from tests.unit.toolkit_hosts import ROLE, URL


@pytest.mark.parametrize(
    ("manager", "machine", "expected"),
    [
        ("apt", "x86_64", "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"),
        ("apt", "aarch64", "https://nvidia.github.io/libnvidia-container/stable/deb/arm64"),
        ("dnf", "x86_64", "https://nvidia.github.io/libnvidia-container/stable/rpm/x86_64"),
        ("dnf", "aarch64", "https://nvidia.github.io/libnvidia-container/stable/rpm/aarch64"),
    ],
)
def test_default_address_is_documented(manager, machine, expected):
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert files.repository_url(defaults["container_toolkit_repository_url"], manager, machine) == expected


def test_a_repository_is_never_used_unverified():
    apt, dnf = (files.sources(manager, URL, files.KEYRINGS[manager]) for manager in ("apt", "dnf"))
    assert "[signed-by=/etc/apt/keyrings/openfleet-container-toolkit.gpg]" in apt and "trusted" not in apt
    assert "repo_gpgcheck=1\n" in dnf and "gpgkey=file:///etc/pki/rpm-gpg/" in dnf and "sslverify=1" in dnf


def test_settings_survive_systemds_quoting():
    assert 'Environment="A=50%% \\"x\\" \\\\"' in files.settings({"A": '50% "x" \\'})


class Machine:
    """Answers commands like RHEL's tools, and records them."""

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
    assert "--setopt=openfleet-container-toolkit-asked.repo_gpgcheck=1" in machine.commands[0]
    with pytest.raises(PlanError, match=r"Available: 1\.18\.2-1, 1\.17\.8-1"):
        dnf.choose("1.19.0")
    dnf.close()
    assert dnf.download("1.18.2-1") == "" and dnf.install("1.18.2-1") == ""
    assert machine.commands[-1][-4:] == ["%s-1.18.2-1" % name for name in rules.PACKAGES]
    assert not any("nogpgcheck" in part for command in machine.commands for part in command)


def test_dnf_downgrades_with_its_own_command(tmp_path):
    there = "".join("%s\t1.18.2-1\n" % name for name in rules.PACKAGES)
    machine = Machine(rpm=(0, there, ""))
    Dnf(machine, str(tmp_path / "versionlock.list")).install("1.17.8-1")
    assert "downgrade" in machine.commands[-1]


def test_package_in_two_versions_is_broken(tmp_path):
    """After a killed transaction, rpm lists both versions.

    It removes the old version last.
    """
    whole, torn = rules.PACKAGES[:2]
    listed = "".join("%s\t%s-1\n" % row for row in ((whole, "1.17.8"), (torn, "1.17.8"), (torn, "1.18.2")))
    packages = Dnf(Machine(rpm=(0, listed, "")), str(tmp_path / "none")).packages()
    assert [(package.name, package.version, package.broken) for package in packages] == [
        (whole, "1.17.8-1", False),
        (torn, "1.18.2-1", True),
    ]
    assert rules.installed(packages) == ""


def test_dnf_locks_and_lists_locks(tmp_path):
    lock = tmp_path / "versionlock.list"
    lock.write_text("libnvidia-container1-0:1.18.2-1.*\n")
    machine = Machine(
        rpm=(1, "libnvidia-container1\t1.18.2-1\npackage nvidia-container-toolkit is not installed\n", "")
    )
    dnf = Dnf(machine, str(lock))
    assert dnf.packages() == (Package("libnvidia-container1", "1.18.2-1", held=True),)
    assert dnf.hold(rules.PACKAGES) == ""
    assert machine.commands[-1][-5:] == ["add", *rules.PACKAGES]


def test_dnf_names_dependent_packages(tmp_path):
    said = "error: Failed dependencies:\n\tnvidia-container-toolkit is needed by (installed) nvidia-docker2-2.14.0-1.noarch\n"
    dnf = Dnf(Machine(rpm=(1, "", said)), str(tmp_path / "versionlock.list"))
    assert dnf.removals_of_removing(["nvidia-container-toolkit"]) == ["nvidia-docker2"]


@pytest.mark.parametrize("state", ["active", "inactive"])
def test_stopped_docker_is_not_queried(monkeypatch, tmp_path, state):
    """A query would start Docker through its socket."""
    monkeypatch.setattr(observe, "is_installed", lambda program: program == "dockerd")
    unit = "Id=docker.service\nLoadState=loaded\nUnitFileState=disabled\nActiveState=%s\n" % state
    asked_for = [engine.unit for engine in rules.ENGINES if engine.unit] + [rules.REFRESH_PATH, rules.REFRESH_SERVICE]
    unit += "".join("\nId=%s\nLoadState=not-found\n" % name for name in asked_for if name != "docker.service")
    machine = Machine(info=(0, '{"ContainersRunning": 1, "LiveRestoreEnabled": false}', ""), systemctl=(0, unit, ""))
    host = observe.look(Dnf(machine, str(tmp_path / "none")), Request("1.18.2"), {}, {}, machine)
    asked = any(command[0] == "docker" for command in machine.commands)
    assert (asked, host.docker_containers) == ((True, True) if state == "active" else (False, None))
