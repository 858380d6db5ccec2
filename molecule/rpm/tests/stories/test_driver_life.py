# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a driver installed by DNF: upgrades, failures and removal.

The tests run in order, and each test starts with the state that the previous test left.
"""

from __future__ import annotations

from rpm_runs import HOLD_THE_LOCK, LOOK, PARTS, RUNNING, Ask, State, differences, fail_if, foretold, is_whole, play

from tests.thorough import THOROUGH

HOST, MIRROR = "el9", "http://127.0.0.1:8080"
NEWER = {"nvidia_driver_version": "580.105.08"}
NEWEST = {"nvidia_driver_version": "590.48.01"}


def look(lab_host) -> State:
    return State.read(lab_host(HOST).check_output(LOOK))


# -- From 580.95.05 ----------------------------------------------------------------------------------------------------


def test_driver_is_complete_locked_and_verified(lab_host):
    host = lab_host(HOST)
    is_whole(look(lab_host), "580.95.05")
    assert host.check_output("modinfo -F license nvidia") == "Dual MIT/GPL"
    assert host.check_output("nvidia-smi").splitlines()[0] == "Driver Version: 580.95.05"
    repository = host.file("/etc/yum.repos.d/openfleet-nvidia-driver.repo").content_string
    assert {"gpgcheck=1", "repo_gpgcheck=1"} <= set(repository.splitlines())
    for name in PARTS:
        assert "RSA/SHA" in host.check_output(f"rpm -q --qf '%{{SIGPGP:pgpsig}}%{{RSAHEADER:pgpsig}}' {name}")
    assert host.package("kernel-devel-matched-" + host.check_output("uname -r")).is_installed


def test_upgrades_by_others_do_not_change_the_driver(lab_host):
    before = look(lab_host)
    assert "590.48.01" in lab_host(HOST).check_output(
        "dnf -q -y --disableplugin=versionlock repoquery nvidia-driver-cuda"
    )
    done = lab_host(HOST).run("dnf --assumeyes upgrade")
    assert done.rc == 0, done.stderr
    assert look(lab_host) == before


REFUSED = [
    ({"repository_url": MIRROR + "/unsigned/repos/{directory}/{architecture}"}, "cannot be used"),
    ({"repository_url": MIRROR + "/foreign/repos/{directory}/{architecture}"}, "cannot be used"),
    ({"repository_fingerprints": ["610C7B14E068A878070DA4E99CD0A493D42D0685"]}, "but the trusted fingerprint is"),
    ({"version": "580.1.1"}, "Available: 590.48.01, 590.44.02, 590.44.01, 580.105.08, 580.95.05"),
    ({"reboot": "never"}, "a reboot is needed"),
]


def test_wrong_repository_failing_mirror_or_foreign_packages_stop_a_change_early(lab_host):
    before = look(lab_host)
    cases = REFUSED if THOROUGH else [REFUSED[1]]
    asks = [
        Ask({**NEWER, **{"nvidia_driver_" + name: value for name, value in asked.items()}}, then=LOOK, fails=True)
        for asked, _said in cases
    ]
    right, *refused, died, dependent, locked = play(
        HOST,
        Ask(then=LOOK),
        *asks,
        Ask(NEWER, first="touch /srv/mirror/.dies", then="rm /srv/mirror/.dies; " + LOOK, fails=True),
        # A package of the site requires exactly this version. If the version changed, DNF would remove the package
        # without a message.
        Ask(NEWER, first="dnf -q -y install site-gpu-tools", then="rpm -q site-gpu-tools", fails=True),
        # The administrator has locked this package too.
        Ask(
            {**NEWER, "nvidia_driver_allow_removal": ["site-gpu-tools"]},
            first="dnf -q versionlock add site-gpu-tools",
            then="{ dnf -q versionlock delete site-gpu-tools; dnf -q -y remove --noautoremove site-gpu-tools; } >/dev/null; "
            + LOOK,
            fails=True,
        ),
    )
    assert (right.changed, right.executions) == (False, 1)
    for (asked, said), refusal in zip(cases, refused):
        assert said in refusal.failed, asked
    assert "some packages could not be downloaded" in died.failed
    assert "would also remove site-gpu-tools" in dependent.failed
    assert "site-gpu-tools 1.0-1.el9, which versionlock keeps" in locked.failed
    assert before.active == RUNNING
    for played in (right, *refused, died):
        assert State.read(played.seen) == before, played.failed
    assert State.read(locked.seen).packages == before.packages


def test_upgrade_follows_the_dry_run_and_waits_for_another_dnf(lab_host):
    before = look(lab_host)
    dry, wet, kept = play(
        HOST,
        Ask(NEWER, entry="plan", then=LOOK),
        Ask(NEWER, first=HOLD_THE_LOCK, then=LOOK),
        Ask({"nvidia_driver_version": "580"}, then=LOOK),
    )
    assert State.read(dry.seen) == before
    assert dry.planned == wet.done
    after = State.read(wet.seen)
    full = "580.105.08-1.el9"
    assert foretold(dry.planned) == differences(before, after) == dict.fromkeys(PARTS, full)
    is_whole(after, "580.105.08")
    assert not kept.changed and State.read(kept.seen) == after


# -- From 580.105.08 ---------------------------------------------------------------------------------------------------


def test_failed_transaction_is_undone_and_enabled_stream_hides_no_version(lab_host):
    before = look(lab_host)
    gone = fail_if("ls /var/lib/openfleet-gpu/driver.json")
    stream = "dnf -q -y module enable nvidia-driver:580-dkms"
    unbuilt, failed, right, newest = play(
        HOST,
        # The modules of this version do not build. The scriptlet prints an error, but DNF reports success.
        Ask({"nvidia_driver_version": "590.44.01"}, then=gone + LOOK, fails=True),
        # The transaction of this version fails halfway.
        Ask({"nvidia_driver_version": "590.44.02"}, then=gone + LOOK, fails=True),
        Ask(NEWER, then=LOOK),
        Ask(NEWEST, first=stream, then="dnf -q -y module reset nvidia-driver >/dev/null; " + LOOK),
    )
    for played in (unbuilt, failed):
        assert "580.105.08 was restored" in played.failed
        after = State.read(played.seen)
        is_whole(after, "580.105.08")
        assert (after.packages, after.locks, after.configuration) == (
            before.packages,
            before.locks,
            before.configuration,
        )
    assert "kernel modules" in unbuilt.failed
    assert "Transaction failed" in failed.failed
    assert not right.changed
    is_whole(State.read(newest.seen), "590.48.01")


# -- From 590.48.01 ----------------------------------------------------------------------------------------------------


def test_removal_keeps_packages_that_others_need(lab_host):
    absent = {"nvidia_driver_state": "absent"}
    before = look(lab_host)
    planned, removed, again = play(
        HOST,
        Ask(absent, entry="plan", then=LOOK),
        Ask(
            absent,
            then=fail_if("find /etc /var -name '*openfleet*' | grep .") + LOOK,
        ),
        Ask(absent),
    )
    assert planned.planned == removed.done
    assert State.read(planned.seen) == before
    after = State.read(removed.seen)
    assert differences(before, after) == foretold(removed.done) == dict.fromkeys(PARTS)
    assert after.locks == () and after.loaded == "" and after.broken == ""
    assert after.active.split()[2] == "active"
    assert not again.changed
    assert "dkms" in after.packages


# -- Bare --------------------------------------------------------------------------------------------------------------


LEFT = [
    ("dnf -q -y install xorg-x11-drv-nvidia-cuda", "xorg-x11-drv-nvidia-cuda 580.95.05-1.el9 (of RPM Fusion)", "true"),
    ("printf '#!/bin/sh\\n' >/usr/bin/nvidia-uninstall; chmod 755 /usr/bin/nvidia-uninstall", "/usr/bin/nvidia-uninstall",
     "rm /usr/bin/nvidia-uninstall"),
    ("mkdir -p /var/lib/dkms/nvidia/575.57.08", "575.57.08", "rm -r /var/lib/dkms/nvidia/575.57.08"),
    ("mkdir -p /run/nvidia/driver/usr", "/run/nvidia/driver/usr", "rm -r /run/nvidia/driver"),
]  # fmt: skip


def test_driver_from_another_source_is_replaced_only_if_allowed(lab_host):
    asks = [Ask(first=first, then=then, fails=True) for first, _said, then in LEFT]
    allowed = {"nvidia_driver_allow_removal": ["xorg-x11-drv-nvidia-cuda"]}
    *refused, absent, replaced = play(
        HOST, *asks, Ask({"nvidia_driver_state": "absent"}, fails=True), Ask(allowed, then=LOOK)
    )
    for (_first, said, _then), played in zip(LEFT, refused):
        assert said in played.failed
    assert "xorg-x11-drv-nvidia-cuda" in absent.failed
    after = State.read(replaced.seen)
    is_whole(after, "580.95.05")
    assert "xorg-x11-drv-nvidia-cuda" not in after.packages
    assert "remove xorg-x11-drv-nvidia-cuda 580.95.05-1.el9" in replaced.planned
