# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the driver version, and plan its packages."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Sequence

from ..errors import PlanError
from ..packages.model import IsPart, Transaction, order
from ..packages.registry import PackageManager
from . import files, rules
from .model import Host, Request, Wanted


def installation(
    manager: PackageManager, host: Host, request: Request, wanted: Wanted, patterns: Sequence[str], prefer: str = ""
) -> Transaction:
    """Return the package changes of an installation.

    Chooses the preferred version, or otherwise the newest version that matches the request. Raises PlanError.
    """
    anchor = wanted.locked[0]
    # Also change installed driver packages that were not requested. Otherwise they would keep another version.
    requested = (*wanted.locked, *wanted.free, *wanted.unwanted)
    parts = [
        package.name
        for package in host.packages
        if rules.of_the_driver(package, patterns) and rules.upstream(package.version) and package.name not in requested
    ]
    offered = manager.offered([*wanted.locked, *parts], needed=[anchor])
    candidates = _newest_first(offered[anchor])
    modules = _modules(manager, wanted, candidates)
    if wanted.precompiled:
        candidates = _with_modules(wanted, request, candidates, modules)
    chosen = rules.choose(candidates, request, anchor, prefer)
    exact, missing = [], []
    for _kernel, pattern in wanted.precompiled:
        name = pattern.format(version=chosen)
        exact += [manager.exactly % (name, modules[name][0])] if modules[name] else []
        missing += [] if modules[name] else [name]
    stale = rules.stale_modules(host, wanted, chosen)
    for name in (*wanted.locked, *(name for name in parts if name not in stale)):
        matching = [version for version in _newest_first(offered[name]) if rules.upstream(version) == chosen]
        if matching:
            exact.append(manager.exactly % (name, matching[0]))
        elif name in wanted.locked:
            raise PlanError(
                name,
                "the sources have no %s, which belongs to the driver and must have its version" % chosen,
                "Request another version: %s has %s. Nothing was changed."
                % (name, ", ".join(_newest_first(offered[name])) or "none"),
            )
    following = [
        (name, argument)
        for name, argument in wanted.next_kernel
        if not host.package(name) and argument not in wanted.free
    ]
    missing += _not_offered(manager, following)
    unwanted = [name for name in wanted.unwanted if host.package(name)]
    arguments = [
        # Without this, an unwanted package that requires the old version would be upgraded too.
        *manager.excluding(unwanted if wanted.precompiled else ()),
        *exact,
        *wanted.free,
        *(argument for _name, argument in following if argument not in missing),
    ]
    pins = files.preferences(chosen, patterns)
    found = manager.plan_install(host.packages, arguments, _is_part(patterns), unwanted + stale, pins)
    return replace(found, version=chosen, missing=tuple(missing))


def removal(manager: PackageManager, host: Host, patterns: Sequence[str], foreign: Sequence[str] = ()) -> Transaction:
    """Return the package changes of a removal, with other packages that it removes.

    Raises PlanError.
    """
    is_part = _is_part(patterns)
    names = [package.name for package in host.packages if is_part(package) or package.name in foreign]
    return manager.plan_removal(host.packages, list(dict.fromkeys(names)), is_part) if names else Transaction("")


def _is_part(patterns: Sequence[str]) -> IsPart:
    return lambda package: rules.of_the_driver(package, patterns)


def _newest_first(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=order, reverse=True)


def _modules(manager: PackageManager, wanted: Wanted, versions: Iterable[str]) -> dict[str, list[str]]:
    """Return which versions of the precompiled modules are offered, by package name."""
    names = [
        pattern.format(version=rules.upstream(version))
        for version in versions
        for _kernel, pattern in wanted.precompiled
    ]
    return manager.offered(list(dict.fromkeys(names))) if names else {}


def _with_modules(
    wanted: Wanted, request: Request, versions: Sequence[str], modules: dict[str, list[str]]
) -> list[str]:
    """Return the versions that have modules for the running kernel.

    Raises PlanError if none of them matches the request.
    """
    kernel, pattern = wanted.precompiled[0]
    found = [version for version in versions if modules[pattern.format(version=rules.upstream(version))]]
    if not any(rules.satisfies(rules.upstream(version), request.version) for version in found):
        raise PlanError(
            "nvidia_driver_precompiled",
            "no source has modules of %s for kernel %s (%s)"
            % (request.version, kernel, pattern.format(version=request.version)),
            "Versions with such modules: %s. Boot another kernel, request another version or other "
            "nvidia_driver_kernel_modules, or set nvidia_driver_precompiled: false, so that DKMS builds the modules. "
            "Nothing was changed." % (", ".join(dict.fromkeys(map(rules.upstream, found))) or "none"),
        )
    return found


def _not_offered(manager: PackageManager, following: Sequence[tuple[str, str]]) -> list[str]:
    """Return the packages for the next kernel that no source offers.

    The result has arguments for the package manager. If an argument has a version and an architecture (RPM), the
    offered package must have the same.
    """
    if not following:
        return []
    offered = manager.offered(list(dict.fromkeys(word for pair in following for word in pair)))
    return [
        argument
        for name, argument in following
        if not offered[argument]
        and argument not in ["%s-%s.%s" % (name, found, argument.rpartition(".")[2]) for found in offered[name]]
    ]
