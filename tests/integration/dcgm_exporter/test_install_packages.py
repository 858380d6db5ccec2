# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install NVIDIA's packages with the real apt and dpkg in a directory.

The packages are stand-ins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.install.exporter import managers, packages
from ansible_collections.openfleet.gpu.plugins.module_utils.install.files import Installation, InstallError
from tests.integration.exporter_installer import DOCKER, ETC, Installer

CORE, EXPORTER = "datacenter-gpu-manager-4-core", "datacenter-gpu-manager-exporter"
MASK = "nvidia-dcgm-exporter.service"
BUNDLE = dict(DOCKER, packages=[CORE, EXPORTER], masked=[MASK])


class Host(Installer):
    """A root directory with its own dpkg database and repository."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        super().__init__(folder / "root")
        self.repository, self.index = folder / "repository", []
        self.repository.mkdir()
        for path in (
            *("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists", "var/cache/apt", "var/log/apt"),
            *("etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d"),
        ):
            (self.root / path).mkdir(parents=True)
        for name in ("status", "available"):
            (self.root / "var/lib/dpkg" / name).touch()
        (self.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{self.repository} ./\n")
        options = ["--root=" + str(self.root), "--force-not-root", "--force-bad-path", "--log=/dev/null"]
        (folder / "apt.conf").write_text(
            f'Dir "{self.root}";\nDir::State::status "{self.root}/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n'
            'Dir::Bin::dpkg "/usr/bin/dpkg";\n'
            "DPkg::Options { %s };\n" % " ".join(f'"{option}";' for option in options)
        )
        monkeypatch.setenv("APT_CONFIG", str(folder / "apt.conf"))
        monkeypatch.setenv("DPKG_ADMINDIR", str(self.root / "var/lib/dpkg"))

    def offer(self, name, version="1.0-1", **fields):
        control = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "x <x@example.org>"}
        control.update({field.replace("_", "-"): text for field, text in fields.items()}, Description="a stand-in")
        text = "".join(f"{field}: {value}\n" for field, value in control.items())
        tree = self.repository / "tree"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(text)
        deb = self.repository / f"{name}_{version}.deb"
        subprocess.run(["dpkg-deb", "--build", str(tree), str(deb)], check=True, capture_output=True)
        shutil.rmtree(tree)
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        self.index.append(f"{text}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n")
        (self.repository / "Packages").write_text("\n".join(self.index))

    def apt(self, *arguments):
        command = ["apt-get", "-q", "-y", "--allow-downgrades", *arguments]
        subprocess.run(["apt-get", "-q", "update"], check=True, capture_output=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def packages(self):
        """Return all installed packages' names and versions."""
        form = "--showformat=${db:Status-Status} ${Package} ${Version}\\n"
        said = subprocess.run(["dpkg-query", "--show", form], capture_output=True, text=True, check=False).stdout
        return dict(line.split()[1:] for line in said.splitlines() if line.startswith("installed "))

    @property
    def masked(self):
        return (self.root / "etc/systemd/system" / MASK).is_symlink()


@pytest.fixture
def host(tmp_path, monkeypatch):
    if not all(shutil.which(name) for name in ("apt-get", "dpkg-deb")) or os.geteuid() != 0:
        pytest.skip("needs root, apt and dpkg")
    return Host(tmp_path, monkeypatch)


def offer_dcgm(host, version="1.0-1", **fields):
    host.offer(CORE, version, Depends="dcgm-needs", **fields)
    host.offer(EXPORTER, version, Depends=CORE)
    host.offer("dcgm-needs", version)


def test_installed_packages_are_removed_after_a_change_of_source(host):
    offer_dcgm(host)
    host.offer("others")
    host.apt("install", "others")
    assert f"install packages {CORE}, {EXPORTER}" in host(BUNDLE)["done"]
    assert set(host.packages) == {CORE, EXPORTER, "dcgm-needs", "others"} and host.masked
    assert host(BUNDLE)["changed"] is False
    # The package is still installed, and without a mask its own unit would listen on all addresses.
    host(DOCKER)
    assert host.masked and CORE in host.packages
    said = host(dict(DOCKER, state="absent"), "--check")
    assert host(dict(DOCKER, state="absent"))["done"] == said["done"]
    assert set(host.packages) == {"others"} and not host.masked
    assert host(dict(DOCKER, state="absent"))["changed"] is False


def test_packages_from_before_the_role_stay(host):
    offer_dcgm(host)
    host.apt("install", CORE)
    host(BUNDLE)
    host(dict(BUNDLE, state="absent"))
    assert set(host.packages) == {CORE, "dcgm-needs"}


def test_packages_that_the_role_never_installed_stay(host):
    offer_dcgm(host)
    host.apt("install", EXPORTER)
    assert host(dict(BUNDLE, state="absent"))["changed"] is False
    assert set(host.packages) == {CORE, EXPORTER, "dcgm-needs"}


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"Conflicts": "others"}, "remove others"),
        ({"Breaks": "others (<< 2)"}, "change the version of others"),
    ],
)
def test_installation_removes_no_other_package(host, fields, says):
    host.offer("others", "1.0-1")
    host.offer("needs-others", Depends="others")
    host.apt("install", "needs-others")
    if "Breaks" in fields:
        host.offer("others", "2.0-1")
    offer_dcgm(host, **fields)
    before = host.packages
    assert says in host(BUNDLE, failed=True)
    assert host.packages == before
    assert not host.masked and not (host.root / ETC / "installed.json").exists()


