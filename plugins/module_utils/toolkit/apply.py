# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply a plan step by step.

All packages are downloaded before the first package changes. If the package manager refuses the packages, the changed
files are restored. An engine's previous configuration is restored if the engine does not start with the new one.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from .. import durable, systemd, systemd_reload
from ..cdi import nvidia_ctk
from ..cdi.follow import follow
from ..errors import ApplyError
from ..packages.change import PackageChange
from ..packages.host_files import read_text, read_texts
from ..packages.model import Step, Transaction
from ..processes.command import ask
from . import engines, files, rules
from .model import Engine, Plan

_NOTHING = "Nothing was installed."
# https://docs.docker.com/reference/cli/docker/system/info/
_DOCKER_INFO = ["docker", "info", "--format", "{{json .}}"]
_DOCKER_SECONDS, _LOOK_SECONDS = 30.0, 0.5


class ToolkitChange(PackageChange):
    """A change of the toolkit on one host."""

    def __init__(self, toolkit: Any, plan: Plan) -> None:
        super().__init__(toolkit.manager, toolkit.host, toolkit.key, toolkit.call)
        self.toolkit, self.plan = toolkit, plan
        self.record = {**self.host.record, "schema": 1}
        self.units_changed = self.installed = False

    def run(self) -> None:
        for step in self.plan.steps:
            self._do(step)
        self._remember()

    def _remember(self) -> None:
        """Record what the next run and a removal need."""
        if not self.toolkit.request.version:
            durable.remove(self.toolkit.record_path)
            return
        due = {}
        for name in self.plan.pending:
            unit = self.host.units[rules.BY_NAME[name].unit]
            former = self.host.record.get("pending", {}).get(name, {})
            cdi_due = self._cdi_differs(name) or bool(former.get("start") == unit.start and former.get("cdi"))
            due[name] = {"start": unit.start, "cdi": cdi_due}
        self.record["pending"] = due
        if self.record != self.host.record:
            durable.write(self.toolkit.record_path, self.record)

    def _cdi_differs(self, name: str) -> bool:
        engine = rules.BY_NAME[name]
        return engines.cdi_changes(engine, self.host.files.get(engine.config, ""), read_text(engine.config) or "")

    # -- Files ---------------------------------------------------------------------------------------------------------

    def _put(self, path: str, content: bytes | None) -> None:
        super()._put(path, content)
        self.units_changed |= path in files.UNITS

    def _delete(self, step: Step) -> None:
        super()._delete(step)
        if step.items[0] == files.SETTINGS:
            with contextlib.suppress(OSError):
                # Keep the folder if it has other settings for the service.
                Path(files.SETTINGS).parent.rmdir()
        self._reload_units()

    # -- Packages ------------------------------------------------------------------------------------------------------

    def _repair(self, step: Step) -> None:
        self._must(
            self.manager.repair(), "packages", "an interrupted installation cannot be completed", "See what it says."
        )

    def _install(self, step: Step) -> None:
        try:
            transaction = self.plan.transaction or Transaction("", arguments=tuple(self.toolkit.packages()))
        except ApplyError:
            self._put_back()
            raise
        problem = self.manager.download(transaction)
        if problem:
            self._put_back()
            cure = "Check that the repository is reachable, then run again. %s" % _NOTHING
            self._must(problem, "packages", "they could not be downloaded", cure, outcome="old")
        self._reload_units()
        self.manager.refresh()
        problem = self.manager.install(transaction)
        cure = "See the package manager's log. The next run completes the installation."
        self._must(problem, "packages", "they could not be installed", cure)
        self.installed = True

    def _remove(self, step: Step) -> None:
        problem = self.manager.remove(self.plan.transaction) if self.plan.transaction else ""
        self._must(problem, "packages", "they could not be removed", "See what it says.")

    def _selinux(self, step: Step) -> None:
        done = self.call(["setsebool", "-P", "container_use_devices", step.items[0]])
        problem = done.stderr.strip() if done.returncode else ""
        self._must(problem, "SELinux", "container_use_devices could not be set", "See the audit log.")
        self.record["selinux"] = step.items[0] == "on"

    # -- Engines -------------------------------------------------------------------------------------------------------

    def _engine(self, step: Step) -> bool:
        """Configure an engine. Return whether any file changed.

        In a change that was planned without nvidia-ctk, the engine may already be configured.
        """
        engine, version = rules.BY_NAME[step.items[0]], self.toolkit.version
        paths = [path for path in (engine.config, engine.drop_in) if path]
        current = read_texts(paths)
        texts = self.host.configured.get(engine.name)
        if texts is None or self.installed:
            texts = engines.ask(engine, version, self.toolkit.request, current, self.call)
        changed = {path: text for path, text in texts.items() if current.get(path, "") != text}
        for path, text in changed.items():
            self._put(path, text.encode() if text else None)
        notes = self.record.setdefault("engines", {})
        if changed:
            fresh, former = engines.note(engine, current, {**current, **changed}), notes.get(engine.name, {})
            # Keep the record of the state before the first run. If a later run adds CDI, record that too, so that a
            # removal also removes CDI.
            added = {"cdi_added": True} if fresh.get("cdi_added") else {}
            notes[engine.name] = {**fresh, **former, **added}
            # Write the record before a step can fail, because a rollback needs it.
            durable.write(self.toolkit.record_path, self.record)
        return bool(changed)

    def _unconfigure(self, step: Step) -> None:
        engine = rules.BY_NAME[step.items[0]]
        noted = self.host.record.get("engines", {}).get(engine.name, {})
        for path, text in engines.without(engine, self.host.files, noted).items():
            self._put(path, text.encode() if text else None)

    def _reload(self, step: Step) -> None:
        self._take_effect("reload", step)

    def _restart(self, step: Step) -> None:
        self._take_effect("restart", step)

    def _take_effect(self, how: str, step: Step) -> None:
        engine = rules.BY_NAME[step.items[0]]
        if how == "restart":
            systemd.reset_failed(self.call, [engine.unit])
        done = self.call(["systemctl", how, engine.unit])
        # systemd only sends the signal, and cannot report whether dockerd accepts the file.
        problem = done.stderr.strip() if done.returncode else self._refused_by_docker(engine)
        if done.returncode == 0 and not problem:
            return
        for path in (engine.config, engine.drop_in):
            if path in self.before:
                self._put(path, self.before[path])
        systemd.reset_failed(self.call, [engine.unit])
        # An engine that was only reloaded still runs. Reload it again, because a restart could end its containers.
        verb = "reload" if how == "reload" and done.returncode == 0 else "restart"
        back = self.call(["systemctl", verb, engine.unit])
        stands = (
            "It runs with its previous configuration"
            if back.returncode == 0
            else "It does not start with its previous configuration either"
        )
        cure = "%s. See `journalctl --unit %s`, fix the cause and run again." % (stands, engine.unit)
        self._must(problem, engine.unit, "it does not start with its new configuration", cure)

    def _refused_by_docker(self, engine: Engine) -> str:
        """Return which part of its configuration dockerd has not applied, or "".

        Repeats the query for a while, because dockerd reads the file some time after the signal. Returns "" for other
        engines.
        """
        if engine.name != "docker":
            return ""
        configured = read_text(engine.config) or ""
        deadline = time.monotonic() + _DOCKER_SECONDS
        while True:
            try:
                text, problem = ask(self.call, _DOCKER_INFO)
            except FileNotFoundError:
                # Docker's client is not installed.
                return ""
            if text is not None:
                problem = engines.docker_lacks(configured, text)
            if not problem or time.monotonic() > deadline:
                return problem
            time.sleep(_LOOK_SECONDS)

    # -- CDI -----------------------------------------------------------------------------------------------------------

    def _reload_units(self) -> None:
        if self.units_changed:
            self.call(systemd_reload.RELOAD)
            self.units_changed = False

    def _enable(self, step: Step) -> None:
        self._reload_units()
        done = self.call(["systemctl", "enable", "--no-reload", "--quiet", *step.items])
        problem = done.stderr.strip() if done.returncode else ""
        if not problem and rules.REFRESH_PATH in step.items:
            started = self.call(["systemctl", "start", rules.REFRESH_PATH])
            problem = started.stderr.strip() if started.returncode else ""
        self._must(problem, ", ".join(step.items), "not enabled", "See `journalctl --unit %s`." % step.items[0])

    def _disable(self, step: Step) -> None:
        done = self.call(["systemctl", "disable", "--no-reload", "--now", "--quiet", *step.items])
        problem = done.stderr.strip() if done.returncode else ""
        self._must(problem, ", ".join(step.items), "not disabled", "See `journalctl --unit %s`." % step.items[0])

    def _specification(self, step: Step) -> None:
        """Regenerate the CDI specification, as after a change of MIG devices."""
        self._reload_units()
        follow(())
        if not any(nvidia_ctk.find_specs(Path("/") / place) for place in (nvidia_ctk.PASSING, nvidia_ctk.LASTING)):
            cure = "See `journalctl --unit %s`." % rules.REFRESH_SERVICE
            self._must("there is none", files.SPECIFICATION, "no specification was made", cure)

    def _publish(self, step: Step) -> None:
        for path in step.items:
            # nvidia-ctk sets this mode since 1.16. Older releases write a file that only root can read.
            Path(path).chmod(0o644)
