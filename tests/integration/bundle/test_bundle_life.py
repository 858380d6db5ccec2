# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create, update and use a bundle from an inventory, without reaching a host."""

from __future__ import annotations

import functools
import hashlib
import http.server
import subprocess
import threading

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.driver import files as driver_files
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.openpgp import binary
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files as toolkit_files
from tests.integration.bundle.apt_host import AptHost, names

DRIVER = "repositories/driver/debian12/x86_64/"
TOOLKIT = "repositories/container-toolkit/deb/amd64/"
PINNED = ["*nvidia*", "libcuda1", "nvlsm"]
#: The role's packages on debian-12, and all their dependencies that have stand-ins.
PACKAGES = {
    "nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "nvidia-persistenced", "nvidia-kernel-open-dkms",
    "nvidia-kernel-support", "firmware-nvidia-gsp",
}  # fmt: skip
TOOLKIT_PACKAGES = {
    "libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit-base", "nvidia-container-toolkit",
}  # fmt: skip


@pytest.fixture
def serve():
    """Serve a folder over plain HTTP."""
    servers = []

    def start(folder):
        handler = functools.partial(Quiet, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return "http://127.0.0.1:%d" % server.server_port

    yield start
    for server in servers:
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def debs(bundle, folder):
    return {path.name for path in (bundle / folder).glob("*.deb")}


def other_side(site, url):
    """Return the variables that the bundle gives to the air-gapped inventory."""
    values = yaml.safe_load((site.bundle / "gpu_bundle.yml").read_text())
    return {name: str(value).replace("{{ gpu_bundle_url }}", url) for name, value in values.items()}


def test_apt_of_a_host_installs_everything_from_the_bundle(site, serve, tmp_path):
    """Install with the role's sources, key and pins.

    Other packages come from the distribution.
    """
    site.make()
    manifest = site.manifest()
    values = other_side(site, serve(site.bundle))
    host = AptHost(tmp_path / "host", names(manifest["needed_from_the_distribution"]))
    driver = values["nvidia_driver_repository_url"].format(directory="debian12", architecture="x86_64")
    toolkit = toolkit_files.repository_url(values["container_toolkit_repository_url"], "apt", "x86_64")
    for name, key in (("driver", DRIVER + "3bf863cc.pub"), ("toolkit", "repositories/container-toolkit/gpgkey")):
        (tmp_path / (name + ".gpg")).write_bytes(binary((site.bundle / key).read_bytes()))
    host.write("sources/driver.sources", driver_files.OWNER.repository("apt", driver, str(tmp_path / "driver.gpg")))
    host.write("sources/toolkit.list", toolkit_files.OWNER.repository("apt", toolkit, str(tmp_path / "toolkit.gpg")))
    host.write("preferences/driver", driver_files.preferences("580.105.08", PINNED))
    updated = host.apt("update", "--error-on=any")
    assert updated.returncode == 0, updated.stderr
    asked = ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-fabricmanager"]
    exact = ["%s=580.105.08-1" % name for name in asked] + ["%s=1.18.2-1" % name for name in TOOLKIT_PACKAGES]
    done = host.apt("install", "--no-install-recommends", "--download-only", *exact, "nvidia-persistenced")
    assert done.returncode == 0, done.stdout + done.stderr
    # apt fetched exactly the packages of the bundle.
    assert host.fetched() == debs(site.bundle, DRIVER) | debs(site.bundle, TOOLKIT)
    assert host.fetched() == {
        *("%s_580.105.08-1_amd64.deb" % name for name in PACKAGES | {"nvidia-fabricmanager"}),
        *("%s_1.18.2-1_amd64.deb" % name for name in TOOLKIT_PACKAGES),
    }


def test_apt_refuses_a_changed_bundle(site, serve, tmp_path):
    site.make()
    index = site.bundle / DRIVER / "Packages"
    index.write_text(index.read_text().replace("580.105.08", "580.105.09"))
    url = other_side(site, serve(site.bundle))["nvidia_driver_repository_url"]
    host = AptHost(tmp_path / "host", [])
    (tmp_path / "key.gpg").write_bytes(binary((site.bundle / DRIVER / "3bf863cc.pub").read_bytes()))
    address = url.format(directory="debian12", architecture="x86_64")
    host.write("sources/driver.sources", driver_files.OWNER.repository("apt", address, str(tmp_path / "key.gpg")))
    updated = host.apt("update", "--error-on=any")
    assert updated.returncode != 0
    assert "unexpected size" in updated.stderr or "Hash Sum mismatch" in updated.stderr


@pytest.mark.core
def test_manifest_lists_hosts_of_each_file(site):
    site.make()
    manifest = site.manifest()
    hosts = {entry["what"]: entry["hosts"] for entry in manifest["files"]}
    assert hosts["nvidia-driver-cuda 580.105.08-1"] == ["plain", "switched"]
    assert hosts["nvidia-fabricmanager 580.105.08-1"] == ["switched"]
    needed = {entry["name"] for entry in manifest["needed_from_the_distribution"]}
    assert needed == {"dkms", "libc6", "libseccomp2", "linux-headers-KERNEL", "python3"}
    assert [found["signed_by"] for found in manifest["repositories"]] == [[site.vendor.fingerprint]] * 2
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=str(site.bundle), check=False)
    assert checked.returncode == 0
    listed = {line.split("  ")[1] for line in (site.bundle / "SHA256SUMS").read_text().splitlines()}
    assert listed == {name for name in site.files() if name.startswith("repositories/")}


