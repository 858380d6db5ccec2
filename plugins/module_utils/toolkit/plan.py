# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the steps from a host and a request. Pure functions."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from ..packages import keys
from ..packages.model import Step, hold_steps
from . import engines, files, rules
from .model import Engine, Host, Plan, Request

_CDI_UNITS = (rules.REFRESH_PATH, rules.REFRESH_SERVICE)


def installs(host: Host, request: Request) -> bool:
    """Return whether packages must be downloaded and changed."""
    return not rules.is_version(rules.installed(host.packages), request.version)


def moves(host: Host, request: Request, wanted: Mapping[str, str], trusted: Sequence[str]) -> bool:
    """Return whether the repository on the host is missing or differs."""
    path = files.SOURCES[host.manager]
    return request.source == "repository" and (
        not keys.trusts(host.key_fingerprints, trusted) or host.files.get(path, "") != wanted.get(path, "")
    )


def present(host: Host, request: Request, version: str, wanted: Mapping[str, str], trusted: Sequence[str]) -> Plan:
    """Return the steps that install this exact version with these files.

    Raises PlanError if this is not possible.
    """
    changes = installs(host, request)
    steps = []
    broken = tuple(package.name for package in host.packages if package.broken)
    if broken:
        steps.append(Step("repair", "complete the interrupted installation of %s" % ", ".join(broken), broken))
    if request.source == "repository" and not keys.trusts(host.key_fingerprints, trusted):
        steps.append(Step("key", "write %s" % files.KEYRINGS[host.manager]))
    steps += _writes(host, wanted)
    if changes:
        steps.append(Step("install", _install_text(host, version), (version,)))
    held = {package.name for package in host.packages if package.held and not changes}
    steps += hold_steps(request.hold, rules.PACKAGES, held)
    if host.selinux_denies and request.selinux_boolean:
        steps.append(
            Step("selinux", "permit containers to use devices (SELinux boolean container_use_devices)", ("on",))
        )
    configured, effects, pending = _engines(host, request, version, changes)
    steps += configured
    notes = []
    if request.cdi:
        steps += _specification(host, changes)
        if not host.driver:
            notes.append("no driver for the running kernel, so the CDI specification will be written once it has one")
    steps += effects
    return Plan(tuple(steps), tuple(pending), tuple(notes + _pending_notes(pending)))


def _install_text(host: Host, version: str) -> str:
    changed = [
        "%s %s" % (name, "%s -> %s" % (package.version, version) if package else version)
        for name, package in ((name, host.package(name)) for name in rules.PACKAGES)
        if package is None or package.version != version
    ]
    return "install " + ", ".join(changed)


def _writes(host: Host, wanted: Mapping[str, str]) -> list[Step]:
    steps = []
    for path in (files.SOURCES[host.manager], *files.UNITS):
        text, current = wanted.get(path, ""), host.files.get(path, "")
        if text == current or (current and path in files.UNITS and not current.startswith(files.HEAD)):
            # A unit with this name from any package is sufficient.
            continue
        if text:
            steps.append(Step("write", "write %s" % path, (path, text)))
        elif current.startswith(files.HEAD):
            steps.append(Step("delete", "delete %s" % path, (path,)))
    if files.SOURCES[host.manager] not in wanted and host.key_fingerprints:
        steps.append(Step("delete", "delete %s" % files.KEYRINGS[host.manager], (files.KEYRINGS[host.manager],)))
    return steps


def _engines(host: Host, request: Request, version: str, changes: bool) -> tuple[list[Step], list[Step], list[str]]:
    """Return the steps for engines, and the engines that are not restarted now.

    The steps are two lists: the first configures engines, the second reloads or restarts them.
    """
    configured, effects, pending = [], [], []
    for engine in rules.engines(host, request):
        if not engine.config:
            continue
        differs, cdi_changed = _differs(engine, host, request, version, changes)
        if differs:
            where = engines.paths(engine, version, host.files.get(engine.config, ""))[-1]
            configured.append(Step("engine", "configure %s (%s)" % (engine.name, where), (engine.name,)))
        due, cdi_due = _due(engine, host)
        if differs or due:
            how = rules.takes_effect_by(engine, host, request.restart, cdi_changed or cdi_due)
            if how == "pending":
                pending.append(engine.name)
            elif how:
                effects.append(Step(how, "%s %s" % (how, engine.unit), (engine.name,)))
    return configured, effects, pending


