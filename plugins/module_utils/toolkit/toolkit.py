# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the toolkit of one host from the module's parameters, and apply the plan."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import durable, systemd_reload
from ..errors import ApplyError, PlanError
from ..packages import keys, minimum_versions
from ..packages.family import package_manager
from ..packages.model import Transaction
from ..packages.registry import MANAGERS, PackageManager
from ..processes.command import Run, run_to_end
from . import files, observe, plan, rules
from .apply import ToolkitChange
from .model import Host, Plan, Request

RECORD = "container-toolkit.json"
SCHEMA = 1
# Kinds of steps after which systemd reloads its units. Writing or deleting a file below also leads to a reload.
_RELOADING = ("repair", "install", "remove")
_UNITS = tuple((path,) for path in files.UNITS)


class Toolkit:
    """Manage the container toolkit of this host. The caller must close this object."""

    def __init__(self, params: dict[str, Any], call: Run = run_to_end) -> None:
        self.params, self.call = params, call
        self.manager = _manager(call)
        self.request = _request(params)
        self.record_path = Path(params["state_directory"]) / RECORD
        self.trusted = keys.normal(params["repository"].get("fingerprints") or ())
        self.environment = dict(params["cdi_environment"], **observe.environment_file())
        self.key = b""
        self.version = self.request.version
        self.vulnerable = ""

    def close(self) -> None:
        self.manager.close()

    def look(self) -> Host:
        record = durable.read(self.record_path, SCHEMA) or {"schema": SCHEMA}
        return observe.look(self.manager, self.request, self.environment, record, self.call)

    def plan(self) -> Plan:
        """Read the host, query the repository if needed, and return the plan.

        Changes nothing. Raises PlanError.
        """
        if self.request.version:
            rules.check_version(self.request.version)
            self.vulnerable = minimum_versions.judged(
                minimum_versions.toolkit(self.request.version),
                self.params["vulnerable"],
                "container_toolkit_vulnerable",
                "Request %s or later." % minimum_versions.TOOLKIT[-1].version,
            )
        self.host = self.look()
        transaction = None
        if not self.request.version:
            names = [package.name for package in self.host.packages]
            if names:
                transaction = self.manager.plan_removal(self.host.packages, names, rules.is_part)
                rules.check_removals(transaction.removed, self.request.allow_removal, "remove")
            return replace(plan.absent(self.host, self.request), transaction=transaction)
        self.wanted = self._wanted()
        rules.engines(self.host, self.request)
        installs = plan.installs(self.host, self.request)
        if installs or plan.moves(self.host, self.request, self.wanted, self.trusted):
            transaction = self._ask(installs)
        else:
            self.version = rules.installed(self.host.packages)
        made = plan.present(self.host, self.request, self.version, self.wanted, self.trusted)
        return replace(made, transaction=transaction)

    def _wanted(self) -> dict[str, str]:
        return files.wanted(
            self.host.manager,
            self.request.source,
            self._url(),
            self.request.cdi,
            not rules.keeps_specification(self.request.version),
            self.params["cdi_environment"],
        )

    def _url(self) -> str:
        return files.repository_url(self.params["repository"]["url"], self.host.manager, self.host.architecture)

    def _ask(self, installs: bool) -> Transaction | None:
        """Choose the version, and return the changes of packages."""
        if self.request.source == "files":
            # The version is known after the package files were copied to the host and read.
            self.version = self.request.version
            return None
        url = ""
        if self.request.source == "repository":
            url, given = self._url(), self.params["repository"]
            keyring, key = files.KEYRINGS[self.host.manager], given.get("key") or ""
            self.key = keys.verified(rules.OWNER, keyring, self.trusted, key, given.get("key_url") or "")
        self.manager.open(url, self.key)
        self.version = rules.choose(self.manager.offered(rules.PACKAGES, needed=rules.PACKAGES), self.request.version)
        if not installs:
            return None
        arguments = [self.manager.exactly % (name, self.version) for name in rules.PACKAGES]
        transaction = self.manager.plan_install(self.host.packages, arguments, rules.is_part)
        rules.check_removals(transaction.removed, self.request.allow_removal, "install")
        return transaction

    # -- Results -------------------------------------------------------------------------------------------------------

    def guard(self, made: Plan, check: bool) -> None:
        """Raise ApplyError if a systemd reload would detach GPUs from containers."""
        # The packages' scripts reload systemd, too.
        if any(step.kind in _RELOADING or step.items[:1] in _UNITS for step in made.steps):
            params = self.params
            systemd_reload.guard(Path("/"), params["on_busy"], params["busy_timeout"], check, self.call)

    def apply(self, made: Plan) -> dict[str, Any]:
        """Apply the plan, and read the host again. Raises ApplyError."""
        work = ToolkitChange(self, made)
        work.run()
        return dict(self.result(made), steps=work.done, changed=bool(work.done))

    def packages(self) -> list[str]:
        """Return the paths of the verified package files on this host.

        Raises ApplyError.
        """
        paths = []
        for file in self.params["files"]:
            try:
                digest = hashlib.sha256(Path(file["path"]).read_bytes()).hexdigest()
            except OSError as error:
                raise ApplyError(
                    file["path"], "it cannot be read: %s" % error, "Copy it to the host.", outcome="old"
                ) from None
            if digest != file["sha256"].lower():
                raise ApplyError(
                    file["path"],
                    "its SHA-256 is %s, and %s was expected" % (digest, file["sha256"]),
                    "Download it again, or correct container_toolkit_files. Nothing was changed.",
                    outcome="old",
                )
            paths.append(file["path"])
        found = dict(map(self.manager.version_of, paths))
        wrong = [name for name in rules.PACKAGES if not rules.is_version(found.get(name, ""), self.request.version)]
        if wrong:
            raise ApplyError(
                "container_toolkit_files",
                "they have no %s in version %s" % (", ".join(wrong), self.request.version),
                "Name a file for each of %s. Nothing was changed." % ", ".join(rules.PACKAGES),
                outcome="old",
            )
        return paths

    def result(self, made: Plan) -> dict[str, Any]:
        return {
            "changed": bool(made.steps),
            "version": self.version if self.request.version else "",
            "steps": [step.text for step in made.steps],
            "files_needed": self.request.source == "files" and any(step.kind == "install" for step in made.steps),
            "restart_pending": list(made.pending),
            "vulnerable": self.vulnerable,
            "notes": list(made.notes),
        }


def _manager(call: Run) -> PackageManager:
    manager = package_manager()
    if manager:
        return MANAGERS[manager](rules.OWNER, call)
    raise PlanError("this host", "it has neither apt nor dnf", "container_toolkit supports no other package manager.")


def _request(params: dict[str, Any]) -> Request:
    asked = {name: params[name] for name in Request.__dataclass_fields__ if name in params}
    asked.update(engines=tuple(params["runtimes"]), engine_cdi=params["runtime_cdi"])
    version = params["version"] if params["state"] == "present" else ""
    return Request(**dict(asked, version=version, allow_removal=tuple(params["allow_removal"])))
