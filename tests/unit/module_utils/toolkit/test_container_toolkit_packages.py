# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the toolkit's repository and packages: files, DNF commands, host queries."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.packages import dnf
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Package
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files, observe, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Request
from tests.unit.module_utils.toolkit.toolkit_hosts import ROLE, URL


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
    deb, rpm = (rules.OWNER.repository(manager, URL) for manager in ("apt", "dnf"))
    assert "[signed-by=/etc/apt/keyrings/openfleet-container-toolkit.gpg]" in deb and "trusted" not in deb
    assert "repo_gpgcheck=1\n" in rpm and "gpgkey=file:///etc/pki/rpm-gpg/" in rpm and "sslverify=1" in rpm


def test_settings_survive_systemds_quoting():
    assert 'Environment="A=50%% \\"x\\" \\\\"' in files.settings({"A": '50% "x" \\'})


class Machine:
    """Answer commands like the tools of RHEL, and record them."""

    def __init__(self, **answers):
        self.commands, self.answers = [], answers

    def __call__(self, command):
        self.commands.append(command)
        for word, (code, output, errors) in self.answers.items():
            if word in command:
                return subprocess.CompletedProcess(command, code, output, errors)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def locks(tmp_path, monkeypatch):
    """Return the path of DNF's locks. The file does not exist yet."""
    path = tmp_path / "versionlock.list"
    monkeypatch.setattr(dnf, "VERSIONLOCK", str(path))
    return path


def Dnf(machine):
    return dnf.Dnf(rules.OWNER, machine)


@pytest.mark.parametrize("version", ["1.18.2-1", "1.17.8-1"])
def test_dnf_installs_exact_versions_with_verified_metadata(locks, version):
    """Use the same command for a downgrade as for an installation.

    molecule/rpm downgrades with DNF.
    """
    listed = "".join("%s\t%s\n\n" % (name, found) for name in rules.PACKAGES for found in ("1.17.8-1", "1.18.2-1"))
    table = "Installing:\n" + "".join(" %s x86_64 %s r 1 k\n" % (name, version) for name in rules.PACKAGES)
    machine = Machine(repoquery=(0, listed, ""), **{"--assumeno": (1, table, "Operation aborted.")})
    manager = Dnf(machine)
    manager.open(URL, b"key")
    assert rules.choose(manager.offered(rules.PACKAGES), version.partition("-")[0]) == version
    assert "--setopt=openfleet-container-toolkit-asked.repo_gpgcheck=1" in machine.commands[0]
    with pytest.raises(PlanError, match=r"Available: 1\.18\.2-1, 1\.17\.8-1"):
        rules.choose(manager.offered(rules.PACKAGES), "1.19.0")
    exact = [manager.exactly % (name, version) for name in rules.PACKAGES]
    transaction = manager.plan_install((), exact, rules.is_part)
    assert transaction.installs == tuple(sorted((name, "", version) for name in rules.PACKAGES))
    assert manager.download(transaction) == "" and manager.install(transaction) == ""
    assert machine.commands[-1][-4:] == ["%s-%s" % (name, version) for name in rules.PACKAGES]
    manager.close()
    assert not any("nogpgcheck" in part for command in machine.commands for part in command)


def test_a_removal_that_dnf_predicts_needs_permission(locks):
    table = (
        "Installing:\n %s x86_64 1.18.2-1 r 1 k\n     replacing  nvidia-docker2.noarch 2.14.0-1\n" % rules.PACKAGES[0]
    )
    manager = Dnf(Machine(**{"--assumeno": (1, table, "Operation aborted.")}))
    transaction = manager.plan_install((), ["%s-1.18.2-1" % rules.PACKAGES[0]], rules.is_part)
    with pytest.raises(PlanError, match="to install the toolkit, nvidia-docker2 would have to be removed"):
        rules.check_removals(transaction.removed, (), "install")
    rules.check_removals(transaction.removed, ["nvidia-docker2"], "install")


