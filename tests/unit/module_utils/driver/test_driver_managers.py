# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test package managers' commands and output, repository keys, and package files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils import durable
from ansible_collections.openfleet.gpu.plugins.module_utils.driver import apply, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.driver import resolve as resolution
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.apply import DriverChange, Tools
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.model import Host, Plan, Request, Transaction
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.packages import apt, dnf, model
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.dnf import locked
from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Package, Step
from ansible_collections.openfleet.gpu.plugins.modules import driver
from tests.unit.module_utils.driver.driver_hosts import DISTRIBUTIONS, gpus, host, packages

pytestmark = pytest.mark.core

# -- apt ---------------------------------------------------------------------------------------------------------------

SIMULATED = """NOTE: This is only a simulation!
Inst libnvidia-ml1 [535.261.03-1] (580.95.05-1 lab:/ [amd64]) []
Inst libgdbm6:amd64 (1.23-3 lab:/ [amd64])
Inst nvidia-driver-cuda (580.95.05-1 lab:/ [amd64])
Remv nvidia-smi [535.261.03-1]
Purg nvidia-alternative [535.261.03-1]
Conf libnvidia-ml1 (580.95.05-1 lab:/ [amd64])
"""


def test_plan_of_apt():
    found = apt.parse(SIMULATED, ("x",))
    assert found.installs == (
        ("libgdbm6", "", "1.23-3"),
        ("libnvidia-ml1", "535.261.03-1", "580.95.05-1"),
        ("nvidia-driver-cuda", "", "580.95.05-1"),
    )
    assert found.removals == (("nvidia-alternative", "535.261.03-1"), ("nvidia-smi", "535.261.03-1"))


# -- dnf ---------------------------------------------------------------------------------------------------------------


class Said:
    """Answer `repoquery` and dry runs as DNF does, and record every command.

    molecule/rpm runs the real DNF.
    """

    def __init__(self, offered, fails=()):
        self.offered, self.fails, self.commands = offered, fails, []

    def __call__(self, command):
        self.commands.append(list(command))
        failed = any(word in command for word in self.fails)
        rows = ["%s\t%s\n" % (name, found) for name in command for found in self.offered.get(name, ())]
        text = "".join(rows) if "repoquery" in command else ""
        if "--assumeno" in command and not failed:
            words = command[command.index("install" if "install" in command else "remove") + 1 :]
            head = "Dependencies resolved.\n%s\n" % ("Installing:" if "install" in command else "Removing:")
            return subprocess.CompletedProcess(command, 1, head + "".join(map(self.row, words)), "Operation aborted.\n")
        return subprocess.CompletedProcess(command, int(failed), text, "Error: it broke\n" if failed else "")

    @staticmethod
    def row(word):
        name, version, release = word.rsplit("-", 2) if word.endswith(".el9") else (word, "580.95.05", "1.el9")
        return " %s x86_64 3:%s-%s r 1 k\n" % (name, version, release)


def Dnf(call):
    return dnf.Dnf(rules.OWNER, call)


LOCK_PLUGIN = "python3-dnf-plugin-versionlock"
VERSIONS = ("580.95.05-1.el9", "580.105.08-1.el9", "590.48.01-1.el9")
OFFERED = dict.fromkeys(("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-fabricmanager"), VERSIONS)


def resolve(said, asked="580", **more):
    seen = host("el-9", **more)
    request = Request(asked)
    names = rules.wanted(seen, request, DISTRIBUTIONS["el-9"], rules.branch_of(asked))
    manager = Dnf(said)
    manager.open("https://mirror.example.org/rhel9/x86_64", b"key")
    try:
        return resolution.installation(manager, seen, request, names, DISTRIBUTIONS["el-9"]["patterns"]), manager
    finally:
        manager.close()


def test_dnf_gets_the_exact_newest_version_of_the_branch():
    found, _manager = resolve(Said(OFFERED), nvswitches=4)
    assert found.version == "580.105.08"
    assert found.arguments[:3] == (
        "nvidia-driver-cuda-580.105.08-1.el9",
        "kmod-nvidia-open-dkms-580.105.08-1.el9",
        "nvidia-fabricmanager-580.105.08-1.el9",
    )


KERNEL, NEXT = "5.14.0-570.12.1.el9_6.x86_64", Package("kernel-core", "5.14.0-570.23.1.el9_6")


