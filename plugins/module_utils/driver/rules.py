# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the rules of NVIDIA's drivers as pure functions.

The rules are about versions, kernel modules, packages, NVSwitch, Secure Boot and version skew. Each rule names its
source. "guide" is https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Sequence

from ..errors import PlanError
from ..frozen import frozen
from ..packages.model import Owner, Package, order
from .model import Gpu, Host, Request, Wanted

OWNER = Owner(
    "nvidia_driver",
    "openfleet-nvidia-driver",
    "the driver",
    "nvidia",
    # The repository is flat: its suite is a path, and it has no components (sources.list(5)).
    apt="Types: deb\nURIs: {url}/\nSuites: /\nSigned-By: {keyring}\n",
    dnf="[{name}]\nname=NVIDIA driver\nbaseurl={url}/\nenabled=1\n{settings}\ngpgkey=file://{keyring}\n",
    # NVIDIA signs packages and repomd.xml (https://github.com/NVIDIA/cuda-repo-management). Without module_hotfixes,
    # dnf would hide the versions outside the enabled stream of NVIDIA's module nvidia-driver. The role selects and
    # locks the exact version, so it needs no stream (dnf.conf(5)).
    settings=("gpgcheck=1", "repo_gpgcheck=1", "module_hotfixes=1"),
)

#: A driver version: the branch has three digits, followed by one or two numbers.
_DRIVER_VERSION = re.compile(r"^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?![.\d])")
_REQUEST_VERSION = re.compile(r"^\d{3}(\.\d+){0,2}$")

#: The first PCI device id of Turing (TU102). Older GPUs have lower ids. The open kernel modules support Turing and
#: later (https://github.com/NVIDIA/open-gpu-kernel-modules, README, "Compatible GPUs").
_TURING = 0x1E02
#: The first PCI device id of Blackwell (GB100 has 2900 and up). There are no proprietary modules for Blackwell and
#: Grace Hopper (https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/).
_BLACKWELL = 0x2900
_GRACE_HOPPER = (0x2342, 0x2345, 0x2348)
#: Branch 580 is the last branch that supports Maxwell, Pascal and Volta. Branch 610 is the last branch with proprietary
#: modules (guide, "Kernel Modules", and "Proprietary Kernel Modules Removed" in the guide for release 620).
_LAST_BEFORE_TURING = 580
_NO_PROPRIETARY = 620

#: Patterns of packages with drivers that the role does not install: NVIDIA's vGPU software (vGPU User Guide,
#: "Installing the NVIDIA vGPU Software Graphics Driver"), and repositories of other vendors.
_FOREIGN = (
    ("nvidia-vgpu-*", "NVIDIA's vGPU software"),
    ("nvidia-linux-grid-*", "NVIDIA's vGPU guest driver"),
    ("nvidia-linux-vgpu-*", "NVIDIA's vGPU software"),
    ("akmod-nvidia*", "of RPM Fusion"),
    ("xorg-x11-drv-nvidia*", "of RPM Fusion"),
    ("nvidia-x11-drv*", "of ELRepo"),
)
#: (first PCI device id, first branch) of each generation, newest first, for GPUs that are not in the catalogue
#: (https://github.com/NVIDIA/open-gpu-kernel-modules, README of 570.86.15 and 520.56.06).
_GENERATIONS = (
    (_BLACKWELL, {"name": "a Blackwell GPU", "version": "570", "confirmed": True}),
    (0x2680, {"name": "an Ada GPU", "version": "520", "confirmed": True}),
    (0x2500, None),
    (0x2300, {"name": "a Hopper GPU", "version": "520", "confirmed": True}),
)
#: Name of a package with modules for one kernel, such as kmod-nvidia-open-580.95.05-5.14.0-570.12.1.
_KMOD = re.compile(r"kmod-(?:64k-|rt-)?nvidia(?P<open>-open)?-(?P<version>\d{3}\.[\d.]+)-\d")
#: Distribution and architecture at the end of a Red Hat kernel's version.
_KERNEL_END = re.compile(r"\.el\d+(_\d+)?(\.(x86_64|aarch64))?$")
_IMAGE = "linux-image-"
#: Name of a meta-package. It contains no kernel version, but may contain the release of a hardware enablement stack.
_META = re.compile(r"[a-z](?!.*\d+\.\d+\.\d)")
_NO_META = re.compile(r"^extra-|-dbg$|-template$")
#: The flavour of a Debian or Ubuntu kernel. It follows the version and the ABI: 6.1.0-40-amd64, 6.12.9+bpo-amd64,
#: 6.8.0-1018-aws.
_KERNEL = re.compile(r"[^-]+(?:-\d[^-]*)?-([a-z].*)$")

