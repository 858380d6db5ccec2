# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply a driver plan, and restore the old driver if a step fails.

Before the first change, all packages are downloaded, and a journal is written. The next run reads the journal and
completes an interrupted change.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Callable, Sequence

from .. import durable, systemd
from ..errors import ApplyError
from ..frozen import frozen
from ..packages.change import PackageChange
from ..packages.model import Step, Transaction
from ..packages.registry import PackageManager
from ..processes.command import Run, run_to_end
from . import initramfs, rules
from .model import Host, Plan, Request
from .repack import repack

SCHEMA = 1
JOURNAL = "driver.json"
#: Folder that has the old packages during a change.
KEPT = "driver-old"
#: Folder for modules that DKMS replaced (dkms(8), "original_module").
ARCHIVE = "/var/lib/dkms/nvidia/original_module"
#: Folder with the source of the kernel modules that DKMS builds.
SOURCE = "/usr/src/nvidia-%s"


@frozen
class Tools:
    """The dependencies of a driver change.

    `look` reads the host again. `state` is the state directory. `key` is the content of the repository's key ring.
    `runfile` is the .run file with its checksum and options.
    """

    manager: PackageManager
    look: Callable[[], Host]
    state: Path
    key: bytes
    runfile: Sequence[str] = ()
    call: Run = run_to_end


