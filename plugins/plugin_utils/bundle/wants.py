# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine the files and packages that an inventory's hosts need.

The rules are those of the roles. Nothing is written or fetched, and only the collection's own files with hashes are
read.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from ...module_utils.driver import files as driver_files
from ...module_utils.driver import rules as driver_rules
from ...module_utils.driver.model import Gpu, Host, Request
from ...module_utils.errors import FleetError
from ...module_utils.toolkit import files as toolkit_files
from ...module_utils.toolkit import rules as toolkit_rules
from .. import nvml_source
from .model import Ask, BundleError, Platform, Source, Wants

#: Variables that are read for each host, by default from the role's defaults.
VARIABLES = (
    "nvidia_driver_version",
    "nvidia_driver_state",
    "nvidia_driver_source",
    "nvidia_driver_variant",
    "nvidia_driver_kernel_modules",
    "nvidia_driver_persistenced",
    "nvidia_driver_fabric_manager",
    "nvidia_driver_imex",
    "nvidia_driver_repository_url",
    "nvidia_driver_repository_key_url",
    "nvidia_driver_repository_key",
    "nvidia_driver_repository_fingerprints",
    "nvidia_driver_runfile",
    "nvidia_driver_runfile_sha256",
    "container_toolkit_version",
    "container_toolkit_state",
    "container_toolkit_source",
    "container_toolkit_repository_url",
    "container_toolkit_repository_key_url",
    "container_toolkit_repository_key",
    "container_toolkit_repository_fingerprints",
    "container_toolkit_files",
    "gpu_layout_nvml_source",
    "gpu_layout_nvml_wheel",
    "gpu_layout_nvml_version",
    "gpu_layout_nvml_hashes",
    "gpu_layout_nvml_package",
    "gpu_kubernetes_plugin_manifest",
    "gpu_kubernetes_plugin_chart",
    "gpu_kubernetes_plugin_sha256",
    "gpu_kubernetes_lease_wheels",
)
#: Variables without a default: the bundle's (docs/air-gapped.md), and the Kubernetes backend.
OWN_VARIABLES = (
    "gpu_kubernetes_backend",
    "gpu_bundle_platforms",
    "gpu_bundle_nvidia_driver_versions",
    "gpu_bundle_container_toolkit_versions",
)

PARTS = ("driver", "container_toolkit", "nvml", "kubernetes", "collection", "controller")
#: Variables that name files for Kubernetes, by the file's description.
KUBERNETES = {
    "manifest of the device plugin": "gpu_kubernetes_plugin_manifest",
    "chart of the device plugin": "gpu_kubernetes_plugin_chart",
}
#: The backends whose plugin on the host has Python packages.
_LEASES = ("openfleet_dra", "openfleet_device_plugin")
#: Placeholder for a host's kernel release, which only the host knows.
KERNEL = "KERNEL"
#: PCI device ids of an example GPU older than Turing, and of a newer one (module_utils/driver/rules.py).
_OLD, _NEW = "1db6", "2330"
_PLATFORM_KEYS = ("distribution", "architecture", "nvswitch", "nvlink_bridges", "before_turing")
_EXAMPLE = "[{distribution: debian-12, architecture: x86_64, nvswitch: false}]"


def collect(
    hosts: Mapping[str, Mapping[str, Any]],
    catalogue: Mapping[str, Any],
    parts: Iterable[str] = PARTS,
    shipped: nvml_source.Shipped | None = None,
) -> Wants:
    """Return the files and packages that the hosts need.

    `hosts` has each host's role variables, including defaults. Raises BundleError if variables are missing or
    contradict each other.
    """
    shipped = shipped or nvml_source.shipped()
    wants = Wants()
    parts = set(parts)
    for host in sorted(hosts):
        values = hosts[host]
        if "driver" in parts and values["nvidia_driver_state"] != "absent":
            versions = _versions(values, "nvidia_driver")
            if versions:
                _driver(wants, host, values, versions, catalogue)
        if "container_toolkit" in parts and values["container_toolkit_state"] != "absent":
            versions = _versions(values, "container_toolkit")
            if versions:
                _toolkit(wants, host, values, versions, catalogue)
        if "nvml" in parts:
            _nvml(wants, host, values, shipped)
        if "kubernetes" in parts:
            _kubernetes(wants, host, values)
            if values.get("gpu_kubernetes_backend") in _LEASES and not values["gpu_kubernetes_lease_wheels"]:
                for platform in platforms(host, values, catalogue):
                    wants.leases.setdefault(platform.architecture, set()).add(host)
    _check_folders(wants)
    return wants


def _versions(values: Mapping[str, Any], role: str) -> list[str]:
    """Return the version that the role installs, and additional versions.

    Returns an empty list if the role is not used.
    """
    version = str(values[role + "_version"])
    additional = [str(text) for text in values.get("gpu_bundle_%s_versions" % role) or []]
    return list(dict.fromkeys([version, *additional])) if version else []