def resolve_precompiled(offered, asked="580"):
    seen = host("el-9", kernel=KERNEL, packages=(NEXT,))
    request = Request(asked, kernel_modules="proprietary", precompiled=True)
    names = rules.wanted(seen, request, DISTRIBUTIONS["el-9"], rules.branch_of(asked))
    manager = Dnf(Said({**OFFERED, **offered}))
    return resolution.installation(manager, seen, request, names, DISTRIBUTIONS["el-9"]["patterns"])


def test_dnf_takes_the_newest_version_with_modules_for_the_running_kernel():
    name = "kmod-nvidia-580.95.05-5.14.0-570.12.1"
    found = resolve_precompiled({name: ("580.95.05-3.el9_6",)})
    assert found.version == "580.95.05"
    assert found.arguments[0] == name + "-580.95.05-3.el9_6"
    assert not any("dkms" in argument for argument in found.arguments)
    # The host has also installed the kernel 5.14.0-570.23.1, which is not running yet.
    assert found.missing == ("kmod-nvidia-580.95.05-5.14.0-570.23.1",)


class Needed(Said):
    """Answer in rpm's format for a host with packages that need DKMS modules."""

    def __call__(self, command):
        if command[:3] == ["rpm", "-e", "--test"]:
            lines = [
                "nvidia-kmod = 3:580.95.05 is needed by (installed) nvidia-kmod-common-3:580.95.05-1.el9.x86_64",
                "kmod-nvidia-open-dkms is needed by (installed) site-tools-1.0-1.el9.x86_64",
            ]
            return subprocess.CompletedProcess(
                command, 1, "", "error: Failed dependencies:\n\t" + "\n\t".join(lines) + "\n"
            )
        return super().__call__(command)


def test_parts_that_need_modules_stay_when_precompiled_ones_replace_those_of_dkms():
    parts = ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-kmod-common")
    seen = host(
        "el-9", kernel=KERNEL, packages=(*packages("580.95.05-1.el9", *parts), Package("site-tools", "1.0-1.el9"))
    )
    request = Request("580.95.05", kernel_modules="proprietary", precompiled=True)
    names = rules.wanted(seen, request, DISTRIBUTIONS["el-9"], 580)
    offered = {"kmod-nvidia-580.95.05-5.14.0-570.12.1": ("580.95.05-3.el9_6",)}
    manager = Dnf(Needed({**OFFERED, **offered}))
    found = resolution.installation(manager, seen, request, names, DISTRIBUTIONS["el-9"]["patterns"])
    assert found.removals == (("kmod-nvidia-open-dkms", "580.95.05-1.el9"), ("site-tools", "1.0-1.el9"))


def test_dnf_refuses_a_version_without_modules_for_the_running_kernel():
    offered = {"kmod-nvidia-580.95.05-5.14.0-570.12.1": ("580.95.05-3.el9_6",)}
    with pytest.raises(
        PlanError, match=r"no source has modules of 580\.105\.08 for kernel 5\.14.*such modules: 580\.95\.05\."
    ):
        resolve_precompiled(offered, "580.105.08")


def test_dnf_repository_is_fully_verified():
    said = Said(OFFERED)
    resolve(said)
    settings = said.commands[0]
    assert "--repofrompath=openfleet-nvidia-driver-asked,https://mirror.example.org/rhel9/x86_64" in settings
    assert "--setopt=openfleet-nvidia-driver-asked.gpgcheck=1" in settings
    assert "--setopt=openfleet-nvidia-driver-asked.repo_gpgcheck=1" in settings
    assert not any("nogpgcheck" in word or word.endswith("gpgcheck=0") for command in said.commands for word in command)


def test_dnf_refuses_missing_versions_and_failing_repositories():
    with pytest.raises(PlanError, match=r"Available: 590\.48\.01, 580\.105\.08, 580\.95\.05"):
        resolve(Said(OFFERED), "595.1.2")
    with pytest.raises(PlanError, match="the repository cannot be used: Error: it broke"):
        resolve(Said(OFFERED, fails=("makecache",)))


def test_dnf_changes_and_locks():
    said = Said(OFFERED)
    found, manager = resolve(said)
    assert manager.install(found) == ""
    assert said.commands[-1][-len(found.arguments) :] == list(found.arguments)
    assert manager.hold(["nvidia-driver-cuda"]) == ""
    assert said.commands[-1] == ["dnf", "--quiet", "versionlock", "add", "nvidia-driver-cuda"]
    assert Dnf(Said({}, fails=("install",))).install(found) == "Error: it broke"


