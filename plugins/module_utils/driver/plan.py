# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the steps from the current host to the request, in order.

All functions are pure. Check mode prints these steps.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from ..errors import PlanError
from ..packages import keys
from ..packages.model import Package, Step, hold_steps, order
from . import rules
from .files import BLACKLIST, DRACUT, IMEX_NODES, MANAGED
from .model import Host, Plan, Request, Transaction, Unit, Wanted

#: Kinds of steps, in the order of execution.
KINDS = ("repair", "key", "write", "delete", "uninstall", "packages", "runfile", "initramfs", "modules", "hold", "release",
         "enable", "load", "start", "restart")  # fmt: skip


def settled(host: Host, request: Request, wanted: Wanted) -> str:
    """Return the driver's version if the host already fulfils the request, or "".

    All desired packages must be installed in one version that matches the request.
    """
    if request.source == "runfile":
        return host.library if host.runfile and host.library == request.version else ""
    found = [host.package(name) for name in wanted.locked]
    versions = {rules.upstream(package.version) if package else "" for package in found}
    there = all(host.package(name) for name in wanted.free) and not any(host.package(name) for name in wanted.unwanted)
    # Require the next kernel's packages only if installed packages define its flavour. If the flavour is only guessed
    # from the running kernel, the sources may not have these packages. They are then requested only together with the
    # driver's packages.
    if rules.flavors_of_kernels(host)[1]:
        there = there and all(host.package(name) for name, _asked in wanted.next_kernel)
    broken = any(package and package.broken for package in found)
    if len(versions) != 1 or broken or not there:
        return ""
    version = versions.pop()
    modules = [name.format(version=version) for _kernel, name in wanted.precompiled]
    if rules.stale_modules(host, wanted, version) or not all(host.package(name) for name in modules):
        return ""
    return version if rules.satisfies(version, request.version) else ""


class Goal(NamedTuple):
    """The desired packages, driver version and files.

    `transaction` is the change of packages. `files` maps paths to texts.
    """

    wanted: Wanted
    version: str
    transaction: Transaction | None
    files: dict[str, str]


class Repository(NamedTuple):
    """The driver's repository.

    `trusted` has the fingerprints of trusted keys. `patterns` match the driver's packages. `signed` is true if the
    kernel modules are signed.
    """

    trusted: Sequence[str]
    patterns: Sequence[str]
    signed: bool = False


def present(host: Host, request: Request, goal: Goal, repository: Repository) -> Plan:
    """Plan the installation of the desired driver.

    Raises PlanError if the installation is impossible or not permitted.
    """
    wanted, version, transaction, files = goal
    trusted, patterns, signed = repository
    own_modules = wanted.flavor != "none"
    changes = bool(transaction and (transaction.installs or transaction.removals))
    if changes or host.on_disk != version:
        problem = rules.secure_boot_problem(host, wanted.flavor, signed)
        if problem:
            raise problem
    steps = []
    if host.interrupted or any(package.broken for package in host.packages):
        steps.append(_repair(host))
    if request.source == "repository" and not keys.trusts(host.key_fingerprints, trusted):
        steps.append(Step("key", "trust the repository's key %s" % ", ".join(trusted)))
    steps += [Step("write", "write %s" % path, (path, text)) for path, text in files.items()
              if host.files.get(path) != text]  # fmt: skip
    if transaction and changes:
        _refuse_removals(transaction, request, host, patterns, wanted)
        steps += _packages(transaction)
    if host.runfile and request.source != "runfile":
        # `rules.refuse_mixing` has checked that the request names this driver for removal.
        steps.append(Step("uninstall", "run %s" % host.runfile, ()))
        changes = True
    if request.source == "runfile" and not settled(host, request, wanted):
        steps.append(Step("runfile", "run the installer of %s" % version, (version,)))
        changes = True
    # Delete files of another source. For example, NVIDIA's files would block the distribution's packages.
    stale = [path for path in host.files if path not in files and path != IMEX_NODES]
    steps += [Step("delete", "delete %s" % path, (path,)) for path in stale]
    if any(files.get(path) != host.files.get(path) for path in (BLACKLIST, DRACUT)):
        verb = "exclude" if BLACKLIST in files else "include"
        steps.append(Step("initramfs", "rebuild the initramfs to %s nouveau" % verb))
    coming = {name for name, _old, _new in transaction.installs} if transaction else set()
    # After a run was killed during a scriptlet, a package may be installed without its modules. The transaction does
    # not run this scriptlet again, so reinstall the package.
    linked = [name.format(version=version) for _kernel, name in wanted.precompiled[:1]]
    builders = {*wanted.dkms, *linked}
    if own_modules and host.on_disk != version and (not changes or (builders and not coming & builders)):
        text = "build the kernel modules %s for %s" % (version, host.kernel)
        text = "reinstall %s, which lacks its kernel modules" % linked[0] if linked else text
        steps.append(Step("modules", text, (version, host.kernel, *linked)))
    steps += _holds(host, request, wanted, version, transaction, patterns)
    reboot = _reboot(host, wanted, version, transaction) if own_modules else ""
    if reboot and request.reboot == "never":
        raise PlanError(
            "nvidia_driver_reboot",
            "a reboot is needed: %s" % reboot,
            "Set it to now (reboot at the end of the run) or later (reboot it yourself), or reboot the host and run again. "
            "Nothing was changed.",
        )
    if reboot and request.reboot == "now" and transaction:
        _refuse_boot(wanted, transaction)
    steps += _services(host, wanted, version, changes, bool(reboot))
    restart = _restart(host, files, bool(reboot))
    steps += restart
    ordered = tuple(sorted(steps, key=lambda step: KINDS.index(step.kind)))
    notes = () if own_modules or not rules.skew(host) else (rules.skew(host),)
    if own_modules and not host.gpus:
        notes += ("no NVIDIA GPU is on the PCI bus",)
    if transaction and transaction.missing:
        names = ", ".join(transaction.missing)
        notes += ("no source has %s: the next kernel may come without headers or modules for the driver" % names,)
    disruptive = bool(reboot or (changes and host.loaded) or restart)
    return Plan(version, ordered, disruptive, reboot, notes, transaction)


