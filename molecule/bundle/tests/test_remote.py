# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a host that was set up only from a bundle and Debian's packages."""

from __future__ import annotations

import json
import os
import re

from tests.lab.lab_fixtures import REPOSITORY

LAB = REPOSITORY / ".lab"
RELEASE = os.environ.get("LAB_RELEASE") or "bookworm"
DIRECTORY = {"bookworm": "debian12", "trixie": "debian13"}[RELEASE]
#: The vendor's folder for each folder of the bundle.
ORIGINS = {
    f"repositories/driver/{DIRECTORY}/x86_64": f"mirror-{RELEASE}/cuda/repos/{DIRECTORY}/x86_64",
    "repositories/container-toolkit/deb/amd64": "mirror-toolkit/stable/deb/amd64",
}


def manifest():
    return json.loads((LAB / "bundle" / "manifest.json").read_text())


def test_host_reaches_only_itself(remote):
    """Check that the host reaches only itself.

    All its software is from the bundle or from Debian.
    """
    assert remote.check_output("ls /sys/class/net").split() == ["lo"]
    there = set(remote.check_output("find /srv/mirror -maxdepth 1 -mindepth 1 -type d -printf '%f '").split())
    assert there == {"bundle", "debian", "simulated"}


def test_every_vendor_package_is_from_the_bundle(remote):
    """Check that the packages are from the bundle, in the versions of its manifest.

    apt verified the bundle's index, and lists no other source.
    """
    packages = {
        name: versions for repository in manifest()["repositories"] for name, versions in repository["packages"].items()
    }
    lines = remote.check_output("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n'").splitlines()
    installed = {name: version for name, version, state in map(str.split, lines) if state == "installed"}
    assert set(packages) <= set(installed)
    assert {name: [installed[name]] for name in packages} == packages
    sources = remote.check_output("cat /etc/apt/sources.list.d/*")
    for folder in ORIGINS:
        assert "http://127.0.0.1:8080/bundle/" + folder in sources
    assert "nvidia.com" not in sources and "nvidia.github.io" not in sources


def test_index_equals_the_vendors(remote):
    """Check that the index has the vendor's signature, and that its key is trusted."""
    signed_by = {repository["folder"]: repository["signed_by"] for repository in manifest()["repositories"]}
    for folder, origin in ORIGINS.items():
        signed = (LAB / origin / "InRelease").read_bytes()
        assert remote.file(f"/srv/mirror/bundle/{folder}/InRelease").content == signed
        assert signed_by[folder] == (LAB / origin.split("/")[0] / "fingerprint").read_text().split()


def test_gpus_match_the_layout(remote):
    assert remote.check_output("cat /sys/module/nvidia/version") == "580.105.08"
    listed = remote.check_output("nvidia-smi -L")
    assert listed.count("MIG 3g.40gb") == 2
    # The run applies the layout after it installs the toolkit, and the specification contains the layout's devices.
    specification = remote.check_output("cat /var/run/cdi/nvidia.yaml")
    assert "nvidia.com/gpu" in specification
    devices = set(re.findall(r'- name: "?([^"\s]+)', specification))
    assert {"0:0", "0:1", "1", "all"} <= devices and "0" not in devices