def platforms(host: str, values: Mapping[str, Any], catalogue: Mapping[str, Any]) -> list[Platform]:
    given = values.get("gpu_bundle_platforms") or []
    if not given:
        raise BundleError(
            host,
            "its distribution is unknown, because making a bundle contacts no hosts",
            "Set gpu_bundle_platforms for it, e.g. %s." % _EXAMPLE,
        )
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise BundleError(
            "%s: gpu_bundle_platforms" % host, "it is not a list of platforms", "Write e.g. %s." % _EXAMPLE
        )
    platform_list = []
    for number, entry in enumerate(given):
        where = "%s: gpu_bundle_platforms[%d]" % (host, number)
        unknown = sorted(set(entry) - set(_PLATFORM_KEYS))
        if unknown:
            raise BundleError(where, "unknown key %s" % unknown[0], "Use one of: %s." % ", ".join(_PLATFORM_KEYS))
        if entry.get("distribution") not in catalogue:
            raise BundleError(
                where + ".distribution",
                "%r is not supported" % entry.get("distribution"),
                "Use one of: %s." % ", ".join(sorted(catalogue)),
            )
        known = catalogue[entry["distribution"]]["repository"]["architectures"]
        if entry.get("architecture", "x86_64") not in known:
            raise BundleError(
                where + ".architecture",
                "%r is not supported" % entry["architecture"],
                "Use one of these names of `uname -m`: %s." % ", ".join(sorted(known)),
            )
        platform_list.append(Platform(**entry))
    return platform_list


# -- The driver --------------------------------------------------------------------------------------------------------


def _driver(
    wants: Wants, host: str, values: Mapping[str, Any], versions: list[str], catalogue: Mapping[str, Any]
) -> None:
    origin = values["nvidia_driver_source"]
    if origin == "runfile":
        path = values["nvidia_driver_runfile"]
        if not path:
            raise BundleError(
                host,
                "nvidia_driver_source is runfile, but nvidia_driver_runfile is empty",
                "Set nvidia_driver_runfile to the path of NVIDIA's installer.",
            )
        entry = (path, _sums(values["nvidia_driver_runfile_sha256"]), "NVIDIA's installer")
        wants.files.setdefault(entry, set()).add(host)
        return
    for platform in platforms(host, values, catalogue):
        entry = catalogue[platform.distribution]
        for version in versions:
            try:
                ask = driver_ask(values, version, platform, entry)
            except FleetError as error:
                raise BundleError("%s on %s: %s" % (host, platform, error.where), error.problem, error.cure) from None
            if origin == "distribution":
                for name in (*ask.locked, *ask.free):
                    wants.name(name, str(platform), {host})
                continue
            source = _driver_source(host, values, platform, entry)
            wants.repositories.setdefault(source, {}).setdefault(ask, set()).add(host)


def driver_ask(values: Mapping[str, Any], version: str, platform: Platform, entry: Mapping[str, Any]) -> Ask:
    """Return the packages that the role would install on a new host of the platform.

    Raises PlanError if the driver does not support the platform.
    """
    driver_rules.check_version(version)
    host = Host(
        platform.distribution,
        platform.architecture,
        KERNEL,
        gpus=(Gpu("a GPU", _OLD if platform.before_turing else _NEW),),
        nvswitches=int(platform.nvswitch),
        nvlink_bridges=int(platform.nvlink_bridges),
    )
    request = Request(
        version,
        source=values["nvidia_driver_source"],
        variant=values["nvidia_driver_variant"],
        kernel_modules=values["nvidia_driver_kernel_modules"],
        persistenced=values["nvidia_driver_persistenced"],
        fabric_manager=values["nvidia_driver_fabric_manager"],
        imex=values["nvidia_driver_imex"],
    )
    wanted = driver_rules.wanted(host, request, dict(entry), driver_rules.branch_of(version))
    return Ask("nvidia_driver", version, wanted.locked, wanted.free, tuple(entry["patterns"]), str(platform))


def _driver_source(host: str, values: Mapping[str, Any], platform: Platform, entry: Mapping[str, Any]) -> Source:
    repository = dict(
        entry["repository"],
        url=values["nvidia_driver_repository_url"],
        key_url=values["nvidia_driver_repository_key_url"],
    )
    where = "repositories/driver/%s/%s" % (
        repository["directory"],
        repository["architectures"][platform.architecture],
    )
    return Source(
        "nvidia_driver",
        entry["manager"],
        platform.architecture,
        driver_files.repository_url(repository, platform.architecture).rstrip("/"),
        driver_files.key_url(repository, platform.architecture),
        values["nvidia_driver_repository_key"],
        _fingerprints(
            host,
            "nvidia_driver_repository_fingerprints",
            values["nvidia_driver_repository_fingerprints"] or repository["fingerprints"],
        ),
        where,
        "%s/%s" % (where, repository["key"]),
    )