ROW = "%6d | --assumeyes --quiet --se | 2026-11-23 13:41 | Install        |    1   \n"
OURS = "openfleet-nvidia-driver"


class History(Said):
    """Answer with a transaction history in the format of DNF 4.14.

    If `breaks` is set, the commands `install` and `remove` fail. If it is "before", they fail before DNF records the
    transaction, and otherwise after that.
    """

    def __init__(self, *comments, breaks=""):
        super().__init__(OFFERED)
        self.comments, self.breaks, self.undone = list(comments), breaks, []

    def __call__(self, command):
        self.commands.append(list(command))
        if command[-2:] == ["history", "list"]:
            rows = [ROW % number for number in range(len(self.comments), 0, -1)]
            head = "ID     | Command line             | Date and time    | Action(s)      | Altered\n" + "-" * 79 + "\n"
            return subprocess.CompletedProcess(command, 0, head + "".join(rows), "")
        if command[-3:-1] == ["history", "info"]:
            comment = self.comments[int(command[-1]) - 1]
            text = "Transaction ID : %s\nCommand Line   : install x\nComment        : %s\nPackages Altered:\n" % (
                command[-1],
                comment,
            )
            return subprocess.CompletedProcess(command, 0, text, "")
        if command[-3:-1] == ["history", "undo"]:
            self.undone.append(int(command[-1]))
        elif self.breaks != "before" and {"install", "remove"}.intersection(command):
            given = [word[10:] for word in command if word.startswith("--comment=")]
            self.comments.append(given[0] if given else "")
        failed = bool(self.breaks) and {"install", "remove"}.intersection(command)
        return subprocess.CompletedProcess(command, int(bool(failed)), "", "Error: it broke\n" if failed else "")


def test_dnf_undoes_nothing_before_its_own_transaction():
    said = History("", OURS, "the administrator's", breaks="before")
    manager = Dnf(said)
    mark = manager.mark()
    assert manager.install(Transaction("580.105.08", arguments=("nvidia-driver-cuda",))) == "Error: it broke"
    assert manager.put_back([], ["nvidia-driver-cuda"], mark) == ""
    assert said.undone == []


@pytest.mark.parametrize("change", ["install", "remove"])
def test_dnf_undoes_only_its_own_transactions(change):
    said = History(OURS, "", breaks="after")
    manager = Dnf(said)
    mark = manager.mark()
    getattr(manager, change)(Transaction("580.105.08", removals=(("a", "1"),), arguments=("a",)))
    said.comments.append("the administrator's")
    assert manager.put_back([], [], mark) == ""
    assert said.undone == [3]


def test_dnf_handles_empty_and_unreadable_histories():
    assert Dnf(History()).mark() == "0"
    manager = Dnf(Said({}, fails=("history",)))
    assert manager.mark() == ""
    assert manager.put_back([], [], "3") == "the history of DNF cannot be read"


class Killed(History):
    """Answer for a host whose transaction was killed.

    `installed` has the names of the installed packages.
    """

    def __init__(self, *installed, fails=()):
        super().__init__("", OURS)
        self.installed, self.fails = installed, fails

    def __call__(self, command):
        done = super().__call__(command)
        if command[:2] == ["rpm", "-q"]:
            rows = ["%s\t580.105.08-3.el9\n" % name for name in command if name in self.installed]
            return subprocess.CompletedProcess(command, int(len(rows) < len(command) - 4), "".join(rows), "")
        failed = any(word in command for word in self.fails)
        return subprocess.CompletedProcess(command, 1, "", "Error: it broke\n") if failed else done


KMOD, KMOD_NEXT = "kmod-nvidia-580.105.08-5.14.0-570.12.1", "kmod-nvidia-580.105.08-5.14.0-570.23.1"


def killed(folder, *added):
    """Write DNF's journal of a killed upgrade that also installed these packages."""
    upgraded = ("libnvidia-ml", "580.95.05-1.el9", "580.105.08-1.el9")
    rows = [upgraded, *((name, "", "580.105.08-3.el9") for name in added)]
    durable.write(folder / apply.JOURNAL, {"schema": apply.SCHEMA, "mark": "1", "packages": rows})