def test_second_run_fetches_and_writes_nothing(site):
    site.make()
    before = site.files()
    site.vendor.requests.clear()
    said = site.make()
    assert "changed=0" in said
    assert {name.rpartition("/")[2] for name, _range in site.vendor.requests} == {"InRelease", "3bf863cc.pub", "gpgkey"}
    assert site.files() == before


def test_dry_run_lists_packages_and_writes_nothing(site):
    said = site.make("--check", "--diff")
    assert "changed=1" in said
    assert "+%snvidia-driver-cuda_580.105.08-1_amd64.deb" % DRIVER in said
    assert not site.bundle.exists()
    assert not [name for name, _range in site.vendor.requests if name.endswith(".deb")]


@pytest.mark.thorough
def test_new_version_is_fetched_and_old_one_pruned_on_request(site):
    site.make()
    site.variables["nvidia_driver_version"] = "580.95.05"
    said = site.make()
    assert "no longer needed" in said
    assert debs(site.bundle, DRIVER) == {
        "%s_%s-1_amd64.deb" % (name, version)
        for name in PACKAGES | {"nvidia-fabricmanager"}
        for version in ("580.95.05", "580.105.08")
    }
    site.make("--check", "-e", "gpu_bundle_prune=true")
    assert "%snvidia-driver-cuda_580.105.08-1_amd64.deb" % DRIVER in site.files()
    site.make("-e", "gpu_bundle_prune=true")
    assert debs(site.bundle, DRIVER) == {
        "%s_580.95.05-1_amd64.deb" % name for name in PACKAGES | {"nvidia-fabricmanager"}
    }
    assert site.manifest()["no_longer_needed"] == []


def test_branch_is_its_newest_version_and_additional_ones_are_fetched(site):
    site.variables["nvidia_driver_version"] = "580"
    site.variables["gpu_bundle_container_toolkit_versions"] = ["1.17.8"]
    site.make()
    assert "nvidia-driver-cuda_580.105.08-1_amd64.deb" in debs(site.bundle, DRIVER)
    assert "nvidia-driver-cuda_580.95.05-1_amd64.deb" not in debs(site.bundle, DRIVER)
    assert debs(site.bundle, TOOLKIT) == {
        "%s_%s-1_amd64.deb" % (name, version) for name in TOOLKIT_PACKAGES for version in ("1.17.8", "1.18.2")
    }


def test_files_of_the_inventory_are_included(site, tmp_path):
    (tmp_path / "driver.run").write_text("an installer\n")
    (tmp_path / "nvidia_ml_py-1-py3-none-any.whl").write_text("a wheel\n")
    digest = subprocess.run(
        ["sha256sum", str(tmp_path / "driver.run")], capture_output=True, encoding="utf-8", check=True
    )
    site.variables.update(
        nvidia_driver_source="runfile",
        nvidia_driver_runfile=str(tmp_path / "driver.run"),
        nvidia_driver_runfile_sha256=digest.stdout.split()[0],
        gpu_layout_nvml_source="wheel",
        gpu_layout_nvml_wheel=str(tmp_path / "nvidia_ml_py-1-py3-none-any.whl"),
    )
    said = " ".join(site.make(expect=1).split())
    assert "the inventory expects" in said and "gpu_layout_nvml_hashes" in said
    site.variables["gpu_layout_nvml_hashes"] = ["sha256:" + hashlib.sha256(b"a wheel\n").hexdigest()]
    site.make("-e", "gpu_bundle_path=/mnt/bundle")
    assert (site.bundle / "files" / "driver.run").read_text() == "an installer\n"
    values = yaml.safe_load((site.bundle / "gpu_bundle.yml").read_text())
    assert values["gpu_bundle_path"] == "/mnt/bundle"
    assert values["nvidia_driver_runfile"] == "{{ gpu_bundle_path }}/files/driver.run"
    assert values["gpu_layout_nvml_wheel"] == "{{ gpu_bundle_path }}/files/nvidia_ml_py-1-py3-none-any.whl"
    (tmp_path / "driver.run").write_text("another one\n")
    assert "the inventory expects" in site.make(expect=1)
    assert (site.bundle / "files" / "driver.run").read_text() == "an installer\n"


def test_device_plugin_is_fetched_once(site, vendor):
    (vendor.root / "plugin.yml").write_text("kind: DaemonSet\n")
    site.variables.update(
        gpu_bundle_parts=["kubernetes"],
        gpu_kubernetes_plugin_manifest=vendor.url + "/plugin.yml",
        gpu_kubernetes_plugin_sha256="0" * 64,
    )
    assert "the inventory expects" in " ".join(site.make(expect=1).split())
    site.variables["gpu_kubernetes_plugin_sha256"] = hashlib.sha256(b"kind: DaemonSet\n").hexdigest()
    site.make()
    assert (site.bundle / "files" / "plugin.yml").read_text() == "kind: DaemonSet\n"
    values = yaml.safe_load((site.bundle / "gpu_bundle.yml").read_text())
    assert values["gpu_kubernetes_plugin_manifest"] == "{{ gpu_bundle_path }}/files/plugin.yml"
    vendor.requests.clear()
    site.make()
    assert not vendor.requests