def _differs(engine: Engine, host: Host, request: Request, version: str, changes: bool) -> tuple[bool, bool]:
    """Return (whether the configuration changes, whether its CDI use changes)."""
    texts = host.configured.get(engine.name)
    if texts is None or changes:
        wants = request.engine_cdi and engine.name == "docker"
        differs = engines.predict(engine, version, request, host.files)
        has = engines.uses_cdi(host.files.get(engine.config, ""))
        return differs, wants and not has
    differs = any(host.files.get(path, "") != text for path, text in texts.items())
    before, after = host.files.get(engine.config, ""), texts.get(engine.config, "")
    return differs, engines.cdi_changes(engine, before, after)


def _due(engine: Engine, host: Host) -> tuple[bool, bool]:
    """Return whether a configuration is pending, and whether it changes CDI use."""
    record = host.record.get("pending", {}).get(engine.name)
    unit = host.units.get(engine.unit)
    if not record or unit is None or not unit.active or unit.start != record["start"]:
        return False, False
    return True, bool(record["cdi"])


def _pending_notes(pending: Iterable[str]) -> list[str]:
    return [
        "%s keeps running with its previous configuration, because a restart may end containers. Restart it at a good time, or "
        "set container_toolkit_restart: always" % name
        for name in pending
    ]


def _specification(host: Host, changes: bool) -> list[Step]:
    steps = []
    units = tuple(
        name
        for name, unit in ((name, host.units.get(name)) for name in _CDI_UNITS)
        if unit is None or not unit.enabled or (name == rules.REFRESH_PATH and not unit.active)
    )
    if units:
        steps.append(Step("enable", "enable %s" % ", ".join(units), units))
    if host.driver and (changes or not host.specs or host.stale_specs):
        what = ", ".join(host.stale_specs) or files.SPECIFICATION
        steps.append(Step("specification", "write %s for the current devices" % what))
    if host.private_specs:
        text = "make %s readable for all users" % ", ".join(host.private_specs)
        steps.append(Step("publish", text, host.private_specs))
    return steps


# -- Removal ----------------------------------------------------------------------------------------------------


def absent(host: Host, request: Request) -> Plan:
    steps, effects, pending = [], [], []
    noted = host.record.get("engines", {})
    for engine in rules.ENGINES:
        texts = engines.without(engine, host.files, noted.get(engine.name, {})) if engine.config else {}
        if texts:
            steps.append(Step("unconfigure", "remove the nvidia runtime from %s" % engine.name, (engine.name,)))
            before = host.files.get(engine.config, "")
            cdi = engines.cdi_changes(engine, before, texts.get(engine.config, before))
            how = rules.takes_effect_by(engine, host, request.restart, cdi)
            if how == "pending":
                pending.append(engine.name)
            elif how:
                effects.append(Step(how, "%s %s" % (how, engine.unit), (engine.name,)))
    steps += effects
    units = tuple(name for name in _CDI_UNITS if host.units.get(name) and host.units[name].enabled)
    if units:
        steps.append(Step("disable", "disable %s" % ", ".join(units), units))
    names = tuple(package.name for package in host.packages)
    if names:
        steps.append(Step("remove", "remove %s" % ", ".join(names), names))
    keyring = files.KEYRINGS[host.manager]
    ours = [
        path for path in (files.SOURCES[host.manager], *files.UNITS) if host.files.get(path, "").startswith(files.HEAD)
    ]
    ours += [keyring] if host.key_fingerprints else []
    ours += [files.SPECIFICATION] if files.SPECIFICATION in host.specs else []
    steps += [Step("delete", "delete %s" % path, (path,)) for path in ours]
    if host.record.get("selinux"):
        steps.append(Step("selinux", "forbid containers to use devices (container_use_devices)", ("off",)))
    left = [path for path in host.specs if path != files.SPECIFICATION]
    notes = ["%s remains, and refers to hooks of the toolkit. Delete it if it is not used" % path for path in left]
    return Plan(tuple(steps), tuple(pending), tuple(notes + _pending_notes(pending)))