def absent(host: Host, request: Request, manager: str, keyring: str, transaction: Transaction | None,
           patterns: Sequence[str]) -> Plan:  # fmt: skip
    """Plan the removal of the driver and of all files of this role."""
    steps = []
    rules.refuse_foreign(host, request)
    changes = bool(transaction and transaction.removals)
    if host.interrupted or any(package.broken for package in host.packages):
        steps.append(_repair(host))
    if transaction and changes:
        _refuse_removals(transaction, request, host, patterns, None)
        steps += _packages(transaction)
    if host.runfile:
        steps.append(Step("runfile", "run %s" % host.runfile, ()))
        changes = True
    ours = [path for path in MANAGED[manager] if path in host.files and path != IMEX_NODES]
    ours += [keyring] if host.key_fingerprints else []
    steps += [Step("delete", "delete %s" % path, (path,)) for path in ours]
    if BLACKLIST in host.files or DRACUT in host.files:
        steps.append(Step("initramfs", "rebuild the initramfs to include nouveau"))
    reboot = "the kernel module %s is still loaded" % host.loaded if changes and host.loaded else ""
    if reboot and request.reboot == "never":
        raise PlanError(
            "nvidia_driver_reboot",
            "a reboot is needed: %s" % reboot,
            "Set it to now (reboot at the end of the run) or later (reboot it yourself). Nothing was changed.",
        )
    # Delete files last, because the pin must block other versions until the packages are removed.
    ordered = tuple(sorted(steps, key=lambda step: (step.kind in ("delete", "initramfs"), KINDS.index(step.kind))))
    return Plan("", ordered, bool(changes and host.loaded), reboot, (), transaction)


def _refuse_boot(wanted: Wanted, transaction: Transaction) -> None:
    """Refuse a reboot into a kernel that has no driver modules. Raises PlanError."""
    lacking = [
        (kernel, name.format(version=transaction.version))
        for kernel, name in wanted.precompiled
        if name.format(version=transaction.version) in transaction.missing
    ]
    if lacking:
        raise PlanError(
            "nvidia_driver_precompiled",
            "a reboot would start kernel %s, and no source has %s" % lacking[-1],
            "Remove that kernel, request another version, set nvidia_driver_reboot: later and boot another kernel, or set "
            "nvidia_driver_precompiled: false, so that DKMS builds the modules. Nothing was changed.",
        )


def _repair(host: Host) -> Step:
    broken = [package.name for package in host.packages if package.broken]
    text = " ".join(["complete the interrupted change", host.interrupted]).strip()
    return Step("repair", text + (", repair %s" % ", ".join(broken) if broken else ""))