def test_packages_that_others_need_are_not_removed(host):
    offer_dcgm(host)
    host(BUNDLE)
    host.offer("others", Depends=CORE)
    host.apt("install", "others")
    before = host.packages
    assert "remove others" in host(dict(BUNDLE, state="absent"), failed=True)
    assert host.packages == before and (host.root / ETC / "counters.csv").exists()


def test_downgrade_needs_an_explicit_version(host):
    for version in ("1.0-1", "2.0-1"):
        offer_dcgm(host, version)
    host(BUNDLE)
    assert host.packages[EXPORTER] == "2.0-1"
    host(dict(BUNDLE, version="1.0"))
    assert host.packages == {CORE: "2.0-1", EXPORTER: "1.0-1", "dcgm-needs": "2.0-1"}


def test_held_package_stays(host):
    for version in ("1.0-1", "2.0-1"):
        offer_dcgm(host, version)
    host(BUNDLE)
    subprocess.run(["apt-mark", "hold", EXPORTER], check=True, capture_output=True)
    assert host(BUNDLE)["changed"] is False
    assert EXPORTER in host(dict(BUNDLE, version="1.0"), failed=True)
    assert host.packages[EXPORTER] == "2.0-1"


def test_needrestart_restarts_no_service(host, tmp_path, monkeypatch):
    """Check the environment variable that needrestart(1) reads.

    needrestart is a hook of dpkg. It restarts no service if this variable is set.
    """
    offer_dcgm(host)
    noted = tmp_path / "noted"
    with (tmp_path / "apt.conf").open("a") as config:
        config.write(f'DPkg::Post-Invoke {{ "echo $NEEDRESTART_SUSPEND >> {noted}"; }};\n')
    host(BUNDLE)
    host(dict(BUNDLE, state="absent"))
    assert noted.read_text().split() == ["1", "1"]


#: DNF 4's output: a heading for each kind of change, and then indented lines.
DNF = """\
Dependencies resolved.
================================================================================
 Package                            Arch    Version      Repository        Size
================================================================================
Installing:
 datacenter-gpu-manager-exporter    x86_64  4.8.2-1      cuda              10 M
     replacing  dcgm-exporter.x86_64 3.0-1
Upgrading:
 glibc                              x86_64  2.34-100     baseos           2.0 M
Installing dependencies:
 libsomething                       x86_64  1-1          baseos            10 k
Removing dependent packages:
 slurm-gpu                          x86_64  1-1          @site             10 k

Transaction Summary
================================================================================
Install  2 Packages
Upgrade  1 Package
Remove   1 Package

Operation aborted.
"""


def fake_dnf(folder: Path, monkeypatch) -> None:
    """Put stand-ins for dnf and rpm into PATH.

    dnf prints the file `table`. rpm reports that glibc is installed.
    """
    programs = {
        "dnf": f"""echo "$*" >>{folder}/asked
case " $* " in *" makecache "*) exit 0 ;; esac
grep -q ^Error {folder}/table && cat {folder}/table >&2 || cat {folder}/table
exit 1""",
        "rpm": 'case "$*" in *glibc) echo 2.34-60 ;; *) exit 1 ;; esac',
    }
    for name, text in programs.items():
        (folder / name).write_text("#!/bin/sh\n%s\n" % text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_dnf_plan_is_read_from_its_table(tmp_path, monkeypatch):
    (tmp_path / "table").write_text(DNF)
    fake_dnf(tmp_path, monkeypatch)
    dnf = managers.Dnf()
    plan = dnf.plan(dnf.install([EXPORTER], ""))
    asked = (tmp_path / "asked").read_text().split()
    assert "--assumeno" in asked and "--assumeyes" not in asked
    assert plan.new == [EXPORTER, "libsomething"]
    others = plan.others(lambda name: name.startswith("datacenter-gpu-manager-"))
    assert others == "change the version of glibc, remove dcgm-exporter, remove slurm-gpu"
    (tmp_path / "table").write_text("Error: no network\n")
    with pytest.raises(FleetError, match="no network"):
        dnf.plan(dnf.install([EXPORTER], ""))


@pytest.mark.parametrize("url", ["https://example.org/cuda/rhel9/x86_64", ""])
def test_dnf_gets_the_metadata_key_before_a_plan(tmp_path, monkeypatch, url):
    """Import the key before dnf plans.

    dnf does not import a key while it plans, and would ignore the repository.
    """
    (tmp_path / "table").write_text(DNF)
    fake_dnf(tmp_path, monkeypatch)
    monkeypatch.setattr(packages, "manager", managers.Dnf)
    target = Installation(tmp_path / "root", False)
    repository = {"url": url, "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----", "repo_gpgcheck": True}
    with pytest.raises(InstallError, match=r"nothing was installed: .* change the version of glibc"):
        packages.bring(target, dict(BUNDLE, repository=repository))
    asked = (tmp_path / "asked").read_text().splitlines()
    fetched = [line for line in asked if " makecache " in line]
    assert [line.split()[-1] for line in fetched] == ["--repo=openfleet-dcgm"] * bool(url)
    # The host's configuration may allow dnf to skip failing repositories.
    assert all("--setopt=openfleet-dcgm.skip_if_unavailable=0" in line for line in fetched)
    assert "--assumeno" in asked[-1] and " install " in asked[-1]
    assert (target.root / packages.DNF_SOURCE).exists() == bool(url)