def _fingerprints(host: str, variable: str, given: Iterable[str]) -> tuple[str, ...]:
    trusted = tuple(sorted(text.replace(" ", "").upper() for text in given))
    if not trusted:
        raise BundleError(
            "%s: %s" % (host, variable), "it has no trusted fingerprint", "Look up NVIDIA's fingerprint and set it."
        )
    return trusted


# -- The container toolkit ---------------------------------------------------------------------------------------------


def _toolkit(
    wants: Wants, host: str, values: Mapping[str, Any], versions: list[str], catalogue: Mapping[str, Any]
) -> None:
    origin = values["container_toolkit_source"]
    if origin == "files":
        for file in values["container_toolkit_files"]:
            wants.files.setdefault((file["path"], _sums(file["sha256"]), "container toolkit"), set()).add(host)
        return
    for platform in platforms(host, values, catalogue):
        manager = catalogue[platform.distribution]["manager"]
        for version in versions:
            try:
                toolkit_rules.check_version(version)
            except FleetError as error:
                raise BundleError("%s: %s" % (host, error.where), error.problem, error.cure) from None
            if origin == "host":
                for name in toolkit_rules.PACKAGES:
                    wants.name("%s %s" % (name, version), str(platform), {host})
                continue
            ask = Ask("container_toolkit", version, toolkit_rules.PACKAGES, platform=str(platform))
            source = _toolkit_source(host, values, platform, manager)
            wants.repositories.setdefault(source, {}).setdefault(ask, set()).add(host)


def _toolkit_source(host: str, values: Mapping[str, Any], platform: Platform, manager: str) -> Source:
    where = toolkit_files.repository_url(
        "repositories/container-toolkit/{family}/{architecture}", manager, platform.architecture
    )
    return Source(
        "container_toolkit",
        manager,
        platform.architecture,
        toolkit_files.repository_url(values["container_toolkit_repository_url"], manager, platform.architecture),
        values["container_toolkit_repository_key_url"],
        values["container_toolkit_repository_key"],
        _fingerprints(
            host, "container_toolkit_repository_fingerprints", values["container_toolkit_repository_fingerprints"]
        ),
        where,
        "repositories/container-toolkit/gpgkey",
    )


# -- The rest ----------------------------------------------------------------------------------------------------------


def _nvml(wants: Wants, host: str, values: Mapping[str, Any], shipped: nvml_source.Shipped) -> None:
    origin = values["gpu_layout_nvml_source"]
    try:
        request = nvml_source.Request.of(values)
        if origin == "wheel":
            entry = (request.wheel, nvml_source.wheel_hashes(request, shipped), "nvidia-ml-py")
            wants.files.setdefault(entry, set()).add(host)
        elif origin == "index":
            wants.nvml.setdefault(nvml_source.pin(request, shipped), set()).add(host)
    except nvml_source.NvmlSourceError as error:
        raise BundleError("%s: %s" % (host, error.where), error.problem, error.cure) from None
    if origin == "distribution":
        for entry in values.get("gpu_bundle_platforms") or [{"distribution": "the host's distribution"}]:
            wants.name(values["gpu_layout_nvml_package"], str(entry["distribution"]), {host})


def _kubernetes(wants: Wants, host: str, values: Mapping[str, Any]) -> None:
    for what, variable in KUBERNETES.items():
        if not values[variable]:
            continue
        sums = _sums(values["gpu_kubernetes_plugin_sha256"])
        if not sums:
            raise BundleError(host, "gpu_kubernetes_plugin_sha256 is empty", "Set it to the SHA-256 of %s." % variable)
        wants.files.setdefault((str(values[variable]), sums, what), set()).add(host)


def _sums(sha256: Any) -> tuple[str, ...]:
    """Return a file's allowed checksums.

    Returns () if the inventory does not set a checksum.
    """
    return (str(sha256).lower(),) if sha256 else ()


def _check_folders(wants: Wants) -> None:
    """Raise BundleError if two repositories would use the same path in the bundle.

    The paths are the repository's folder and its key's path.
    """
    for attribute in ("folder", "key_path"):
        seen: dict[str, Source] = {}
        for source in wants.repositories:
            other = seen.setdefault(getattr(source, attribute), source)
            mine, theirs = [
                (each.url if attribute == "folder" else "", each.key_url, each.key, each.fingerprints)
                for each in (source, other)
            ]
            if mine != theirs:
                raise BundleError(
                    getattr(source, attribute),
                    "hosts need it from %s (key %s) and from %s (key %s)"
                    % (source.url, source.key_url or "given", other.url, other.key_url or "given"),
                    "Make one bundle for each, with --limit and another gpu_bundle_dir.",
                )