class DriverChange(PackageChange):
    """A change of the driver on one host."""

    host: Host

    def __init__(self, plan: Plan, host: Host, request: Request, tools: Tools) -> None:
        super().__init__(tools.manager, host, tools.key, tools.call)
        self.plan, self.request, self.look, self.runfile = plan, request, tools.look, tools.runfile
        self.journal, self.kept = tools.state / JOURNAL, tools.state / KEPT
        #: The last transaction in the package manager's history before this change.
        self.mark = ""

    def run(self) -> Host:
        """Run all steps and return the new state of the host.

        Raises ApplyError if a step fails, after restoring the old driver if possible.
        """
        transaction = self.plan.transaction
        packages = self._steps("packages")
        if packages and transaction and transaction.installs:
            download(self.manager, transaction)
        self._begin(packages)
        try:
            for step in self._steps("key", "write"):
                self._do(step)
            self._change(packages)
        except ApplyError as error:
            self._go_back(error)
        for kind in ("delete", "initramfs", "hold", "release", "enable", "load", "start", "restart"):
            for step in self._steps(kind):
                self._do(step)
        durable.remove(self.journal)
        shutil.rmtree(str(self.kept), ignore_errors=True)
        return self.look()

    def _steps(self, *kinds: str) -> list[Step]:
        return [step for step in self.plan.steps if step.kind in kinds]

    def _driver_must(self, problem: str, what: str, cure: str = "See the package manager's log.") -> None:
        self._must(problem, "driver", what, cure)

    # -- steps that can be rolled back ----------------------------------------------------------------------------------------

    def _begin(self, packages: Sequence[Step]) -> None:
        """Save the old packages and files for a rollback."""
        shutil.rmtree(str(self.kept), ignore_errors=True)
        old = [(step.items[0], step.items[1]) for step in packages if step.items[1]]
        if old:
            self.kept.mkdir(mode=0o700, parents=True)
            problems = [repack(name, self.kept, self.call) for name in self.manager.keep(old, self.kept)]
            if any(problems):
                shutil.rmtree(str(self.kept), ignore_errors=True)
                raise ApplyError(
                    "packages",
                    "the old driver could not be saved for a rollback: %s" % "; ".join(filter(None, problems)),
                    "Make it available in a package source of the host. Nothing was changed.",
                    outcome="old",
                )
        self.mark = self.manager.mark() if packages else ""
        durable.write(
            self.journal,
            {
                "schema": SCHEMA,
                "to": self.plan.version,
                "mark": self.mark,
                "from": self.host.library,
                "packages": [list(step.items) for step in packages],
                "held": [package.name for package in self.host.packages if package.held],
                "files": self.host.files,
            },
        )

    def _change(self, packages: Sequence[Step]) -> None:
        transaction = self.plan.transaction
        for step in self._steps("uninstall"):
            self._do(step)
        if packages and transaction:
            self._forget_archive(packages)
            if transaction.installs:
                self.manager.refresh()
                problem = self.manager.install(transaction)
            else:
                problem = self.manager.remove(transaction)
            if not problem:
                self._forget_archive(packages)
            self._driver_must(problem, "the packages could not be changed")
            self.done += [step.text for step in packages]
        built = self._steps("runfile", "modules")
        for step in built:
            self._do(step)
        if (packages or built) and self.plan.version and self.request.kernel_modules != "none":
            self._look_at_modules()

    def _uninstall(self, step: Step) -> None:
        self._driver_must(self._run_installer(step), "the installer's driver could not be removed")

    def _runfile(self, step: Step) -> None:
        self._driver_must(self._run_installer(step), "the installer failed", "See /var/log/nvidia-installer.log.")

    def _modules(self, step: Step) -> None:
        version, kernel, *packages = step.items
        if packages:
            # The package's scriptlet did not complete. A reinstallation runs it again, and it puts the modules into
            # place.
            self._driver_must(self.manager.reinstall(packages), "the modules could not be installed")
            return
        if Path(SOURCE % version).is_dir() and version not in self.look().dkms:
            # An earlier run was killed before the scriptlet added the modules to DKMS.
            self.call(["dkms", "add", "-m", "nvidia", "-v", version])
        done = self.call(["dkms", "autoinstall", "-k", kernel])
        self._driver_must(done.stderr.strip() if done.returncode else "", "the modules could not be built")

    def _forget_archive(self, packages: Sequence[Step]) -> None:
        """Delete the precompiled modules that DKMS archived when it replaced them.

        Otherwise the removal of DKMS would restore these modules, although their package is gone.
        """
        if any(rules.is_precompiled(step.items[0]) for step in packages):
            shutil.rmtree(ARCHIVE, ignore_errors=True)

    def _look_at_modules(self) -> None:
        """Verify that DKMS built a kernel module for the driver.

        A package can be installed without a built module, for example if the running kernel's headers are missing.
        """
        now = self.look()
        if now.on_disk != self.plan.version:
            raise ApplyError(
                "kernel modules",
                "after the installation, the module for kernel %s has version %s instead of %s"
                % (now.kernel, now.on_disk or "none", self.plan.version),
                "Check that the headers of this kernel are installed, and read the build's log in /var/lib/dkms/nvidia.",
                outcome="unknown",
            )

    def _go_back(self, error: ApplyError) -> None:
        """Restore the old packages and files.

        Always raises ApplyError, because the change has failed.
        """
        changed = [step.items for step in self._steps("packages")]
        before = {package.name for package in self.host.packages}
        current = {package.name for package in self.look().packages}
        added = [name for name, _old, _new in changed if name not in before and name in current]
        problem = self.manager.put_back(_kept(self.kept), added, self.mark) if changed else ""
        self._put_back()
        held = [package.name for package in self.host.packages if package.held]
        if held and not problem:
            problem = self.manager.hold(held)
        # Removing a package stops its services, and reinstalling it does not start them.
        active = [name for name, unit in self.host.units.items() if unit.active]
        if active and not problem:
            systemd.reset_failed(self.call, active)
            self.call(["systemctl", "start", *active])
        now = self.look()
        if problem or now.library != self.host.library or any(package.broken for package in now.packages):
            raise ApplyError(
                error.where,
                "%s, and the old driver could not be restored: %s" % (error.problem, problem or "it is incomplete"),
                "Its packages are in %s. %s" % (self.kept, error.cure),
                outcome="unknown",
                steps_done=self.done,
            ) from error
        durable.remove(self.journal)
        shutil.rmtree(str(self.kept), ignore_errors=True)
        old = "%s was restored." % self.host.library if self.host.library else "It was removed again."
        raise ApplyError(
            error.where, error.problem, "%s %s" % (old, error.cure), outcome="old", steps_done=()
        ) from error

    def _run_installer(self, step: Step) -> str:
        if not step.items:
            done = self.call([self.host.runfile, "--silent"])
            return "" if done.returncode == 0 else _last_words(done.stdout + done.stderr)
        path, sha256 = self.runfile[0], self.runfile[1]
        found = hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else "no file"
        if found != sha256.lower():
            return "%s is not the file with SHA-256 %s: it is %s" % (path, sha256, found)
        done = self.call(["sh", path, *self.runfile[2:]])
        return "" if done.returncode == 0 else _last_words(done.stdout + done.stderr)

    # -- steps after the change --------------------------------------------------------------------------------------------------

    def _initramfs(self, step: Step) -> None:
        cure = "Check for free space in /boot, then run again. The driver itself is installed."
        self._driver_must(initramfs.rebuild(self.call), "the initramfs could not be rebuilt", cure)

    def _load(self, step: Step) -> None:
        done = self.call(["modprobe", *step.items])
        cure = (
            "See dmesg. It may be in a package with additional modules for this kernel (linux-modules-extra on Ubuntu)."
        )
        if step.items == ("nvidia",):
            cure = "See dmesg. With Secure Boot on, the module must be signed with an enrolled key; nouveau must not be loaded."
        what = "the kernel module %s does not load" % step.items[0]
        self._driver_must(done.stderr.strip() if done.returncode else "", what, cure)

    def _systemctl(self, step: Step) -> None:
        if step.kind != "enable":
            systemd.reset_failed(self.call, step.items)
        # By default, `systemctl enable` reloads systemd, which can detach GPUs from running containers
        # (NVIDIA/nvidia-container-toolkit#48).
        done = self.call(["systemctl", step.kind, *(["--no-reload"] if step.kind == "enable" else []), *step.items])
        if done.returncode != 0:
            units = [word for name in step.items for word in ("--unit", name)]
            journal = self.call(["journalctl", "--no-pager", "--output=cat", "--lines=10", *units])
            said = _last_words(done.stderr + journal.stdout)
            self._driver_must(said, "could not %s" % step.text, "See `systemctl status %s`." % " ".join(step.items))

    _enable = _start = _restart = _systemctl