@pytest.mark.parametrize("installed", [[KMOD], [KMOD_NEXT], [KMOD, KMOD_NEXT], []])
def test_new_precompiled_modules_are_reinstalled_after_a_killed_transaction(tmp_path, installed):
    killed(tmp_path, KMOD, KMOD_NEXT, "kmod-nvidia-open-dkms")
    said = Killed(*installed, "kmod-nvidia-open-dkms")
    apply.finish(Dnf(said), tmp_path)
    again = [command[command.index("reinstall") + 1 :] for command in said.commands if "reinstall" in command]
    assert again == ([installed] if installed else [])
    assert (said.undone, list(tmp_path.iterdir())) == ([], [])


def test_a_killed_transaction_whose_modules_cannot_be_reinstalled_is_undone(tmp_path):
    killed(tmp_path, KMOD)
    said = Killed(KMOD, fails=("reinstall",))
    apply.finish(Dnf(said), tmp_path)
    assert said.undone == [2]


def test_unwritable_key_leaves_the_history_of_dnf_alone(tmp_path, monkeypatch):
    """No package has changed yet, so there is nothing to roll back.

    A rollback would undo the administrator's last transaction.
    """
    said, seen = History("the administrator's"), host("el-9")
    steps = (Step("key", "write the key"), Step("packages", "install", ("a", "", "1")))
    made = Plan("580.105.08", steps, transaction=Transaction("580.105.08", (("a", "", "1"),), (), ("a-1",)))
    (tmp_path / "file").touch()
    monkeypatch.setattr(model, "_KEYRINGS", {"dnf": str(tmp_path / "file" / "%s")})
    with pytest.raises(ApplyError, match="cannot be written") as failed:
        tools = Tools(Dnf(said), lambda: seen, tmp_path / "state", b"key", call=said)
        DriverChange(made, seen, Request("580"), tools).run()
    assert failed.value.outcome == "old"
    assert not said.undone


def test_dnf_gets_the_versionlock_plugin_if_missing():
    said = Said({}, fails=("--query",))
    assert Dnf(said).hold(["nvidia-driver-cuda"]) == ""
    done = [command[-2:] for command in said.commands if command[0] == "dnf"]
    assert done == [["install", LOCK_PLUGIN], ["delete", "nvidia-driver-cuda"], ["add", "nvidia-driver-cuda"]]
    assert Dnf(Said({}, fails=("--query", "install"))).hold(["x"]) == "Error: it broke"


def test_locks_of_dnf():
    """Compare the locks with the locks on NVIDIA's page on version locking.

    Source: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/version-locking.html
    """
    text = "# Added lock\nkmod-nvidia-open-dkms-3:575.51-1.fc41.*\n\n!nvidia-settings-3:575.51-1.fc41.*\nnvlsm-0:2025.06-1.*\n"
    assert locked(text) == {"kmod-nvidia-open-dkms", "nvlsm"}


def test_dnf_removes_the_drivers_packages():
    seen = Host("el-9", "x86_64", "5.14", gpus("2330"), packages=packages("580.95.05-1.el9", "nvidia-driver-cuda"))
    found = resolution.removal(Dnf(Said({})), seen, DISTRIBUTIONS["el-9"]["patterns"])
    assert found.removals == (("nvidia-driver-cuda", "580.95.05-1.el9"),)


# -- Written files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_files_of_distributions_are_complete(name):
    entry = DISTRIBUTIONS[name]
    keys = {"manager", "repository", "patterns", "build", "next_kernel", "packages"}
    assert set(entry) == (keys | {"precompiled"} if entry["manager"] == "dnf" else keys)
    assert set(entry["repository"]) == {"directory", "architectures", "key", "fingerprints"}
    for fingerprint in entry["repository"]["fingerprints"]:
        assert fingerprint.endswith(entry["repository"]["key"].split(".")[0].upper())
        assert len(fingerprint) == 40
    for source, sets in entry["packages"].items():
        for known in sets:
            assert {"since", "headless", "full", "modules"} <= set(known), source
        spans = [(known["since"], known.get("until", 9999)) for known in sets]
        assert all(before[1] < after[0] for before, after in zip(spans, spans[1:])), "branches overlap"


def test_the_module_documents_its_options():
    documented = yaml.safe_load(driver.DOCUMENTATION)["options"]
    spec = driver.argspec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        for key in ("type", "default", "required", "choices", "elements"):
            assert documented[name].get(key) == option.get(key), (name, key)


def test_the_roles_defaults_are_those_of_its_specification():
    role = Path(__file__).parents[4] / "roles" / "nvidia_driver"
    spec = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    assert {name: option["default"] for name, option in spec.items()} == defaults