SERVICE_PERSISTENCED = "nvidia-persistenced.service"
SERVICE_FABRIC_MANAGER = "nvidia-fabricmanager.service"
SERVICE_IMEX = "nvidia-imex.service"


def upstream(version: str) -> str:
    """Return the driver version in a package version, or "".

    For example, both 580.105.08-1 and 3:580.105.08-1.el9 contain 580.105.08.
    """
    found = _DRIVER_VERSION.match(version)
    return found[1] if found else ""


def branch_of(version: str) -> int:
    return int(version.split(".")[0])


def satisfies(version: str, asked: str) -> bool:
    """Return whether a driver version is the requested version or branch."""
    return bool(version) and (version == asked or version.startswith(asked + "."))


def choose(versions: Iterable[str], request: Request, anchor: str, prefer: str) -> str:
    """Return the driver version to install. Raises PlanError.

    `versions` are the versions of `anchor`, the driver's first package, that the sources offer.
    """
    offered = [found for found in map(upstream, versions) if found]
    fitting = [found for found in offered if satisfies(found, request.version)]
    if not fitting:
        raise PlanError(
            "nvidia_driver_version",
            "%s is not available as %s from %s" % (request.version, anchor, request.source),
            "Available: %s. Nothing was changed." % (", ".join(dict.fromkeys(offered)) or "none"),
        )
    return prefer if prefer in fitting else fitting[0]


def check_version(asked: str) -> None:
    if not _REQUEST_VERSION.match(asked):
        raise PlanError(
            "nvidia_driver_version",
            "%r is neither a branch nor a version" % asked,
            'Write a branch, as "580", or an exact version, as "580.178.04", in quotes.',
        )


def flavor(gpus: Iterable[Gpu], asked: str, branch: int) -> str:
    """Return the flavour of the kernel modules: open, proprietary or none.

    "auto" selects open if all GPUs are Turing or newer. Raises PlanError.
    """
    gpus = list(gpus)
    ids = [int(gpu.device_id, 16) for gpu in gpus]
    old = ["%s (10de:%s)" % (gpu.address, gpu.device_id) for gpu in gpus if int(gpu.device_id, 16) < _TURING]
    new = [
        "%s (10de:%s)" % (gpu.address, gpu.device_id)
        for gpu, number in zip(gpus, ids)
        if number >= _BLACKWELL or number in _GRACE_HOPPER
    ]
    if old and branch > _LAST_BEFORE_TURING:
        raise PlanError(
            "nvidia_driver_version",
            "branch %d has no support for %s, which is older than Turing" % (branch, ", ".join(old)),
            "Request branch %d, the last one that supports it." % _LAST_BEFORE_TURING,
        )
    if asked == "none":
        return asked
    if asked == "open" and old:
        raise PlanError(
            "nvidia_driver_kernel_modules",
            "the open kernel modules do not support %s, which is older than Turing" % ", ".join(old),
            "Set it to proprietary or auto.",
        )
    if asked == "proprietary" and branch >= _NO_PROPRIETARY:
        raise PlanError(
            "nvidia_driver_kernel_modules", "branch %d has no proprietary modules" % branch, "Set it to open."
        )
    if asked == "proprietary" and new:
        raise PlanError(
            "nvidia_driver_kernel_modules",
            "%s (Blackwell or Grace Hopper) needs the open modules" % ", ".join(new),
            "Set it to open or auto.",
        )
    if asked == "auto" and old and new:
        raise PlanError("this host", "no driver supports all of its GPUs", "Take out %s." % ", ".join(old))
    return asked if asked != "auto" else "proprietary" if old else "open"


