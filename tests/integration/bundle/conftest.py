# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide a site, stand-ins for NVIDIA's repositories, and bundle.yml."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.integration.bundle.vendor import REPOSITORY, Vendor
from tests.lab import warm_playbook


class Site:
    """An inventory and a vendor's web server.

    The hosts' names do not resolve, so any attempt to reach a host fails.
    """

    def __init__(self, folder: Path, vendor: Vendor) -> None:
        self.folder = folder
        self.vendor = vendor
        self.bundle = folder / "bundle"
        self.inventory = folder / "hosts.yml"
        self.hosts = {"plain": {}, "switched": {}}
        self.platforms("switched", nvswitch=True)
        self.platforms("plain")
        self.variables = {
            "nvidia_driver_version": "580.105.08",
            "nvidia_driver_repository_url": vendor.url + "/cuda/{directory}/{architecture}",
            "nvidia_driver_repository_fingerprints": [vendor.fingerprint],
            "container_toolkit_version": "1.18.2",
            "container_toolkit_repository_url": vendor.url + "/toolkit/{family}/{architecture}",
            "container_toolkit_repository_key_url": vendor.url + "/toolkit/gpgkey",
            "container_toolkit_repository_fingerprints": [vendor.fingerprint],
            # Leave out Python packages and the collection, which have their own tests.
            "gpu_bundle_parts": ["driver", "container_toolkit", "nvml"],
        }

    def platforms(self, host, distribution="debian-12", **more):
        self.hosts[host]["gpu_bundle_platforms"] = [{"distribution": distribution, **more}]

    def make(self, *arguments: str, expect: int = 0, playbook: Path = REPOSITORY / "playbooks" / "bundle.yml") -> str:
        """Run the playbook, and return its output."""
        hosts = {name: {"ansible_host": name + ".invalid", **values} for name, values in self.hosts.items()}
        self.inventory.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts, "vars": self.variables}}))
        # A host finds an installed collection at its installation path, so the checkout's settings must have no effect.
        home = playbook.parents[4] if playbook.is_relative_to(self.folder) else REPOSITORY / "collections"
        directory = json.dumps({"gpu_bundle_dir": str(self.bundle)})
        done = subprocess.run(
            [*warm_playbook.COMMAND, "-i", str(self.inventory), str(playbook), "-e", directory, *arguments],
            capture_output=True,
            encoding="utf-8",
            check=False,
            cwd=str(REPOSITORY),
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(home),
                "ANSIBLE_NOCOLOR": "1",
            },
        )
        said = done.stdout + done.stderr
        assert (done.returncode == 0) == (expect == 0), said
        return said

    def manifest(self):
        return json.loads((self.bundle / "manifest.json").read_text())

    def files(self):
        """Return each file's modification time in the bundle, except its lock file."""
        return {
            path.relative_to(self.bundle).as_posix(): path.stat().st_mtime_ns
            for path in self.bundle.rglob("*")
            if path.is_file() and path.name != ".lock"
        }


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    vendor = Vendor(tmp_path_factory.mktemp("vendor"))
    server = vendor.serve()
    yield vendor
    server.shutdown()
    vendor.close()


@pytest.fixture
def vendor(served, tmp_path):
    """Serve a fresh copy of the vendor's repositories, so that tests can change them."""
    kept = tmp_path / "vendor"
    shutil.copytree(served.root, kept, copy_function=os.link)
    original, served.root = served.root, kept
    served.driver, served.toolkit = kept / "cuda" / "debian12" / "x86_64", kept / "toolkit" / "deb" / "amd64"
    served.requests.clear()
    served.dying.clear()
    yield served
    served.root = original


@pytest.fixture
def site(vendor, tmp_path):
    return Site(tmp_path, vendor)
