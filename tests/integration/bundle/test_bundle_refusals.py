# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check which bundles the playbook refuses, and what remains.

The tests also check what the next run does.
"""

from __future__ import annotations

import fcntl

import pytest

DRIVER = "repositories/driver/debian12/x86_64/"
PACKAGE = "nvidia-driver-cuda_580.105.08-1_amd64.deb"


def replace(path, content):
    """Replace a vendor's file.

    Other tests share the files through hard links, so never write in place.
    """
    path.unlink()
    path.write_bytes(content)


def no_half_file(site):
    """Check that every final file is complete and equal to the vendor's file."""
    for path in (site.bundle / DRIVER).glob("*.deb"):
        assert path.read_bytes() == (site.vendor.driver / path.name).read_bytes()
    assert not (site.bundle / DRIVER / "InRelease").exists()
    assert not (site.bundle / "manifest.json").exists()


def test_package_that_differs_from_the_index_is_not_kept(site):
    good = (site.vendor.driver / PACKAGE).read_bytes()
    replace(site.vendor.driver / PACKAGE, good[:-1] + b"x")
    said = site.make(expect=1)
    assert "SHA-256" in said and PACKAGE in said
    assert not (site.bundle / DRIVER / PACKAGE).exists()
    no_half_file(site)
    replace(site.vendor.driver / PACKAGE, good)
    site.make()
    assert (site.bundle / DRIVER / PACKAGE).read_bytes() == good


def test_index_signed_by_another_key_is_refused(site):
    vendor = site.vendor
    for folder in (vendor.driver, vendor.toolkit):
        (folder / "InRelease").unlink()
        vendor.build.sign(folder, vendor.build.FOREIGN, vendor.home)
    assert "not signed by a trusted key" in site.make(expect=1)
    no_half_file(site)


def test_untrusted_key_is_refused(site):
    vendor = site.vendor
    replace(vendor.driver / "3bf863cc.pub", vendor.export(vendor.build.FOREIGN).encode())
    said = site.make(expect=1)
    assert "nvidia_driver_repository_fingerprints" in said and vendor.fingerprint in said
    no_half_file(site)


def test_an_unsigned_repository_is_refused(site):
    (site.vendor.driver / "InRelease").unlink()
    assert "it is not signed" in site.make(expect=1)
    no_half_file(site)


@pytest.mark.thorough
def test_detached_signature_is_accepted(site):
    vendor = site.vendor
    (vendor.driver / "InRelease").unlink()
    release = vendor.driver / "Release"
    vendor.build.gpg(
        "--local-user", vendor.build.OWNER, "--armor", "--output", str(release) + ".gpg", "--detach-sign", str(release),
        home=vendor.home,
    )  # fmt: skip
    site.make()
    assert {"Release", "Release.gpg"} <= {path.name for path in (site.bundle / DRIVER).iterdir()}
    # The playbook refuses a signature from an earlier state of the file.
    replace(release, release.read_bytes() + b"\n")
    assert "the signature is wrong" in site.make(expect=1)


@pytest.mark.parametrize(
    ("name", "was", "becomes", "problem"),
    [
        ("InRelease", b"Label: lab", b"Label: Lab", "the signature is wrong"),
        ("Packages", b"580.105.08", b"580.105.09", "differs from the signed Release"),
    ],
)
def test_changed_index_is_refused(site, name, was, becomes, problem):
    path = site.vendor.driver / name
    assert was in path.read_bytes()
    replace(path, path.read_bytes().replace(was, becomes))
    assert problem in site.make(expect=1)
    no_half_file(site)


@pytest.mark.thorough
def test_interrupted_mirror_resumes_with_the_rest(site):
    path = "/cuda/debian12/x86_64/" + PACKAGE
    site.vendor.dying.add(path)
    said = site.make(expect=1)
    assert "it ended after" in said
    no_half_file(site)
    assert not (site.bundle / DRIVER / PACKAGE).exists()
    site.vendor.dying.clear()
    site.vendor.requests.clear()
    site.make()
    assert (site.bundle / DRIVER / PACKAGE).read_bytes() == (site.vendor.driver / PACKAGE).read_bytes()
    # The next run requests only the package's missing part, and no complete package again.
    assert [(name, bool(given)) for name, given in site.vendor.requests if PACKAGE in name] == [(path, True)]
    assert not [name for name, _given in site.vendor.requests if "libcuda1_" in name]
    assert not (site.bundle / ".partial").exists()


@pytest.mark.thorough
def test_partial_file_of_other_content_is_fetched_again(site):
    site.make()
    entry = next(entry for entry in site.manifest()["files"] if entry["path"].endswith(PACKAGE))
    (site.bundle / DRIVER / PACKAGE).unlink()
    (site.bundle / ".partial").mkdir()
    (site.bundle / ".partial" / entry["sha256"]).write_bytes(b"something else")
    site.make()
    assert (site.bundle / DRIVER / PACKAGE).read_bytes() == (site.vendor.driver / PACKAGE).read_bytes()


def test_damaged_file_in_the_bundle_is_repaired(site):
    site.make()
    before = site.manifest()
    (site.bundle / DRIVER / PACKAGE).write_bytes(b"bad")
    said = site.make()
    assert "fetched 1 files" in said
    assert (site.bundle / DRIVER / PACKAGE).read_bytes() == (site.vendor.driver / PACKAGE).read_bytes()
    assert site.manifest() == before


def test_failed_run_keeps_the_previous_bundle_complete(site):
    site.make()
    before = {name: (site.bundle / name).read_bytes() for name in site.files()}
    site.variables["nvidia_driver_version"] = "580.95.05"
    site.vendor.dying.add("/cuda/debian12/x86_64/nvidia-driver-cuda_580.95.05-1_amd64.deb")
    site.make(expect=1)
    assert {name: (site.bundle / name).read_bytes() for name in before} == before


@pytest.mark.thorough
def test_concurrent_run_is_refused(site):
    site.make()
    with (site.bundle / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run is making this bundle" in site.make(expect=1)
    site.make()


def test_unwritable_folder_is_named(site):
    site.bundle.write_text("no folder")
    said = site.make(expect=1)
    assert str(site.bundle) in said and "Traceback" not in said


def test_missing_platform_is_requested(site):
    del site.hosts["switched"]["gpu_bundle_platforms"]
    said = site.make(expect=1)
    assert "switched" in said and "gpu_bundle_platforms" in said


def test_variable_that_needs_facts_is_named(site):
    site.hosts["plain"]["nvidia_driver_version"] = "{{ ansible_facts['driver'] }}"
    said = site.make(expect=1)
    assert "plain: nvidia_driver_version" in said and "without contacting the host" in said


def test_two_repositories_for_one_folder_are_refused(site):
    site.hosts["plain"]["nvidia_driver_repository_url"] = site.vendor.url + "/elsewhere/{directory}/{architecture}"
    assert "hosts need it from" in site.make(expect=1)