def needs_fabric_manager(host: Host, asked: str) -> bool:
    """Return whether the host needs Fabric Manager.

    Without Fabric Manager, no CUDA program runs on GPUs that are connected by NVSwitches
    (https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/).
    """
    return asked == "present" or (asked == "auto" and bool(host.nvswitches or host.nvlink_bridges))


def needs_subnet_manager(host: Host, wanted: Wanted) -> bool:
    """Return whether the host needs NVLSM.

    Fabric Manager starts NVLSM if it is installed and ib_umad is loaded.
    """
    return bool(host.nvlink_bridges) and SERVICE_FABRIC_MANAGER in wanted.units


def package_set(catalogue: dict[str, Any], distribution: str, source: str, branch: int) -> dict[str, Any]:
    """Return the package names for a branch. Raises PlanError.

    Uses the catalogue entry with the highest `since` that does not exceed the branch.
    """
    sets = catalogue["packages"].get(source, [])
    found = [entry for entry in sets if entry["since"] <= branch <= entry.get("until", branch)]
    if not found:
        raise PlanError(
            "nvidia_driver_version",
            "branch %d is not available from nvidia_driver_source %s on %s" % (branch, source, distribution),
            "Available: %s."
            % (", ".join("%s and later" % entry["since"] for entry in sets) or "none, so set another source"),
        )
    return max(found, key=lambda entry: entry["since"])


def wanted(host: Host, request: Request, catalogue: dict[str, Any], branch: int) -> Wanted:
    """Return the packages and services for the request.

    Raises PlanError if the request is impossible.
    """
    names = package_set(catalogue, host.distribution, request.source, branch)
    chosen = flavor(host.gpus, request.kernel_modules, branch)
    if chosen not in ("none", *names["modules"]):
        raise PlanError(
            "nvidia_driver_kernel_modules",
            "nvidia_driver_source %s has no %s kernel modules here" % (request.source, chosen),
            "Available: %s." % ", ".join(sorted(names["modules"])),
        )
    modules = names["modules"].get(chosen, [])
    free: list[str] = []
    precompiled: tuple[tuple[str, str], ...] = ()
    signed = names.get("signed", {}).get(chosen)
    untrusted = host.secure_boot.enabled and not host.secure_boot.enrolled
    if signed and (untrusted or request.precompiled):
        # The distribution builds and signs these modules for each kernel. They have the kernel's version.
        free, modules = list(signed), []
    elif request.precompiled and chosen != "none":
        precompiled, modules = _precompiled(host, catalogue, chosen), []
    locked = [*names[request.variant], *modules]
    units = [SERVICE_PERSISTENCED] if request.persistenced and chosen != "none" else []
    if units:
        free += names.get("persistenced", [])
    if needs_fabric_manager(host, request.fabric_manager):
        locked += _there(names, "fabric_manager", request)
        if host.nvlink_bridges:
            free += _there(names, "nvlink_subnet_manager", request)
        units.append(SERVICE_FABRIC_MANAGER)
    if request.imex:
        locked += _there(names, "imex", request)
        units.append(SERVICE_IMEX)
    if modules and not host.headers:
        free += catalogue["build"]
    variant, kernel = headers_variant(host.kernel) if catalogue["manager"] == "dnf" else ("", host.kernel)
    fill = {"branch": branch, "kernel": kernel, "variant": variant}
    wanted_names = [name.format(**fill) for name in locked]
    others = {
        name.format(**fill)
        for sets in catalogue["packages"].values()
        for entry in sets
        for other in entry["modules"].values()
        for name in other
        if chosen != "none"
    }
    return Wanted(
        chosen,
        tuple(wanted_names),
        tuple(name.format(**fill) for name in modules),
        precompiled,
        tuple(name.format(**fill) for name in free),
        tuple(sorted(others - set(wanted_names))),
        tuple(units),
        _next_kernel(host, catalogue, names.get("signed", {}).get(chosen, []) if not modules else [], fill)
        if chosen != "none" and not precompiled
        else (),
    )


