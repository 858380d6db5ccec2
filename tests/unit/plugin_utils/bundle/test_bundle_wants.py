# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine the packages that hosts need in a bundle from the roles' rules."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import rules as toolkit_rules
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.model import BundleError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.wants import (
    OWN_VARIABLES,
    VARIABLES,
    collect,
    driver_ask,
    platforms,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.python_pins import Pin
from tests.unit import yaml_files
from tests.unit.module_utils.driver.driver_hosts import DISTRIBUTIONS, REPOSITORY, TRUSTED

DEFAULTS = {}
for role in ("nvidia_driver", "container_toolkit", "gpu_layout", "gpu_kubernetes"):
    DEFAULTS.update(yaml_files.read(REPOSITORY / "roles" / role / "defaults" / "main.yml"))


def host(distribution="debian-12", platform=(), **values):
    given = {**DEFAULTS, "gpu_bundle_platforms": [dict(platform, distribution=distribution)]}
    return {**given, **values}


def only(wants):
    """Return the only repository, its only request, and the hosts of that request."""
    ((source, asks),) = wants.repositories.items()
    ((ask, hosts),) = asks.items()
    return source, ask, hosts


def test_every_variable_belongs_to_a_role():
    assert set(VARIABLES) <= set(DEFAULTS)
    assert not set(OWN_VARIABLES) & set(DEFAULTS)


def test_host_without_versions_needs_nothing():
    wants = collect({"a": {**DEFAULTS}}, DISTRIBUTIONS)
    assert not wants.repositories and not wants.files and not wants.nvml and not wants.named
    absent = host(nvidia_driver_version="580.105.08", nvidia_driver_state="absent", container_toolkit_state="absent")
    assert not collect({"a": absent}, DISTRIBUTIONS).repositories


def test_the_driver_of_a_debian_host():
    source, ask, hosts = only(collect({"a": host(nvidia_driver_version="580.105.08")}, DISTRIBUTIONS))
    assert source.url == "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    assert source.key_url == source.url + "/3bf863cc.pub"
    assert source.fingerprints == (TRUSTED,)
    assert source.folder == "repositories/driver/debian12/x86_64"
    assert source.key_path == source.folder + "/3bf863cc.pub"
    assert ask.locked == ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")
    assert ask.free == ("nvidia-persistenced", "linux-headers-KERNEL")
    assert hosts == {"a"}


@pytest.mark.parametrize(
    ("platform", "values", "wanted", "unwanted"),
    [
        ({"nvswitch": True}, {}, "nvidia-fabricmanager", "nvlsm"),
        ({"nvlink_bridges": True}, {}, "nvlsm", "nvidia-imex"),
        ({"nvswitch": True}, {"nvidia_driver_fabric_manager": "absent"}, "nvidia-driver-cuda", "nvidia-fabricmanager"),
        ({"before_turing": True}, {}, "nvidia-kernel-dkms", "nvidia-kernel-open-dkms"),
        ({}, {"nvidia_driver_kernel_modules": "none"}, "nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
        ({}, {"nvidia_driver_imex": True}, "nvidia-imex", "nvidia-fabricmanager"),
        ({}, {"nvidia_driver_variant": "full"}, "nvidia-driver", "nvidia-fabricmanager"),
    ],
)
def test_packages_depend_on_platform_and_variables(platform, values, wanted, unwanted):
    entry = host(platform=platform, nvidia_driver_version="580.105.08", **values)
    _source, ask, _hosts = only(collect({"a": entry}, DISTRIBUTIONS))
    assert wanted in ask.locked + ask.free
    assert unwanted not in ask.locked + ask.free


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
def test_each_distribution_of_the_role_is_supported(distribution):
    entry = host(
        distribution,
        nvidia_driver_version="580.105.08",
        container_toolkit_version="1.18.2",
        nvidia_driver_repository_fingerprints=[TRUSTED],
    )
    wants = collect({"a": entry}, DISTRIBUTIONS)
    folders = {source.role: source.folder for source in wants.repositories}
    family = "deb/amd64" if DISTRIBUTIONS[distribution]["manager"] == "apt" else "rpm/x86_64"
    assert folders == {
        "nvidia_driver": "repositories/driver/%s/x86_64" % DISTRIBUTIONS[distribution]["repository"]["directory"],
        "container_toolkit": "repositories/container-toolkit/%s" % family,
    }


def test_arm_hosts_have_separate_folders():
    entry = host(
        platform={"architecture": "aarch64"}, nvidia_driver_version="580.105.08", container_toolkit_version="1.18.2"
    )
    wants = collect({"a": entry}, DISTRIBUTIONS)
    assert {source.url.rpartition("/")[2] for source in wants.repositories} == {"sbsa", "arm64"}


def test_equal_hosts_share_a_request():
    hosts = {
        "a": host(container_toolkit_version="1.18.2"),
        "b": host(container_toolkit_version="1.18.2"),
        "c": host(container_toolkit_version="1.17.8", gpu_bundle_container_toolkit_versions=["1.18.2"]),
    }
    wants = collect(hosts, DISTRIBUTIONS)
    ((_source, asks),) = wants.repositories.items()
    assert {ask.version: names for ask, names in asks.items()} == {"1.18.2": {"a", "b", "c"}, "1.17.8": {"c"}}
    assert all(ask.locked == toolkit_rules.PACKAGES for ask in asks)


def test_distribution_packages_are_named_not_mirrored():
    entry = host(
        nvidia_driver_version="535",
        nvidia_driver_source="distribution",
        container_toolkit_version="1.18.2",
        container_toolkit_source="host",
        gpu_layout_nvml_source="distribution",
    )
    wants = collect({"a": entry}, DISTRIBUTIONS)
    assert not wants.repositories
    names = {name for name, _platform in wants.named}
    assert {"libcuda1", "nvidia-open-kernel-dkms", "nvidia-container-toolkit 1.18.2", "python3-pynvml"} <= names


def test_files_and_wheels_that_the_inventory_names():
    entry = host(
        nvidia_driver_version="580.105.08",
        nvidia_driver_source="runfile",
        nvidia_driver_runfile="/srv/driver.run",
        nvidia_driver_runfile_sha256="ab",
        container_toolkit_version="1.18.2",
        container_toolkit_source="files",
        container_toolkit_files=[{"path": "/srv/one.deb", "sha256": "cd"}],
        gpu_layout_nvml_source="index",
        gpu_layout_nvml_version="13.1",
        gpu_layout_nvml_hashes=["sha256:" + "0" * 64],
    )
    wants = collect({"a": entry}, DISTRIBUTIONS)
    assert {path: sums for path, sums, _what in wants.files} == {"/srv/driver.run": ("ab",), "/srv/one.deb": ("cd",)}
    assert wants.nvml == {Pin("nvidia-ml-py", "13.1", ("0" * 64,)): {"a"}}


def test_the_device_plugin_that_the_role_installs():
    sums = {"gpu_kubernetes_plugin_sha256": "A" * 64}
    values = host(gpu_kubernetes_plugin_chart="/srv/plugin.tgz", **sums)
    assert list(collect({"a": values}, DISTRIBUTIONS).files) == [
        ("/srv/plugin.tgz", ("a" * 64,), "chart of the device plugin")
    ]
    with pytest.raises(BundleError, match="gpu_kubernetes_plugin_sha256"):
        collect({"a": host(gpu_kubernetes_plugin_manifest="/srv/plugin.yml")}, DISTRIBUTIONS)


def test_nodes_whose_pods_lease_gpus_need_wheels_of_their_architecture():
    leased = {"gpu_kubernetes_backend": "openfleet_dra"}
    hosts = {
        "a": host(**leased),
        "b": host("ubuntu-24.04", {"architecture": "aarch64"}, **leased),
        "c": host(gpu_kubernetes_backend="nvidia_dra"),
        "d": host(gpu_kubernetes_lease_wheels="/srv/wheels", **leased),
        "e": host(),
    }
    assert collect(hosts, DISTRIBUTIONS).leases == {"x86_64": {"a"}, "aarch64": {"b"}}
    assert collect(hosts, DISTRIBUTIONS, ["nvml"]).leases == {}


def test_a_version_of_pynvml_without_a_hash_is_not_fetched():
    entry = host(gpu_layout_nvml_source="index", gpu_layout_nvml_version="13.1")
    with pytest.raises(BundleError) as caught:
        collect({"a": entry}, DISTRIBUTIONS)
    assert caught.value.where == "a: gpu_layout_nvml_version"
    assert "gpu_layout_nvml_hashes" in caught.value.problem


def test_only_requested_parts():
    entry = host(nvidia_driver_version="580.105.08", container_toolkit_version="1.18.2", gpu_layout_nvml_source="index")
    wants = collect({"a": entry}, DISTRIBUTIONS, ["container_toolkit"])
    assert [source.role for source in wants.repositories] == ["container_toolkit"]
    assert not wants.nvml


@pytest.mark.parametrize(
    ("given", "where", "cure"),
    [
        ([], "a", "gpu_bundle_platforms"),
        ("debian-12", "a: gpu_bundle_platforms", "distribution: debian-12"),
        ([{"distribution": "debian-12", "arch": "x86_64"}], "a: gpu_bundle_platforms[0]", "architecture"),
        ([{"distribution": "debian-11"}], "a: gpu_bundle_platforms[0].distribution", "debian-12"),
        ([{"distribution": "debian-12"}, {}], "a: gpu_bundle_platforms[1].distribution", "debian-12"),
        ([{"distribution": "debian-12", "architecture": "amd64"}], "a: gpu_bundle_platforms[0].architecture", "x86_64"),
    ],
)
def test_missing_or_wrong_platforms_are_refused(given, where, cure):
    with pytest.raises(BundleError) as refused:
        platforms("a", {"gpu_bundle_platforms": given}, DISTRIBUTIONS)
    assert refused.value.where == where
    assert cure in refused.value.cure


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"nvidia_driver_version": "latest"}, "nvidia_driver_version"),
        ({"nvidia_driver_version": "470.1"}, "nvidia_driver_version"),
        (
            {"nvidia_driver_version": "620.1", "nvidia_driver_kernel_modules": "proprietary"},
            "nvidia_driver_kernel_modules",
        ),
        ({"container_toolkit_version": "1.18"}, "container_toolkit_version"),
        (
            {"container_toolkit_version": "1.18.2", "container_toolkit_repository_fingerprints": []},
            "container_toolkit_repository_fingerprints",
        ),
        ({"nvidia_driver_version": "580.105.08", "nvidia_driver_source": "runfile"}, "a"),
    ],
)
def test_values_that_roles_refuse_are_refused_with_the_host(values, where):
    with pytest.raises(BundleError) as refused:
        collect({"a": host(**values)}, DISTRIBUTIONS)
    assert "a" in refused.value.where and where in refused.value.where


def test_one_folder_has_one_origin():
    hosts = {
        "a": host(nvidia_driver_version="580.105.08"),
        "b": host(nvidia_driver_version="580.105.08", nvidia_driver_repository_url="https://example.org/{directory}"),
    }
    with pytest.raises(BundleError) as refused:
        collect(hosts, DISTRIBUTIONS)
    assert refused.value.where == "repositories/driver/debian12/x86_64"
    # Two repositories with the same key are no conflict.
    hosts = {"a": host(container_toolkit_version="1.18.2"), "b": host("el-9", container_toolkit_version="1.18.2")}
    assert len(collect(hosts, DISTRIBUTIONS).repositories) == 2


def test_request_is_that_of_a_bare_host():
    """Request the packages of a bare host.

    Hosts with headers or a driver need fewer packages.
    """
    from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.model import Platform

    ask = driver_ask(host(), "580", Platform("ubuntu-24.04"), DISTRIBUTIONS["ubuntu-24.04"])
    assert ask.locked == ("libnvidia-compute-580", "nvidia-utils-580", "nvidia-dkms-580-open")
    assert ask.free == ("nvidia-compute-utils-580", "linux-headers-KERNEL")