def test_the_old_version_of_a_torn_package_is_no_removal(locks):
    """Leave the old version of a package to the step `repair`.

    A removal by the package's name would also remove the new version.
    """
    torn = rules.PACKAGES[1]
    table = "Removing:\n %s x86_64 1.17.8-1 @System 1 k\n" % torn
    manager = Dnf(Machine(**{"--assumeno": (1, table, "Operation aborted.")}))
    packages = [Package(torn, "1.18.2-1", broken=True)]
    assert manager.plan_install(packages, ["%s-1.18.2-1" % torn], rules.is_part).removals == ()


def test_package_in_two_versions_is_broken(locks):
    """Recognize a package of which a killed transaction left two versions.

    rpm lists both versions, because a transaction removes the old version last.
    """
    whole, torn = rules.PACKAGES[:2]
    listed = "".join("%s\t%s-1\n" % row for row in ((whole, "1.17.8"), (torn, "1.17.8"), (torn, "1.18.2")))
    packages = Dnf(Machine(rpm=(0, listed, ""))).installed(rules.PACKAGES)
    assert [(package.name, package.version, package.broken) for package in packages] == [
        (whole, "1.17.8-1", False),
        (torn, "1.18.2-1", True),
    ]
    assert rules.installed(packages) == ""


def test_kernels_in_several_versions_are_whole(locks):
    listed = "kernel-core\t5.14.0-570.12.1.el9_6\nkernel-core\t5.14.0-570.23.1.el9_6\n"
    packages = Dnf(Machine(rpm=(0, listed, ""))).installed()
    assert packages == (
        Package("kernel-core", "5.14.0-570.12.1.el9_6"),
        Package("kernel-core", "5.14.0-570.23.1.el9_6"),
    )


def test_dnf_locks_and_lists_locks(locks):
    locks.write_text("libnvidia-container1-0:1.18.2-1.*\n")
    machine = Machine(
        rpm=(1, "libnvidia-container1\t1.18.2-1\npackage nvidia-container-toolkit is not installed\n", "")
    )
    manager = Dnf(machine)
    assert manager.installed(rules.PACKAGES) == (Package("libnvidia-container1", "1.18.2-1", held=True),)
    assert manager.hold(rules.PACKAGES) == ""
    assert machine.commands[-1][-5:] == ["add", *rules.PACKAGES]


def test_dnf_names_dependent_packages(locks):
    table = "Removing:\n %s x86_64 1.18.2-1 @System 1 k\nRemoving dependent packages:\n" % rules.PACKAGES[3]
    table += " nvidia-docker2 noarch 2.14.0-1 @System 1 k\n"
    manager = Dnf(Machine(**{"--assumeno": (1, table, "Operation aborted.")}))
    transaction = manager.plan_removal((), [rules.PACKAGES[3]], rules.is_part)
    with pytest.raises(PlanError, match="to remove the toolkit, nvidia-docker2 would have to be removed"):
        rules.check_removals(transaction.removed, (), "remove")


@pytest.mark.parametrize("state", ["active", "inactive"])
def test_stopped_docker_is_not_queried(monkeypatch, locks, state):
    """A query would start Docker through its socket."""
    monkeypatch.setattr(observe, "is_installed", lambda program: program == "dockerd")
    unit = "Id=docker.service\nLoadState=loaded\nUnitFileState=disabled\nActiveState=%s\n" % state
    asked_for = [engine.unit for engine in rules.ENGINES if engine.unit] + [rules.REFRESH_PATH, rules.REFRESH_SERVICE]
    unit += "".join("\nId=%s\nLoadState=not-found\n" % name for name in asked_for if name != "docker.service")
    machine = Machine(info=(0, '{"ContainersRunning": 1, "LiveRestoreEnabled": false}', ""), systemctl=(0, unit, ""))
    host = observe.look(Dnf(machine), Request("1.18.2"), {}, {}, machine)
    asked = any(command[0] == "docker" for command in machine.commands)
    assert (asked, host.docker_containers) == ((True, True) if state == "active" else (False, None))
