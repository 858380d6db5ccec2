# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of NVIDIA's drivers, as pure functions: versions, kernel modules, packages, NVSwitch, Secure Boot, skew.

Sources of the rules stand at each of them; "guide" is https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/.
"""

from __future__ import annotations

import re
from typing import Any, Iterable

from ..errors import PlanError
from ..packages.model import Owner, Package
from .model import Gpu, Host, Request, Wanted

OWNER = Owner("nvidia_driver", "openfleet-nvidia-driver", "the driver")

#: A driver's version: three digits of the branch, then one or two numbers.
_DRIVER_VERSION = re.compile(r"^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?![.\d])")
_REQUEST_VERSION = re.compile(r"^\d{3}(\.\d+){0,2}$")

#: The first PCI device id of Turing, TU102; all older GPUs have lower ones. The open kernel modules begin there
#: (https://github.com/NVIDIA/open-gpu-kernel-modules, README, "Compatible GPUs").
_TURING = 0x1E02
#: The first of Blackwell (GB100 is 2900 upwards), which has no proprietary modules, as Grace Hopper has none
#: (https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/).
_BLACKWELL = 0x2900
_GRACE_HOPPER = (0x2342, 0x2345, 0x2348)
#: Branch 580 is the last one with Maxwell, Pascal and Volta; 610 the last one with proprietary modules (guide, "Kernel
#: Modules", and the release 620 of it, "Proprietary Kernel Modules Removed").
_LAST_BEFORE_TURING = 580
_NO_PROPRIETARY = 620

SERVICE_PERSISTENCED = "nvidia-persistenced.service"
SERVICE_FABRIC_MANAGER = "nvidia-fabricmanager.service"
SERVICE_IMEX = "nvidia-imex.service"


def upstream(version: str) -> str:
    """The driver's version in a package's: 580.105.08 of 580.105.08-1 or of 3:580.105.08-1.el9; empty for any other."""
    found = _DRIVER_VERSION.match(version)
    return found[1] if found else ""


def order(version: str) -> tuple[int, ...]:
    """Compares as versions do: 580.95.05 is before 580.105.08."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def branch_of(version: str) -> int:
    return int(version.split(".")[0])


def satisfies(version: str, asked: str) -> bool:
    """Whether a driver's version is the one asked for, or of the branch asked for."""
    return bool(version) and (version == asked or version.startswith(asked + "."))