def _precompiled(host: Host, catalogue: dict[str, Any], chosen: str) -> tuple[tuple[str, str], ...]:
    """List precompiled modules for the running kernel and for newer installed kernels.

    Raises PlanError if the distribution has none.
    """
    template = catalogue.get("precompiled", {}).get(chosen)
    if not template:
        raise PlanError(
            "nvidia_driver_precompiled",
            "%s has no precompiled %s kernel modules" % (host.distribution, chosen),
            "Say false: DKMS builds them.",
        )
    variant, running = headers_variant(host.kernel)
    core = "kernel-%score" % variant
    newer = [
        package.version
        for package in host.packages
        if package.name == core and order(kernel_base(package.version)) > order(kernel_base(running))
    ]
    kernels = [running, *sorted(newer, key=order)]
    fill = {"variant": variant, "version": "{version}"}
    return tuple((kernel, template.format(kernel=kernel_base(kernel), **fill)) for kernel in kernels)


def kernel_base(kernel: str) -> str:
    """Return a kernel's version in the form that precompiled modules use.

    For example, 5.14.0-570.12.1.el9_6.x86_64 becomes 5.14.0-570.12.1 (kmod-nvidia.spec in
    https://github.com/NVIDIA/yum-packaging-precompiled-kmod).
    """
    return _KERNEL_END.sub("", kernel)


def is_precompiled(name: str) -> bool:
    """Return whether a package has modules that were built for one kernel."""
    return _KMOD.match(name) is not None


def stale_modules(host: Host, wanted: Wanted, version: str) -> list[str]:
    """List installed precompiled modules that belong to another driver version.

    The kernel could load them instead of the desired modules.
    """
    if wanted.flavor == "none":
        # The site manages the modules.
        return []
    found = [(package.name, _KMOD.match(package.name)) for package in host.packages]
    return [
        name
        for name, kmod in found
        if kmod
        and not (wanted.precompiled and kmod["version"] == version and bool(kmod["open"]) == (wanted.flavor == "open"))
    ]


def _next_kernel(
    host: Host, catalogue: dict[str, Any], signed: Sequence[str], fill: dict[str, Any]
) -> tuple[tuple[str, str], ...]:
    """List the packages that the next kernel needs: headers, or modules in `signed`."""
    if catalogue["manager"] == "dnf":
        asked = [name.format(**fill) for name in catalogue["next_kernel"]]
        return tuple((name.replace("-" + fill["kernel"], ""), name) for name in asked)
    flavors, _certain = flavors_of_kernels(host)
    found = [
        name.format(**dict(fill, kernel=flavor, flavor=flavor))
        for flavor in flavors
        for name in (signed or catalogue["next_kernel"])
    ]
    return tuple((name, name) for name in found)


def _there(names: dict[str, Any], what: str, request: Request) -> list[str]:
    if not names.get(what):
        raise PlanError(
            "nvidia_driver_source",
            "%s has no %s, which this host needs" % (request.source, what.replace("_", " ")),
            "Set nvidia_driver_source: repository, which has all packages in the same version.",
        )
    return names[what]


def of_the_driver(package: Package, patterns: Iterable[str]) -> bool:
    """Return whether an installed package is part of the driver.

    Its name must equal an entry, or match a pattern while its version is a driver version. nvidia-container-toolkit,
    DCGM and CUDA have similar names, but no driver versions. NVLSM is listed by name. Drivers from other sources (vGPU
    software, other repositories) are not part of it.
    """
    if _foreign(package):
        return False
    found = bool(upstream(package.version))
    return any(matches(package.name, pattern) and (found or "*" not in pattern) for pattern in patterns)


