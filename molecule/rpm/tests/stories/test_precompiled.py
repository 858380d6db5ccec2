# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test precompiled kernel modules.

The tests cover install, upgrade, the next kernel, a kill and removal.
"""

from __future__ import annotations

import os

import pytest
from rpm_runs import LOOK, Ask, State, fail_if, kill_in, play

HOST = "el9"
OLD, NEW = "580.95.05", "580.105.08"
NEXT = "6.99.0-1"
# For Red Hat 9, NVIDIA's precompiled modules are proprietary.
PRECOMPILED = {"nvidia_driver_precompiled": True, "nvidia_driver_kernel_modules": "proprietary"}
DKMS = {"nvidia_driver_version": OLD}
LOOK_AT_MODULES = (
    "modinfo -F license nvidia; modinfo -F filename nvidia; uname -r; rpm -qa 'kmod-*' | sort; echo '--- state'; "
    + LOOK
)


# DKMS restores modules that it found at the same path, but in another folder.
LEFT = fail_if("rpm -qa | grep nvidia") + "find /lib/modules -name 'nvidia*.ko*'"


def request(version: str, **more: object) -> dict[str, object]:
    return {**PRECOMPILED, "nvidia_driver_version": version, **more}


def modules(text: str) -> set[str]:
    """Return the installed packages of kernel modules, without version and release."""
    names = text.partition("--- state")[0].splitlines()
    return {line.rsplit("-", 2)[0] for line in names if line.startswith("kmod-")}


def is_precompiled(seen: str, version: str, kernels: int = 1) -> None:
    """Check that the driver is complete and has only modules of this version."""
    state = State.read(seen.partition("--- state\n")[2])
    license, filename, *_rest = seen.splitlines()
    kernel = seen.partition("--- state\n")[0].splitlines()[2]
    assert (license, filename) == ("NVIDIA", "/lib/modules/%s/extra/drivers/video/nvidia/nvidia.ko" % kernel)
    names = {"kmod-nvidia-%s-%s" % (version, base) for base in (kernel, NEXT)[:kernels]}
    assert modules(seen) == names
    assert {lock.partition(":")[0] for lock in state.locks if lock.startswith("kmod-")} == {
        name + "-3" for name in names
    }
    assert (state.loaded, state.broken, state.active) == (version, "", "active active active")
    assert state.packages["nvidia-driver-cuda"] == version + "-1.el9"


def test_precompiled_modules_replace_those_of_dkms_and_follow_the_driver(lab_host):
    open_ones = {"nvidia_driver_precompiled": True, "nvidia_driver_version": OLD}
    # The site has enabled a stream, but the stream hides no package from the role.
    stream = "dnf -q -y module enable nvidia-driver:580-dkms"
    _dkms, lacking, switched, noted, upgraded, removed = play(
        HOST,
        # The earlier tests leave another version. DNF does not change the version and the kind of modules at once.
        Ask(DKMS),
        Ask(open_ones, fails=True),
        Ask(request(OLD), first=stream, then=LOOK_AT_MODULES),
        # The next kernel has no modules of this version.
        Ask(request(OLD), first="dnf -q -y install kernel-core", then=LOOK_AT_MODULES),
        Ask(request("580", nvidia_driver_upgrade=True), then=LOOK_AT_MODULES),
        Ask(
            {"nvidia_driver_state": "absent"},
            then="{ dnf -q -y remove --noautoremove kernel-core; dnf -q -y module reset nvidia-driver; } >&2; " + LEFT,
        ),
    )
    assert "no source has modules of %s for kernel" % OLD in lacking.failed
    is_precompiled(switched.seen, OLD)
    assert not noted.changed
    is_precompiled(noted.seen, OLD)
    is_precompiled(upgraded.seen, NEW, kernels=2)
    assert removed.seen == ""


@pytest.mark.thorough
@pytest.mark.parametrize("base", [os.uname().release, NEXT])
def test_a_kill_in_the_scriptlet_of_precompiled_modules_is_repaired(lab_host, base):
    # This scriptlet links the kernel modules.
    kill = kill_in("kmod-nvidia-%s-%s" % (NEW, base), NEW, "post")
    versions = "find /lib/modules -name nvidia.ko -exec modinfo -F version {} +; echo '--- versions'; "
    _dkms, _first, _killed, repaired, back, removed = play(
        HOST,
        # DNF does not change the version and the kind of modules at once.
        Ask(DKMS),
        Ask(request(OLD), then="dnf -q -y install kernel-core"),
        Ask(request(NEW), first=kill, then=fail_if("ls /run/scriptlet") + LOOK, fails=True),
        Ask(request(NEW), then=versions + LOOK_AT_MODULES),
        Ask({"nvidia_driver_version": NEW}, then=LOOK_AT_MODULES),
        Ask({"nvidia_driver_state": "absent"}, then="dnf -q -y remove --noautoremove kernel-core >&2; " + LEFT),
    )
    assert repaired.planned[0].startswith("complete the interrupted change from %s to %s" % (OLD, NEW))
    linked, _line, seen = repaired.seen.partition("--- versions\n")
    assert linked.split() == [NEW, NEW]
    is_precompiled(seen, NEW, kernels=2)
    assert modules(back.seen) == {"kmod-nvidia-open-dkms"}
    assert back.seen.startswith("Dual MIT/GPL")
    assert removed.seen == ""


@pytest.mark.thorough
def test_red_hat_10_has_open_precompiled_modules_and_no_streams():
    open_ones = {"nvidia_driver_precompiled": True, "nvidia_driver_version": OLD}
    installed, _absent = play(
        "el10",
        Ask(
            open_ones,
            then=fail_if("dnf -q module list | grep nvidia-driver") + "modinfo -F license nvidia; rpm -qa 'kmod-*'",
        ),
        Ask({"nvidia_driver_state": "absent"}),
    )
    assert installed.seen.splitlines()[0] == "Dual MIT/GPL"
    assert [name.startswith("kmod-nvidia-open-%s-" % OLD) for name in modules(installed.seen)] == [True]