def download(manager: PackageManager, transaction: Transaction) -> None:
    """Download and verify all packages before anything changes. Raises ApplyError."""
    problem = manager.download(transaction)
    if problem:
        raise ApplyError(
            "packages",
            "some packages could not be downloaded: %s" % problem,
            "Check that the repository is reachable, then run again.",
            outcome="old",
        )


def interrupted(state: Path) -> str:
    """Return a text about the interrupted change in the journal, or ""."""
    if not (state / JOURNAL).exists():
        return ""
    data = durable.read(state / JOURNAL, SCHEMA) or {}
    old, new = data.get("from"), data.get("to")
    if old and new:
        return "from %s to %s" % (old, new)
    return "that installs %s" % new if new else "that removes %s" % old if old else "of an unknown driver"


def finish(manager: PackageManager, state: Path) -> None:
    """Complete an interrupted change, or restore the saved packages.

    Raises ApplyError if both fail.
    """
    journal, kept = state / JOURNAL, state / KEPT
    data = durable.read(journal, SCHEMA) or {"packages": [], "mark": ""}
    added = [name for name, old, _new in data["packages"] if not old]
    problem = manager.repair() or _link(manager, [name for name in added if rules.is_precompiled(name)])
    if problem:
        problem = manager.put_back(_kept(kept), added, data["mark"]) if data["packages"] else problem
    if problem:
        raise ApplyError(
            "packages",
            "a change was interrupted, and can neither be completed nor rolled back: %s" % problem,
            "See dpkg --audit. The previous packages are in %s." % kept,
            outcome="unknown",
        )
    durable.remove(journal)
    shutil.rmtree(str(kept), ignore_errors=True)


def _link(manager: PackageManager, names: Sequence[str]) -> str:
    """Reinstall precompiled modules that are installed. Return "" or the error.

    RPM records a package before it runs the scriptlet that links the package's modules. If the change was killed in
    between, only a reinstallation runs the scriptlet again. The repair of incomplete upgrades does not find this
    package, because its name contains the version, so no older version of it is installed.
    """
    installed = [package.name for package in manager.installed(names)] if names else []
    return manager.reinstall(installed) if installed else ""


def _kept(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.deb"))


def _last_words(said: str) -> str:
    return " ".join(line.strip() for line in said.splitlines()[-10:] if line.strip()) or "it gave no reason"
