# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the common code of driver and toolkit packages: keys, APT and DNF files."""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.packages import apt, dnf, keys, model
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.change import PackageChange
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Owner, Package, Step

OWNER = Owner("some_role", "openfleet-some", "something", "some")
#: Another vendor. The collection does not install its driver.
AMD = Owner(
    "amd_driver",
    "openfleet-amd",
    "the driver",
    "amdgpu",
    apt="deb [signed-by={keyring}] {url} jammy main\n",
    dnf="[{name}]\nbaseurl={url}\n{settings}\ngpgkey=file://{keyring}\n",
    settings=("gpgcheck=1",),
)


def answers(code=0, output="", errors=""):
    """Return a function that answers every command with this status and these texts."""
    return lambda command: subprocess.CompletedProcess(command, code, output, errors)


def test_no_key_is_trusted_by_default():
    with pytest.raises(PlanError, match=r"^some_role_repository_fingerprints: it is empty, so no key is trusted"):
        keys.verified(OWNER, "/nonexistent", (), "anything", "")


def test_invalid_key_is_refused_with_the_variables_name():
    with pytest.raises(
        PlanError, match=r"^some_role_repository_key: this is not a key: .*some_role_repository_key_url"
    ):
        keys.verified(OWNER, "/nonexistent", ("A" * 40,), "no key", "")


def test_unfetchable_key_is_named_with_its_address(tmp_path):
    with pytest.raises(PlanError, match=r"none: the repository's key cannot be fetched: .*some_role_repository_key\."):
        keys.verified(OWNER, "/nonexistent", ("A" * 40,), "", (tmp_path / "none").as_uri())


@pytest.mark.parametrize(
    ("there", "trusted", "expected"),
    [(("A",), ("A", "B"), True), (("A", "C"), ("A", "B"), False), ((), ("A",), False), (("damaged",), ("A",), False)],
)
def test_key_ring_is_trusted_only_if_all_its_keys_are(there, trusted, expected):
    assert keys.trusts(there, trusted) is expected


def test_damaged_key_ring_is_an_error(tmp_path):
    (tmp_path / "ring").write_bytes(b"no key")
    assert keys.of(str(tmp_path / "ring")) == ("damaged",)
    assert keys.of(str(tmp_path / "none")) == ()


@pytest.mark.parametrize(
    "sources",
    [
        "# a.gpu\ndeb [signed-by=/k.gpg] http://m.example.org:80/a_b/amd64 /\n",
        "URIs: http://m.example.org:80/a_b/amd64/\n",
    ],
)
def test_only_lists_of_removed_sources_are_deleted(monkeypatch, tmp_path, sources):
    monkeypatch.setattr(apt, "LISTS", str(tmp_path))
    # apt-get update creates files with such names.
    ours = ["m.example.org:80_a%5fb_amd64_InRelease", "m.example.org:80_a%5fb_amd64_Packages"]
    others = ["m.example.org:80_a%5fb_amd64v3_Packages", "m.example.org:80_a_b_amd64_Packages", "lock"]
    for name in (*ours, *others):
        (tmp_path / name).touch()
    apt.Apt(OWNER).forget_lists(sources)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_only_fetched_and_installed_packages_are_deleted(monkeypatch, tmp_path):
    monkeypatch.setattr(apt, "ARCHIVES", str(tmp_path))
    ours = ["one_1.2-1_amd64.deb", "two_1%3a2.0_all.deb"]
    others = ["one_1.2-10_amd64.deb", "one-more_1.2-1_amd64.deb"]
    for name in (*ours, *others):
        (tmp_path / name).touch()
    apt.Apt(OWNER).forget_fetched([("one", "1.2-1"), ("two", "1:2.0")])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_dpkg_states_are_read():
    said = (
        "a\t1\tinstall\tinstalled\nb\t2\thold\tunpacked\nc\t3\tdeinstall\tconfig-files\nd\t\tunknown\tnot-installed\n"
    )
    assert apt.Apt(OWNER, answers(1, said)).installed(["a", "b", "c", "d"]) == (
        Package("a", "1"),
        Package("b", "2", held=True, broken=True),
    )
    with pytest.raises(PlanError, match="dpkg: it does not answer"):
        apt.Apt(OWNER, answers(2)).installed()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Reading\nW: old\nE: broken\n", "E: broken"),
        ("Reading\nW: old\n", "W: old"),
        ("Reading\nDone\n", "Reading Done"),
        ("", "it gave no reason"),
    ],
)
def test_only_errors_of_apt_are_shown(said, expected):
    assert apt.complaints(said) == expected


def test_a_versionlock_is_read_by_name():
    text = "# comment\none-0:1.2-3.*\ntwo-more-2:4-5.*\n!three-0:1-1.*\n"
    assert dnf.locked(text) == {"one", "two-more"}


def test_a_repository_of_any_vendor_has_its_own_files():
    assert AMD.sources == {
        "apt": "/etc/apt/sources.list.d/openfleet-amd.list",
        "dnf": "/etc/yum.repos.d/openfleet-amd.repo",
    }
    head = "# Written by Ansible (openfleet.gpu.amd_driver); changes made here are overwritten.\n"
    key = "/etc/apt/keyrings/openfleet-amd.gpg"
    assert (
        AMD.repository("apt", "https://a.example.org/")
        == head + "deb [signed-by=%s] https://a.example.org jammy main\n" % key
    )
    assert AMD.repository("dnf", "https://a.example.org", "/k") == (
        head + "[openfleet-amd]\nbaseurl=https://a.example.org\ngpgcheck=1\ngpgkey=file:///k\n"
    )


def test_packages_of_any_vendor_in_two_versions_are_broken(monkeypatch, tmp_path):
    monkeypatch.setattr(dnf, "VERSIONLOCK", str(tmp_path / "none"))
    rows = "kernel\t1-1\nkernel\t2-1\namdgpu-dkms\t6.9.1-1\namdgpu-dkms\t6.10.0-1\n"
    assert dnf.Dnf(AMD, answers(0, rows)).installed() == (
        Package("kernel", "1-1"),
        Package("kernel", "2-1"),
        Package("amdgpu-dkms", "6.10.0-1", broken=True),
    )


def test_a_failed_change_leaves_the_former_files(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "_KEYRINGS", {"apt": str(tmp_path / "%s.gpg")})
    old, new = tmp_path / "old.list", tmp_path / "folder" / "new.list"
    old.write_text("old")
    old.chmod(0o600)
    changed = PackageChange(apt.Apt(AMD, answers()), None, b"key", answers())
    for step in (Step("key", "k"), Step("write", "w", (str(old), "two")), Step("write", "n", (str(new), "three"))):
        changed._do(step)
    assert changed.done == ["k", "w", "n"]
    assert [(tmp_path / "openfleet-amd.gpg").read_bytes(), old.read_text(), new.read_text()] == [b"key", "two", "three"]
    assert old.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ApplyError, match="it cannot be written"):
        changed._do(Step("write", "below a file", (str(old / "file"), "")))
    changed._put_back()
    assert (old.read_text(), new.exists(), (tmp_path / "openfleet-amd.gpg").exists()) == ("old", False, False)