def matches(name: str, pattern: str) -> bool:
    """Return whether a package name matches a pattern."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def skew(host: Host) -> str:
    """Describe the parts of the driver that differ in version, or return ""."""
    seen = {"the loaded kernel module": host.loaded, "the module for this kernel": host.on_disk}
    seen["the NVML library"] = host.library
    versions = {version for version in seen.values() if version}
    if len(versions) < 2:
        return ""
    return "; ".join("%s is %s" % (what, version) for what, version in seen.items() if version)


def secure_boot_problem(host: Host, chosen: str, signed: bool) -> PlanError | None:
    """Return the error if Secure Boot prevents a locally built module from loading.

    Returns None if the module can be loaded.
    """
    state = host.secure_boot
    if not state.enabled or chosen == "none" or signed or state.enrolled:
        return None
    certificate = state.certificate or "/var/lib/dkms/mok.pub"
    make = (
        ""
        if state.certificate
        else (
            "openssl req -new -x509 -nodes -newkey rsa:2048 -days 3650 -subj '/CN=kernel modules of this host/' "
            "-outform DER -keyout %s -out %s; " % (certificate.replace(".pub", ".key"), certificate)
        )
    )
    return PlanError(
        "Secure Boot",
        "it is on, and the firmware trusts no key for signing kernel modules that are built on this host",
        "As root: %smokutil --import %s (it asks for a password); then reboot, choose Enroll MOK on the console, and run "
        "again. Nothing was installed." % (make, certificate),
    )


@frozen
class OtherWay:
    """A driver from another source.

    `names` are the packages whose removal must be permitted. It is empty if the role cannot remove the driver.
    """

    text: str
    cure: str
    names: tuple[str, ...] = ()


def other_ways(host: Host, source: str, patterns: Sequence[str]) -> tuple[OtherWay, ...]:
    """List drivers on the host that must not be mixed with a driver from `source`."""
    found = _foreign_packages(host)
    own = [package for package in host.packages if of_the_driver(package, patterns)]
    torn = host.interrupted or any(package.broken for package in host.packages)
    if source == "runfile":
        if own:
            names = tuple(package.name for package in own)
            cure = "Remove the packages, or add their names to nvidia_driver_allow_removal."
            found.append(OtherWay("the packages %s" % ", ".join(names), cure, names))
    elif host.runfile:
        cure = "Run %s, or add runfile to nvidia_driver_allow_removal." % host.runfile
        found.append(OtherWay("the driver of a .run file (%s)" % host.runfile, cure, ("runfile",)))
    elif not torn:
        versions = {upstream(package.version) for package in own}
        unknown = [version for version in host.dkms if version not in versions]
        for version in unknown:
            cure = "Run: dkms remove -m nvidia -v %s --all" % version
            found.append(OtherWay("the DKMS modules %s, which belong to no package" % version, cure))
        if host.installer_log and host.library and host.library not in versions and host.library not in unknown:
            cure = "Run the .run file of %s with --uninstall." % host.library
            found.append(
                OtherWay("the driver %s, which belongs to no package (%s)" % (host.library, host.installer_log), cure)
            )
    if host.driver_container:
        cure = "Remove it in the cluster first (GPU operator: driver.enabled=false)."
        found.append(OtherWay("a driver container (%s)" % host.driver_container, cure))
    return tuple(found)


def refuse_mixing(host: Host, request: Request, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of packages from other sources that may be removed.

    Raises PlanError if drivers would be mixed.
    """
    ways = other_ways(host, request.source, patterns)
    problem = "this host has a driver from another source, which must not be mixed with the source %s" % request.source
    _refuse(ways, request, "nvidia_driver_source", problem)
    own = {package.name for package in host.packages if of_the_driver(package, patterns)}
    return tuple(name for way in ways for name in way.names if name != "runfile" and name not in own)


def refuse_foreign(host: Host, request: Request) -> tuple[str, ...]:
    """Return the names of other sources' packages to remove with the driver.

    Raises PlanError if the request does not permit the removal of one of them.
    """
    ways = _foreign_packages(host)
    problem = (
        "this host has a driver from another source, which nvidia_driver_state: absent removes only with permission"
    )
    _refuse(ways, request, "nvidia_driver_state", problem)
    return tuple(name for way in ways for name in way.names)


