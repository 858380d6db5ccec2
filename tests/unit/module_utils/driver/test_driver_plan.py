# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the order of the steps in plans for a host, and refused plans."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import durable
from ansible_collections.openfleet.gpu.plugins.module_utils.driver import apply, files, initramfs, plan, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.model import (
    Package,
    Request,
    SecureBoot,
    Transaction,
    Unit,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from tests.unit.module_utils.driver.driver_hosts import DISTRIBUTIONS, HEADLESS, TRUSTED, finished, gpus, host, packages

CATALOGUE = DISTRIBUTIONS["debian-12"]
PATTERNS = CATALOGUE["patterns"]
REPOSITORY = dict(CATALOGUE["repository"], url="https://mirror.example.org/{directory}/{architecture}", key_url="")


def desired(version, flavor="open", source="repository", manager="apt", imex_nodes=(), host=None, names=None):
    catalogue = dict(CATALOGUE, repository=REPOSITORY)
    more = {}
    if host:
        more = {"dracut": host.dracut, "subnet_manager": rules.needs_subnet_manager(host, names)}
    return files.wanted(manager, source, version, catalogue, "x86_64", files.Needs(flavor, imex_nodes, **more))


def make(seen, request, transaction=None, version="580.95.05", imex_nodes=()):
    names = rules.wanted(seen, request, CATALOGUE, rules.branch_of(request.version))
    text = desired(version, names.flavor, request.source, imex_nodes=imex_nodes, host=seen, names=names)
    goal = plan.Goal(names, version, transaction, text)
    return plan.present(seen, request, goal, plan.Repository([TRUSTED], PATTERNS))


def change(version, seen, *names, removals=()):
    installs = [(name, (seen.package(name) or Package(name, "")).version, version + "-1") for name in names]
    return Transaction(version, tuple(installs), tuple(removals), ())


def kinds(made):
    return [step.kind for step in made.steps]


def right(**more):
    return finished(files=desired("580.95.05"), **more)


# -- A host that is right ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["580.95.05", "580"])
def test_correct_host_needs_no_steps(asked):
    made = make(right(), Request(asked))
    assert (made.steps, made.disruptive, made.reboot) == ((), False, "")


@pytest.mark.parametrize(
    ("seen", "asked", "version"),
    [
        (right(), "580", "580.95.05"),
        (right(), "580.105.08", ""),
        (right(), "590", ""),
        (right(packages=packages("580.95.05-1", "nvidia-driver-cuda")), "580", ""),
        (right(packages=packages("580.95.05-1", *HEADLESS, "nvidia-kernel-dkms")), "580", ""),
        (right(packages=packages("580.95.05-1", *HEADLESS[1:]) + packages("580.105.08-1", HEADLESS[0])), "580", ""),
        (right(packages=(replace(Package(HEADLESS[0], "580.95.05-1"), broken=True), *packages("580.95.05-1", *HEADLESS[1:]))),
         "580", ""),
        (host(), "580", ""),
    ],
)  # fmt: skip
def test_packages_are_correct_if_complete_in_one_requested_version(seen, asked, version):
    request = Request(asked)
    names = rules.wanted(seen, request, CATALOGUE, rules.branch_of(asked))
    assert plan.settled(seen, request, names) == version


# -- Installing --------------------------------------------------------------------------------------------------------


def test_bare_host_gets_everything_in_order():
    seen = host(packages=packages("5.1-1", "bash", held=False))
    made = make(seen, Request("580"), change("580.95.05", seen, *HEADLESS))
    assert kinds(made) == ["key", "write", "write", "write", "packages", "packages", "packages", "initramfs", "hold",
                           "enable", "load", "start"]  # fmt: skip
    assert not made.disruptive
    assert made.reboot == ""
    (hold,) = [step for step in made.steps if step.kind == "hold"]
    assert hold.items == HEADLESS


def test_nouveau_needs_a_reboot_before_anything_is_loaded_or_started():
    seen = host(nouveau_loaded=True)
    made = make(seen, Request("580", reboot="now"), change("580.95.05", seen, *HEADLESS))
    assert made.reboot == "nouveau is loaded and holds the GPUs"
    assert not {"load", "start"} & set(kinds(made))
    assert "enable" in kinds(made)


def test_without_gpus_the_module_is_not_loaded():
    seen = host(gpus=())
    made = make(seen, Request("580"), change("580.95.05", seen, *HEADLESS))
    assert "load" not in kinds(made)
    assert made.notes == ("no NVIDIA GPU is on the PCI bus",)


def test_forbidden_reboot_is_refused_before_any_change():
    seen = right()
    with pytest.raises(PlanError, match=r"580\.95\.05, and the driver's other parts are 580\.105\.08") as caught:
        make(seen, Request("580.105.08"), change("580.105.08", seen, *HEADLESS), "580.105.08")
    assert caught.value.where == "nvidia_driver_reboot"
    assert "Nothing was changed" in caught.value.cure


@pytest.mark.parametrize(
    ("to", "verb"), [("580.105.08", "upgrade"), ("580.65.06", "downgrade"), ("590.48.01", "upgrade")]
)
def test_driver_in_use_is_changed_with_stopped_clients_and_a_reboot(to, verb):
    seen = right()
    made = make(seen, Request(to, reboot="now"), change(to, seen, *HEADLESS), to)
    assert made.disruptive
    assert made.reboot == "the loaded kernel module is 580.95.05, and the driver's other parts are %s" % to
    assert "%s nvidia-driver-cuda 580.95.05-1 to %s-1" % (verb, to) in [step.text for step in made.steps]
    # If apt must change a package that is on hold, it removes the hold, so the hold is set again.
    assert [step.items for step in made.steps if step.kind == "hold"] == [HEADLESS]
    assert [step.items[0] for step in made.steps if step.kind == "write"] == [files.PREFERENCES]


def test_other_flavour_of_the_same_version_needs_a_reboot():
    seen = right()
    request = Request("580", kernel_modules="proprietary", reboot="now")
    gone = ("nvidia-kernel-open-dkms", "580.95.05-1")
    made = make(seen, request, change("580.95.05", seen, "nvidia-kernel-dkms", removals=[gone]))
    assert made.reboot == "the kernel module of the other flavour is loaded"
    assert made.disruptive


def test_version_skew_by_others_is_fixed_by_a_reboot():
    seen = right(loaded="580.65.06")
    made = make(seen, Request("580", reboot="now"))
    assert (made.steps, made.disruptive) == ((), True)
    assert made.reboot.startswith("the loaded kernel module is 580.65.06")
    with pytest.raises(PlanError, match="a reboot is needed"):
        make(seen, Request("580"))


def test_a_new_kernel_without_modules_gets_them_built():
    made = make(right(on_disk="", loaded=""), Request("580"))
    assert [step.kind for step in made.steps] == ["modules", "load"]
    assert made.steps[0].items == ("580.95.05", "6.1.0-40-amd64")


def test_interrupted_changes_are_completed_first():
    seen = right(interrupted="from 580.82.07 to 580.95.05")
    assert kinds(make(seen, Request("580"))) == ["repair"]
    torn = right(
        packages=(*packages("580.95.05-1", *HEADLESS), Package("libcuda1", "580.95.05-1", True, broken=True)),
        interrupted="from 580.82.07 to 580.95.05",
    )
    made = make(torn, Request("580"))
    assert kinds(made) == ["repair"]
    assert made.steps[0].text == "complete the interrupted change from 580.82.07 to 580.95.05, repair libcuda1"


@pytest.mark.parametrize(
    ("journal", "text"),
    [
        (None, ""),
        ({"schema": 1, "from": "580.95.05", "to": "580.105.08"}, "from 580.95.05 to 580.105.08"),
        ({"schema": 1, "from": "", "to": "580.105.08"}, "that installs 580.105.08"),
        ({"schema": 1, "from": "580.95.05", "to": ""}, "that removes 580.95.05"),
    ],
)
def test_an_interrupted_change_is_described_by_its_journal(tmp_path, journal, text):
    if journal:
        durable.write(tmp_path / apply.JOURNAL, journal)
    assert apply.interrupted(tmp_path) == text


def test_modules_that_a_killed_scriptlet_did_not_build_are_built_after_the_rest_is_installed():
    # The package with the modules is installed, but its scriptlet did not build them. Other packages are missing.
    seen = right(on_disk="", loaded="", interrupted="that installs 580.95.05")
    rest = change("580.95.05", seen, "nvidia-persistenced")
    assert kinds(make(seen, Request("580"), rest))[:3] == ["repair", "packages", "modules"]
    whole = change("580.95.05", seen, *rules.wanted(seen, Request("580"), CATALOGUE, 580).dkms)
    assert "modules" not in kinds(make(seen, Request("580"), whole))


def precompiled(request, installed, missing=(), loaded="580.95.05", on_disk="580.95.05", **more):
    """Return the plan of a Red Hat host with precompiled module packages.

    `installed` and `missing` name the packages. `more` has the packages that the transaction installs and removes.
    """
    parts = ("nvidia-driver-cuda", *installed, "nvidia-persistenced")
    seen = right(distribution="el-9", kernel="5.14.0-570.12.1.el9_6.x86_64", loaded=loaded, on_disk=on_disk)
    seen = replace(
        seen, packages=(*packages("580.95.05-1.el9", *parts), Package("kernel-core", "5.14.0-570.23.1.el9_6"))
    )
    names = rules.wanted(seen, request, DISTRIBUTIONS["el-9"], 580)
    transaction = Transaction("580.95.05", more.get("installs", ()), more.get("removals", ()), (), tuple(missing))
    repository = plan.Repository([TRUSTED], DISTRIBUTIONS["el-9"]["patterns"], True)
    return plan.settled(seen, request, names), lambda: plan.present(
        seen, request, plan.Goal(names, "580.95.05", transaction, seen.files), repository
    )


KMOD, KMOD_NEXT = "kmod-nvidia-580.95.05-5.14.0-570.12.1", "kmod-nvidia-580.95.05-5.14.0-570.23.1"
PRECOMPILED = Request("580", kernel_modules="proprietary", precompiled=True)


def test_precompiled_modules_are_right_for_the_running_and_the_next_kernel():
    assert precompiled(PRECOMPILED, [KMOD, KMOD_NEXT])[0] == "580.95.05"
    assert precompiled(PRECOMPILED, [KMOD])[0] == ""
    assert precompiled(PRECOMPILED, [KMOD, KMOD_NEXT, KMOD.replace("95.05", "82.07")])[0] == ""


def test_a_reboot_into_a_kernel_without_precompiled_modules_is_refused():
    _settled, make_plan = precompiled(PRECOMPILED, [KMOD], [KMOD_NEXT])
    assert KMOD_NEXT in make_plan().notes[0]
    reboot = replace(PRECOMPILED, reboot="now")
    _settled, make_plan = precompiled(reboot, [KMOD], [KMOD_NEXT], loaded="580.82.07")
    with pytest.raises(
        PlanError, match="a reboot would start kernel 5.14.0-570.23.1.el9_6, and no source has " + KMOD_NEXT
    ):
        make_plan()


def test_precompiled_modules_that_a_killed_scriptlet_did_not_link_are_installed_again():
    _settled, make_plan = precompiled(PRECOMPILED, [KMOD, KMOD_NEXT], loaded="", on_disk="")
    step = next(step for step in make_plan().steps if step.kind == "modules")
    assert step.items == ("580.95.05", "5.14.0-570.12.1.el9_6.x86_64", KMOD)


def test_precompiled_modules_are_linked_by_the_transaction_or_by_a_reinstallation_after_it():
    # The name of a module package contains the driver's version, so the old version has another name.
    old = KMOD.replace("95.05", "82.07")
    rest = {"removals": [(old, "580.82.07-1.el9")], "on_disk": "580.82.07"}
    _settled, make_plan = precompiled(PRECOMPILED, [KMOD, KMOD_NEXT, old], loaded="", **rest)
    changes = [step for step in make_plan().steps if step.kind in ("packages", "modules")]
    assert [(step.kind, step.items[-1]) for step in changes] == [("packages", ""), ("modules", KMOD)]
    whole = dict(rest, installs=[(KMOD, "", "580.95.05-1.el9")])
    _settled, make_plan = precompiled(PRECOMPILED, [KMOD_NEXT, old], loaded="", **whole)
    assert "modules" not in kinds(make_plan())


def test_secure_boot_refuses_before_anything_else():
    seen = host(secure_boot=SecureBoot(True))
    with pytest.raises(PlanError, match="Nothing was installed"):
        make(seen, Request("580"), change("580.95.05", seen, *HEADLESS))
    # If the driver is loaded, Secure Boot has accepted its modules, so the plan is empty.
    assert make(right(secure_boot=SecureBoot(True)), Request("580")).steps == ()


def test_foreign_packages_are_removed_only_if_allowed():
    seen = right(packages=(*packages("580.95.05-1", *HEADLESS), Package("slurm-gpu-plugin", "1.0-1")))
    moved = change("580.105.08", seen, *HEADLESS, removals=[("slurm-gpu-plugin", "1.0-1")])
    request = Request("580.105.08", reboot="now")
    with pytest.raises(PlanError, match="would also remove slurm-gpu-plugin"):
        make(seen, request, moved, "580.105.08")
    allowed = replace(request, allow_removal=("slurm-gpu-plugin",))
    assert "remove slurm-gpu-plugin 1.0-1" in [step.text for step in make(seen, allowed, moved, "580.105.08").steps]


def test_holds_are_set_and_removed_as_requested():
    loose = right(packages=packages("580.95.05-1", *HEADLESS, held=False))
    assert kinds(make(loose, Request("580"))) == ["hold"]
    assert kinds(make(loose, Request("580", hold=False))) == []
    assert kinds(make(right(), Request("580", hold=False))) == ["release"]


def test_untrusted_key_is_replaced():
    assert kinds(make(right(key_fingerprints=("0" * 40,)), Request("580"))) == ["key"]
    assert kinds(make(right(key_fingerprints=(TRUSTED, "0" * 40)), Request("580"))) == ["key"]


def test_stopped_service_is_started():
    down = right(units={"nvidia-persistenced.service": Unit(True, True, False)})
    assert kinds(make(down, Request("580"))) == ["start"]


def test_dracut_is_configured_explicitly():
    """By default, dracut omits /etc/modprobe.d and may include nouveau."""
    made = make(host(dracut=True), Request("580"), change("580.95.05", host(), *HEADLESS))
    text = {step.items[0]: step.items[1] for step in made.steps if step.kind == "write"}[files.DRACUT]
    assert 'install_items+=" %s "\n' % files.BLACKLIST in text
    assert 'omit_drivers+=" nouveau "\n' in text
    assert "initramfs" in kinds(made)
    # A host with dracut needs a dracut file and a new initramfs. A host without dracut gets no such file.
    assert kinds(make(right(dracut=True), Request("580"))) == ["write", "initramfs"]
    assert files.DRACUT not in desired("580.95.05")


def test_subnet_manager_gets_its_kernel_module_now_and_at_every_boot():
    names = (*HEADLESS, "nvidia-fabricmanager", "nvlsm", "infiniband-diags")
    units = {name: Unit(True, True, True) for name in (rules.SERVICE_PERSISTENCED, rules.SERVICE_FABRIC_MANAGER)}
    board = right(packages=packages("580.95.05-1", *names), units=units, nvlink_bridges=2)
    made = make(board, Request("580"))
    assert [step.text for step in made.steps] == [
        "write " + files.MODULES_LOAD, "load ib_umad, which NVLSM needs to reach the NVSwitches",
    ]  # fmt: skip
    done = replace(board, umad_loaded=True, files={**board.files, files.MODULES_LOAD: files.modules_load()})
    assert make(done, Request("580")).steps == ()
    # NVSwitches of earlier generations do not need the module ib_umad.
    assert make(replace(board, nvlink_bridges=0, nvswitches=4), Request("580")).steps == ()


def test_packages_with_their_own_version_are_held_at_once():
    """Without the hold, a second run would have to add it."""
    board = host(gpus=gpus("2901"), nvlink_bridges=2)
    transaction = change("580.95.05", board, *HEADLESS, "nvidia-fabricmanager")
    more = (("nvlsm", "", "2025.06.11-1"), ("infiniband-diags", "", "44.0-2"))
    made = make(board, Request("580"), replace(transaction, installs=transaction.installs + more))
    held = next(step.items for step in made.steps if step.kind == "hold")
    assert set(held) == {*HEADLESS, "nvidia-fabricmanager", "nvlsm"}


def test_imex_is_restarted_for_other_nodes_with_the_clients_off():
    units = {name: Unit(True, True, True) for name in (rules.SERVICE_PERSISTENCED, rules.SERVICE_IMEX)}
    seen = right(packages=packages("580.95.05-1", *HEADLESS, "nvidia-imex"), units=units)
    request = Request("580", imex=True)
    known = replace(seen, files={**seen.files, files.IMEX_NODES: "10.0.0.1\n"})
    assert make(known, request, imex_nodes=("10.0.0.1",)).steps == ()
    made = make(known, request, imex_nodes=("10.0.0.1", "10.0.0.2"))
    assert kinds(made) == ["write", "restart"]
    assert made.disruptive
    down = replace(known, units={**units, rules.SERVICE_IMEX: Unit(True, True, False)})
    assert kinds(make(down, request, imex_nodes=("10.0.0.2",))) == ["write", "start"]


def test_leftovers_of_another_method_are_removed():
    """Packages of the distribution do not need NVIDIA's repository.

    Without kernel modules, the blacklist of nouveau is not needed.
    """
    moved = right(packages=packages("535.261.03-1", "libcuda1", "libnvidia-ml1", "nvidia-smi"), library="535.261.03")
    made = make(moved, Request("535", source="distribution", kernel_modules="none"), version="535.261.03")
    gone = [step.items[0] for step in made.steps if step.kind == "delete"]
    assert gone == [files.SOURCES["apt"], files.BLACKLIST]
    assert "rebuild the initramfs to include nouveau" in [step.text for step in made.steps]


@pytest.mark.parametrize(
    ("there", "command"),
    [
        (("update-initramfs",), ["update-initramfs", "-u", "-k", "all"]),
        (("dracut",), ["dracut", "--force", "--regenerate-all"]),
        (("update-initramfs", "dracut"), ["update-initramfs", "-u", "-k", "all"]),
        ((), None),
    ],
)
def test_initramfs_is_built_by_the_hosts_tool(monkeypatch, there, command):
    monkeypatch.setattr(initramfs, "program", lambda name: "/usr/sbin/" + name if name in there else None)
    said = []

    def call(words):
        said.append(words)
        return subprocess.CompletedProcess(words, 1, "", "no space left on device\n")

    assert initramfs.rebuild(call) == (there[0] + ": no space left on device" if there else "")
    assert said == ([command] if command else [])


# -- Removing ----------------------------------------------------------------------------------------------------------


def remove(seen, request=None):
    names = [(package.name, package.version) for package in seen.packages if rules.of_the_driver(package, PATTERNS)]
    transaction = Transaction("", (), tuple(names))
    return plan.absent(seen, request or Request("", reboot="now"), "apt", files.KEYRINGS["apt"], transaction, PATTERNS)


def test_removal_affects_only_the_driver():
    seen = right(packages=(*packages("580.95.05-1", *HEADLESS), Package("nvidia-container-toolkit", "1.19.1-1")))
    made = remove(seen)
    assert [step.items[0] for step in made.steps if step.kind == "packages"] == list(HEADLESS)
    gone = [step.items[0] for step in made.steps if step.kind == "delete"]
    assert gone == [files.SOURCES["apt"], files.PREFERENCES, files.BLACKLIST, files.KEYRINGS["apt"]]
    assert kinds(made)[-1] == "initramfs"
    assert made.disruptive
    assert made.reboot == "the kernel module 580.95.05 is still loaded"


def test_removal_from_a_bare_host_does_nothing():
    made = remove(host())
    assert (made.steps, made.disruptive, made.reboot) == ((), False, "")


def test_removal_with_a_reboot_needs_permission():
    with pytest.raises(PlanError, match="a reboot is needed"):
        remove(right(), Request(""))


# -- Files -------------------------------------------------------------------------------------------------------------


def test_files_on_debian():
    text = desired("580.95.05")
    assert text[files.SOURCES["apt"]].endswith(
        "Types: deb\nURIs: https://mirror.example.org/debian12/x86_64/\nSuites: /\n"
        "Signed-By: /etc/apt/keyrings/openfleet-nvidia-driver.gpg\n"
    )
    assert "Pin: version 580.95.05-*\nPin-Priority: 1001\n" in text[files.PREFERENCES]
    assert "blacklist nouveau\n" in text[files.BLACKLIST]


def test_files_on_red_hat_are_signed_and_arm_is_sbsa():
    repository = dict(DISTRIBUTIONS["el-9"]["repository"], url=REPOSITORY["url"], key_url="")
    catalogue = dict(DISTRIBUTIONS["el-9"], repository=repository)
    text = files.wanted("dnf", "repository", "580.95.05", catalogue, "aarch64", files.Needs("open"))
    assert sorted(text) == [files.BLACKLIST, files.SOURCES["dnf"]]
    lines = text[files.SOURCES["dnf"]].splitlines()
    assert "baseurl=https://mirror.example.org/rhel9/sbsa/" in lines
    assert {"gpgcheck=1", "repo_gpgcheck=1", "gpgkey=file://" + files.KEYRINGS["dnf"]} <= set(lines)


def test_distribution_packages_need_no_source_and_libraries_no_blacklist():
    assert sorted(desired("535.261.03", "open", "distribution")) == sorted([files.PREFERENCES, files.BLACKLIST])
    assert sorted(desired("535.261.03", "none", "distribution")) == [files.PREFERENCES]
    assert sorted(desired("580.95.05", "open", "runfile")) == [files.BLACKLIST]


def test_imex_gets_its_nodes():
    text = desired("580.95.05", imex_nodes=("10.0.0.1", "10.0.0.2"))
    assert text[files.IMEX_NODES] == "10.0.0.1\n10.0.0.2\n"


def test_steps_are_ordered_by_kind():
    seen = host(gpus=gpus("2330"), nvswitches=4, interrupted="that installs 580.95.05")
    made = make(seen, Request("580"), change("580.95.05", seen, *HEADLESS))
    assert kinds(made) == sorted(kinds(made), key=plan.KINDS.index)