def choose(versions: Iterable[str], request: Request, anchor: str, prefer: str) -> str:
    """Return the driver's version to install, of those that the sources have of its first package. Raises PlanError."""
    offered = [found for found in map(upstream, versions) if found]
    fitting = [found for found in offered if satisfies(found, request.version)]
    if not fitting:
        raise PlanError(
            "nvidia_driver_version",
            "%s is not to be had as %s from %s" % (request.version, anchor, request.source),
            "There is: %s. Nothing was changed." % (", ".join(dict.fromkeys(offered)) or "none"),
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
    """open, proprietary or none. auto is open wherever all GPUs can: Turing and newer. Raises PlanError."""
    ids = [int(gpu.device_id, 16) for gpu in gpus]
    old = ["%s (10de:%s)" % (gpu.address, gpu.device_id) for gpu in gpus if int(gpu.device_id, 16) < _TURING]
    only_open = any(number >= _BLACKWELL or number in _GRACE_HOPPER for number in ids)
    if old and branch > _LAST_BEFORE_TURING:
        raise PlanError(
            "nvidia_driver_version",
            "branch %d has no support for %s, which is older than Turing" % (branch, ", ".join(old)),
            "Ask for branch %d, the last one that has." % _LAST_BEFORE_TURING,
        )
    if asked == "none":
        return asked
    if asked == "open" and old:
        raise PlanError(
            "nvidia_driver_kernel_modules",
            "the open kernel modules do not run %s, which is older than Turing" % ", ".join(old),
            "Say proprietary, or auto.",
        )
    if asked == "proprietary" and branch >= _NO_PROPRIETARY:
        raise PlanError("nvidia_driver_kernel_modules", "branch %d has no proprietary modules" % branch, "Say open.")
    if asked == "proprietary" and only_open:
        raise PlanError(
            "nvidia_driver_kernel_modules",
            "the GPUs of this host (Blackwell or Grace Hopper) run with the open modules alone",
            "Say open, or auto.",
        )
    if asked == "auto" and old and only_open:
        raise PlanError("this host", "no driver runs all of its GPUs", "Take out %s." % ", ".join(old))
    return asked if asked != "auto" else "proprietary" if old else "open"


def needs_fabric_manager(host: Host, asked: str) -> bool:
    """Where GPUs hang on NVSwitches, no CUDA program runs without it, be the board a DGX or anything else
    (https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/)."""
    return asked == "present" or (asked == "auto" and bool(host.nvswitches or host.nvlink_bridges))


def needs_subnet_manager(host: Host, wanted: Wanted) -> bool:
    """Fabric Manager starts NVLSM itself, but finds it only where it is installed and ib_umad loaded."""
    return bool(host.nvlink_bridges) and SERVICE_FABRIC_MANAGER in wanted.units


def package_set(catalogue: dict[str, Any], distribution: str, source: str, branch: int) -> dict[str, Any]:
    """The names of one branch: the entry with the highest `since` that is not above it. Raises PlanError."""
    sets = catalogue["packages"].get(source, [])
    found = [entry for entry in sets if entry["since"] <= branch <= entry.get("until", branch)]
    if not found:
        raise PlanError(
            "nvidia_driver_version",
            "branch %d cannot be had from nvidia_driver_source %s on %s" % (branch, source, distribution),
            "There are: %s."
            % (", ".join("%s and later" % entry["since"] for entry in sets) or "none; take another source"),
        )
    return max(found, key=lambda entry: entry["since"])


def wanted(host: Host, request: Request, catalogue: dict[str, Any], branch: int) -> Wanted:
    """The packages and services that make the request true. Raises PlanError where it cannot be."""
    names = package_set(catalogue, host.distribution, request.source, branch)
    chosen = flavor(host.gpus, request.kernel_modules, branch)
    if chosen not in ("none", *names["modules"]):
        raise PlanError(
            "nvidia_driver_kernel_modules",
            "nvidia_driver_source %s has no %s kernel modules here" % (request.source, chosen),
            "There are: %s." % ", ".join(sorted(names["modules"])),
        )
    modules = names["modules"].get(chosen, [])
    free: list[str] = []
    if host.secure_boot.enabled and not host.secure_boot.enrolled and names.get("signed", {}).get(chosen):
        # Built and signed for each kernel by the distribution, and numbered as the kernels are.
        free, modules = list(names["signed"][chosen]), []
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
    fill = {"branch": branch, "kernel": host.kernel}
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
        tuple(name.format(**fill) for name in free),
        tuple(sorted(others - set(wanted_names))),
        tuple(units),
    )


def _there(names: dict[str, Any], what: str, request: Request) -> list[str]:
    if not names.get(what):
        raise PlanError(
            "nvidia_driver_source",
            "%s has no %s, which this host needs" % (request.source, what.replace("_", " ")),
            "Take nvidia_driver_source: repository, whose packages are all of one version.",
        )
    return names[what]


def of_the_driver(package: Package, patterns: Iterable[str]) -> bool:
    """Whether an installed package is part of the driver: by its whole name, or by a pattern and a driver's version.

    nvidia-container-toolkit, DCGM and CUDA have names like it, but versions of their own. So has NVLSM, which is named.
    """
    found = bool(upstream(package.version))
    return any(matches(package.name, pattern) and (found or "*" not in pattern) for pattern in patterns)


def matches(name: str, pattern: str) -> bool:
    """Whether a package's name is the one that a pattern stands for."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def skew(host: Host) -> str:
    """In words, where the parts of the driver that must be of one version are not; empty where they are."""
    seen = {"the loaded kernel module": host.loaded, "the module for this kernel": host.on_disk}
    seen["the NVML library"] = host.library
    versions = {version for version in seen.values() if version}
    if len(versions) < 2:
        return ""
    return "; ".join("%s is %s" % (what, version) for what, version in seen.items() if version)


def secure_boot_problem(host: Host, chosen: str, signed: bool) -> PlanError | None:
    """What is in the way of loading a module that is built on this host, with the way out; None where nothing is."""
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
        "it is on, and its firmware trusts no key that a kernel module built on this host could be signed with",
        "As root: %smokutil --import %s (it asks for a password); then reboot, choose Enroll MOK on the console, and run "
        "again. Nothing was installed." % (make, certificate),
    )