def _refuse(ways: Iterable[OtherWay], request: Request, where: str, problem: str) -> None:
    refused = [way for way in ways if not way.names or not set(way.names) <= set(request.allow_removal)]
    if refused:
        cures = dict.fromkeys(way.cure for way in refused)
        text = "%s: %s" % (problem, "; ".join(way.text for way in refused))
        raise PlanError(where, text, "%s Nothing was changed." % " ".join(cures))


def _foreign_packages(host: Host) -> list[OtherWay]:
    return [
        OtherWay(
            "%s %s (%s)" % (package.name, package.version, what),
            "Remove the package, or add %s to nvidia_driver_allow_removal." % package.name,
            (package.name,),
        )
        for package in host.packages
        for what in _foreign(package)
    ]


def _foreign(package: Package) -> list[str]:
    """Return the other source of a driver package, as a list.

    The list is empty if the package belongs to the role.
    """
    name = package.name.lower()
    return [what for pattern, what in _FOREIGN if matches(name, pattern)][:1]


def check_gpus(gpus: Iterable[Gpu], version: str, minimums: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return notes about GPUs that may be too new for a version or branch.

    Raises PlanError for GPUs that are too new. `minimums` maps PCI device ids to the GPU's `name`, the first `version`
    that supports it, and whether this version is `confirmed`.
    """
    refused, notes, needed = [], [], ""
    for gpu in gpus:
        known = minimums.get(gpu.device_id) or _generation(gpu)
        if not known or not _too_old(version, known["version"]):
            continue
        text = "%s (%s, 10de:%s) needs %s or later" % (gpu.address, known["name"], gpu.device_id, known["version"])
        if known["confirmed"]:
            refused.append(text)
            needed = max(needed, known["version"], key=order)
        else:
            notes.append("%s, which is not confirmed" % text)
    if refused:
        raise PlanError(
            "nvidia_driver_version",
            "%s has no support for GPUs of this host: %s" % (version, "; ".join(refused)),
            'Request branch "%d" or a later one. Nothing was changed.' % branch_of(needed)
            if branch_of(needed) > branch_of(version)
            else "Request version %s or a later one. Nothing was changed." % needed,
        )
    return tuple(notes)


def _too_old(version: str, minimum: str) -> bool:
    """Return whether a version is known to be too old.

    A branch is too old only if all versions in it are too old.
    """
    numbers = order(version)
    return numbers < order(minimum)[: len(numbers)]


def _generation(gpu: Gpu) -> dict[str, Any] | None:
    number = int(gpu.device_id, 16)
    return next((known for first, known in _GENERATIONS if number >= first), None)


def headers_variant(kernel: str) -> tuple[str, str]:
    """Return the variant of a Red Hat kernel, and its version without the variant.

    The variant is "64k-", "rt-" or "", as in package names. In RHEL 9 and 10, `uname -r` ends with a plus sign and the
    variant's name. The real-time kernel of RHEL 8 and Oracle's UEK have the variant in the release part
    (redhat/kernel.spec.template of the CentOS Stream kernels).
    """
    version, _unused, variant = kernel.partition("+")
    if not variant:
        variant = "rt" if re.search(r"\.rt\d", version) else "uek" if re.search(r"\.el\d+uek\.", version) else ""
    return (variant + "-" if variant else "", version)


def flavors_of_kernels(host: Host) -> tuple[tuple[str, ...], bool]:
    """Return the flavours of the next kernels, and whether packages define them.

    This is for Debian and Ubuntu. The kernel image's meta-package defines the flavour: linux-image-generic-hwe-24.04
    needs linux-headers-generic-hwe-24.04. Without a meta-package, the flavour comes from the running kernel: amd64 for
    6.1.0-40-amd64, aws for 6.8.0-1018-aws.
    """
    found = [package.name[len(_IMAGE) :] for package in host.packages if package.name.startswith(_IMAGE)]
    metas = tuple(sorted(name for name in found if _META.match(name) and not _NO_META.search(name)))
    if metas:
        return metas, True
    named = _KERNEL.match(host.kernel)
    return ((named[1],) if named else (), False)