def _packages(transaction: Transaction) -> list[Step]:
    steps = []
    for name, old, new in transaction.installs:
        verb = "install" if not old else "upgrade" if order(old) < order(new) else "downgrade"
        text = "%s %s %s" % (verb, name, new) if not old else "%s %s %s to %s" % (verb, name, old, new)
        steps.append(Step("packages", text, (name, old, new)))
    return steps + [
        Step("packages", "remove %s %s" % (name, old), (name, old, "")) for name, old in transaction.removals
    ]


def _refuse_removals(transaction: Transaction, request: Request, host: Host, patterns: Sequence[str],
                     wanted: Wanted | None) -> None:  # fmt: skip
    """Refuse to remove other packages without permission. Raises PlanError."""
    own = {package.name for package in host.packages if rules.of_the_driver(package, patterns)}
    own |= set(wanted.unwanted) if wanted else set()
    foreign = [name for name in transaction.removed if name not in own | set(request.allow_removal)]
    if foreign:
        raise PlanError(
            "packages",
            "this would also remove %s, which is not part of the driver but depends on it" % ", ".join(foreign),
            "Remove it yourself, or add it to nvidia_driver_allow_removal. Nothing was changed.",
        )


def _holds(host: Host, request: Request, wanted: Wanted, version: str, transaction: Transaction | None,
           patterns: Sequence[str]) -> list[Step]:  # fmt: skip
    after = {package.name: package for package in host.packages}
    touched = set()
    if transaction:
        touched = {name for name, _old, _new in transaction.installs}
        for name in transaction.removed:
            after.pop(name, None)
    parts = {name: package for name, package in after.items() if rules.of_the_driver(package, patterns)}
    driver = {
        name for name, package in parts.items() if rules.upstream(package.version) == version or name in wanted.free
    }
    if transaction:
        new = [Package(name, version) for name, _old, version in transaction.installs]
        coming = [package for package in new if rules.of_the_driver(package, patterns)]
        driver |= {package.name for package in coming
                   if rules.upstream(package.version) == version or package.name in wanted.free}  # fmt: skip
    driver |= set(wanted.locked)
    # apt removes a package's hold when it changes the package on request.
    held = {name for name, package in after.items() if package.held and name not in touched}
    return hold_steps(request.hold, sorted(driver), held)


def _reboot(host: Host, wanted: Wanted, version: str, transaction: Transaction | None) -> str:
    if host.loaded and host.loaded != version:
        return "the loaded kernel module is %s, and the driver's other parts are %s" % (host.loaded, version)
    gone = set(transaction.removed) if transaction else set()
    gone &= {*wanted.unwanted, *rules.stale_modules(host, wanted, version)}
    if host.loaded and any(("open" in name) != (wanted.flavor == "open") for name in gone):
        return "the kernel module of the other flavour is loaded"
    if host.nouveau_loaded:
        return "nouveau is loaded and holds the GPUs"
    return ""


def _services(host: Host, wanted: Wanted, version: str, changes: bool, reboot: bool) -> list[Step]:
    enable = tuple(name for name in wanted.units if not host.units.get(name, Unit()).enabled)
    steps = [Step("enable", "enable %s" % ", ".join(enable), enable)] if enable else []
    if wanted.flavor == "none" or reboot or not host.gpus:
        return steps
    if not host.loaded:
        steps.append(Step("load", "load the kernel module", ("nvidia",)))
    if rules.needs_subnet_manager(host, wanted) and not host.umad_loaded:
        steps.append(Step("load", "load ib_umad, which NVLSM needs to reach the NVSwitches", ("ib_umad",)))
    start = tuple(name for name in wanted.units if not host.units.get(name, Unit()).active)
    return steps + ([Step("start", "start %s" % ", ".join(start), start)] if start else [])


def _restart(host: Host, files: dict[str, str], reboot: bool) -> list[Step]:
    """Return the step that restarts IMEX if its nodes change.

    IMEX reads its nodes only when it starts (IMEX guide, "nodes_config.cfg").
    """
    moved = IMEX_NODES in files and host.files.get(IMEX_NODES) != files[IMEX_NODES]
    if not moved or reboot or not host.units.get(rules.SERVICE_IMEX, Unit()).active:
        return []
    return [Step("restart", "restart %s, whose nodes change" % rules.SERVICE_IMEX, (rules.SERVICE_IMEX,))]
