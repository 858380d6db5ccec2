# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the driver of one host from the module's parameters, and apply the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import durable
from ..errors import PlanError
from ..packages import keys, minimum_versions
from ..packages.model import Transaction
from ..packages.registry import MANAGERS, PackageManager
from . import files, plan, resolve, rules
from .apply import DriverChange, Tools, download, finish, interrupted
from .model import Host, Plan, Request, Wanted
from .observe import distribution, look

_UNITS = (rules.SERVICE_PERSISTENCED, rules.SERVICE_FABRIC_MANAGER, rules.SERVICE_IMEX)
#: The role gpu_drain writes this file while clients are stopped for a driver change.
DRAINED = "driver-drained.json"


class Driver:
    """Manage the driver of this host. The caller must close this object."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        name = distribution(Path("/etc/os-release").read_text(encoding="utf-8"))
        known = params["distributions"]
        if name not in known:
            raise PlanError(
                "this host",
                "its distribution is %s, which nvidia_driver does not know" % name,
                "It knows %s. A file in vars/distributions adds one." % ", ".join(sorted(known)),
            )
        self.catalogue = known[name]
        self.manager: PackageManager = MANAGERS[self.catalogue["manager"]](rules.OWNER)
        self.request = _request(params)
        self.repository = _repository(params["repository"], self.catalogue)
        self.catalogue = dict(self.catalogue, repository=self.repository)
        self.state = Path(params["state_directory"])
        self.keyring = files.KEYRINGS[self.manager.manager]
        self.key = b""
        self.flavor = "none"
        self.vulnerable = ""

    def close(self) -> None:
        self.manager.close()

    def look(self) -> Host:
        paths = files.MANAGED[self.manager.manager]
        return look(self.manager, paths, self.keyring, _UNITS, interrupted(self.state))

    def plan(self) -> Plan:
        self.host = self.look()
        if not self.request.present:
            return self._plan_absent()
        rules.check_version(self.request.version)
        patterns, minimums = self.catalogue["patterns"], self.params["minimum_versions"]
        notes = rules.check_gpus(self.host.gpus, self.request.version, minimums)
        foreign = rules.refuse_mixing(self.host, self.request, patterns)
        wanted = self._wanted()
        wanted = replace(wanted, unwanted=(*wanted.unwanted, *foreign))
        self.flavor = wanted.flavor
        version = plan.settled(self.host, self.request, wanted)
        transaction = None
        if self._must_ask(version):
            version, transaction = self._ask(wanted)
            notes = rules.check_gpus(self.host.gpus, version, minimums)
        elif self.request.source == "runfile":
            version = version or self.request.version
            if foreign or any(rules.of_the_driver(package, patterns) for package in self.host.packages):
                # Remove packages before the installer runs. `refuse_mixing` has already checked that the request
                # permits this.
                self.manager.open("", b"")
                transaction = resolve.removal(self.manager, self.host, patterns, foreign)
        self.vulnerable = minimum_versions.judged(
            minimum_versions.driver(version or self.request.version),
            self.params["vulnerable"],
            "nvidia_driver_vulnerable",
            "Request a version that fixes them, from one of the branches %s."
            % ", ".join(map(str, minimum_versions.MAINTAINED)),
        )
        imex_nodes = tuple(self.params["imex_nodes"]) if self.request.imex else ()
        needs = files.Needs(wanted.flavor, imex_nodes, self.host.dracut, rules.needs_subnet_manager(self.host, wanted))
        desired = files.wanted(
            self.manager.manager, self.request.source, version, self.catalogue, self.host.architecture, needs
        )
        repository = plan.Repository(self.repository["fingerprints"], self.catalogue["patterns"], _is_signed(wanted))
        goal = plan.Goal(wanted, version, transaction, desired)
        made = plan.present(self.host, self.request, goal, repository)
        return replace(made, notes=made.notes + notes)

    def _wanted(self) -> Wanted:
        branch = rules.branch_of(self.request.version)
        if self.request.source == "runfile":
            if self.request.version.count(".") < 1:
                raise PlanError("nvidia_driver_version", "a .run file has one exact version", "Name it.")
            if self.request.precompiled:
                raise PlanError("nvidia_driver_precompiled", "a .run file has no precompiled modules", "Say false.")
            flavor = rules.flavor(self.host.gpus, self.request.kernel_modules, branch)
            return Wanted(flavor, (), ())
        return rules.wanted(self.host, self.request, self.catalogue, branch)

    def _must_ask(self, version: str) -> bool:
        """Return whether the plan needs the repository's list of packages.

        A host in the desired state needs no access to a repository.
        """
        if self.request.source == "runfile":
            return False
        exact = version == self.request.version
        path = files.SOURCES[self.manager.manager]
        moved = self.request.source == "repository" and (
            not keys.trusts(self.host.key_fingerprints, self.repository["fingerprints"])
            or self.host.files.get(path) != rules.OWNER.repository(self.manager.manager, self._url())
        )
        return not version or moved or (self.request.upgrade and not exact)

    def _url(self) -> str:
        return files.repository_url(self.repository, self.host.architecture)

    def _ask(self, wanted: Wanted) -> tuple[str, Transaction]:
        url = ""
        if self.request.source == "repository":
            url, repository = self._url(), self.repository
            given = repository["key"] if repository["key_given"] else ""
            where = files.key_url(repository, self.host.architecture)
            self.key = keys.verified(rules.OWNER, self.keyring, repository["fingerprints"], given, where)
        self.manager.open(url, self.key)
        here = self.host.package(wanted.locked[0])
        prefer = rules.upstream(here.version) if here and not self.request.upgrade else ""
        patterns = self.catalogue["patterns"]
        transaction = resolve.installation(self.manager, self.host, self.request, wanted, patterns, prefer)
        return transaction.version, transaction

    def _plan_absent(self) -> Plan:
        foreign = rules.refuse_foreign(self.host, self.request)
        self.manager.open("", b"")
        patterns = self.catalogue["patterns"]
        transaction = resolve.removal(self.manager, self.host, patterns, foreign)
        return plan.absent(self.host, self.request, self.manager.manager, self.keyring, transaction, patterns)

    # -- results -----------------------------------------------------------------------------------------------------

    def fetch(self, made: Plan) -> None:
        """Download all packages before clients are stopped. Changes nothing else.

        Raises ApplyError.
        """
        torn = any(step.kind == "repair" for step in made.steps)
        # The package manager refuses downloads until an interrupted change is complete.
        if made.transaction and made.transaction.installs and not torn:
            download(self.manager, made.transaction)

    def apply(self, made: Plan) -> dict[str, Any]:
        repaired = [step.text for step in made.steps if step.kind == "repair"]
        if repaired:
            finish(self.manager, self.state)
            made = self.plan()
        if made.disruptive and self._drain():
            durable.write(self.state / DRAINED, {"schema": 1, "drain": self._drain()})
        tools = Tools(self.manager, self.look, self.state, self.key, self._installer())
        now = DriverChange(made, self.host, self.request, tools).run()
        result = self.result(made)
        return dict(
            result,
            loaded_version=now.loaded,
            steps=repaired + result["steps"],
            changed=bool(repaired) or result["changed"],
        )

    def _drain(self) -> list[int]:
        """Return the identity of the record that gpu_drain last wrote.

        The identity changes with each drain of the host.
        """
        record = self.state / "drain.json"
        return [record.stat().st_ino, record.stat().st_mtime_ns] if record.exists() else []

    def _drained(self) -> bool:
        """Return whether clients are stopped for a change of the driver.

        Returns False if they are stopped for another reason.
        """
        mark = durable.read(self.state / DRAINED, 1)
        return bool(mark and self._drain() and mark["drain"] == self._drain())

    def _installer(self) -> list[str]:
        """Return the .run file, its checksum, and the options of the installer.

        The installer documents its options with --advanced-options.
        """
        options = ["--silent", "--ui=none", "--no-questions", "--accept-license", "--dkms", "--disable-nouveau"]
        if self.flavor == "none":
            options = [*options[:4], "--no-kernel-modules"]
        else:
            options.append("--kernel-module-type=%s" % self.flavor)
        if self.request.variant == "headless":
            options += ["--no-opengl-files", "--no-x-check"]
        return [self.params["runfile"], self.params["runfile_sha256"], *options]

    def result(self, made: Plan) -> dict[str, Any]:
        needed = bool(made.steps) or bool(made.reboot and self.request.reboot == "now")
        return {
            "changed": needed,
            "needed": needed,
            "version": made.version,
            "steps": [step.text for step in made.steps],
            "disruptive": made.disruptive,
            "reboot": made.reboot,
            "drained": self._drained(),
            "runfile_needed": any(step.kind == "runfile" and step.items for step in made.steps),
            "kernel_modules": self.flavor,
            "loaded_version": self.host.loaded,
            "vulnerable": self.vulnerable,
            "notes": list(made.notes),
        }


def _request(params: dict[str, Any]) -> Request:
    asked = {name: params[name] for name in Request.__dataclass_fields__}
    version = "" if params["state"] == "absent" else params["version"]
    return Request(**dict(asked, version=version, allow_removal=tuple(params["allow_removal"])))


def _repository(given: dict[str, Any], catalogue: dict[str, Any]) -> dict[str, Any]:
    """Return the distribution's catalogue entry, overridden by the given values."""
    entry = dict(catalogue["repository"])
    asked = given.get("fingerprints") or entry["fingerprints"]
    entry["fingerprints"] = keys.normal(asked)
    entry["url"] = given.get("url") or ""
    entry["key_url"] = given.get("key_url") or ""
    entry["key_given"] = bool(given.get("key"))
    if given.get("key"):
        entry["key"] = given["key"]
    return entry


def _is_signed(wanted: Wanted) -> bool:
    """Return whether the vendor builds and signs the kernel modules."""
    return bool(wanted.precompiled) or any(name.startswith("linux-modules-nvidia-") for name in wanted.free)
