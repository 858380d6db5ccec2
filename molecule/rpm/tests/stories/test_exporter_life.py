# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test NVIDIA's exporter with DNF: install, failures, a kill, locks and removal."""

from __future__ import annotations

from rpm_runs import HOLD_THE_LOCK, INVENTORY, Ask, fail_if, kill_in

from tests.lab import role_plays

HOST = "el9"
CORE, EXPORTER = "datacenter-gpu-manager-4-core", "datacenter-gpu-manager-exporter"
PACKAGES = (CORE, "datacenter-gpu-manager-4-proprietary", EXPORTER)
SEE = (
    "rpm -q --qf '%%{NAME}=%%{VERSION}\\n' %s | sort; dnf -q check; "
    "systemctl is-active dcgm-exporter; systemctl is-enabled nvidia-dcgm-exporter || true" % " ".join(PACKAGES)
)
OLD, NEW = {"dcgm_exporter_version": "4.4.1"}, {"dcgm_exporter_version": "4.5.0"}
# The exporter requires DCGM of the same version or later.
ALL_OLD = "dnf -q -y downgrade %s-4.4.1 %s-4.4.1" % PACKAGES[:2]
STREAM = "dnf -q -y module enable nvidia-driver:580-dkms"
LOCK = "dnf -q versionlock add " + CORE


def expected(*versions: str) -> list[str]:
    """Return the output of SEE for these versions of PACKAGES."""
    return [*("%s=%s" % pair for pair in zip(PACKAGES, versions)), "active", "masked"]


def play(*asks: Ask) -> list[role_plays.Done]:
    # With --diff, the role prints the completed steps.
    return role_plays.run_role(INVENTORY, "dcgm_exporter", HOST, list(asks), "--diff")


def test_the_exporter_is_installed_and_changed_by_dnf(lab_host):
    foreign = {"dcgm_exporter_repository_url": "http://127.0.0.1:8080/foreign/repos/rhel9/x86_64"}
    refused, first, again, failed, locked, upgraded, pinned = play(
        Ask(foreign, then=fail_if("ls /etc/yum.repos.d | grep dcgm"), fails=True),
        Ask(OLD, first=STREAM, then=SEE),
        Ask(OLD),
        # DCGM is upgraded before the exporter's scriptlet fails.
        Ask({"dcgm_exporter_version": "4.4.2"}, first=ALL_OLD, then=SEE, fails=True),
        Ask(NEW, first=LOCK, then="dnf -q versionlock delete %s >/dev/null; %s" % (CORE, SEE), fails=True),
        Ask(NEW, first=HOLD_THE_LOCK, then="dnf -q -y module reset nvidia-driver >/dev/null; " + SEE),
        Ask(OLD, then=SEE),
    )
    assert "repository cannot be used" in refused.failed
    assert first.seen.split() == expected("4.5.0", "4.5.0", "4.4.1")
    assert not again.changed
    assert "this release ends here" in failed.failed or "Transaction failed" in failed.failed
    assert "and was undone" in failed.failed
    assert failed.seen.split() == expected("4.4.1", "4.4.1", "4.4.1")
    assert CORE + " 4.4.1-1.el9 is locked by versionlock" in locked.failed
    assert locked.seen == failed.seen
    assert upgraded.seen.split() == expected("4.5.0", "4.4.1", "4.5.0")
    assert pinned.seen.split() == expected("4.5.0", "4.4.1", "4.4.1")


def test_a_killed_change_is_completed_and_removal_leaves_what_others_need(lab_host):
    absent = {"dcgm_exporter_state": "absent"}
    tools = "dnf -q -y install site-dcgm-tools"
    gone = "dnf -q -y remove --noautoremove site-dcgm-tools >/dev/null; "
    left = [*("rpm -q " + name for name in PACKAGES), "find /etc /var -name '*openfleet-dcgm*' | grep ."]
    killed, repaired, needed, removed, nothing = play(
        Ask(
            NEW,
            first=kill_in(EXPORTER, "4.5.0", "post"),
            then="rpm -q %s; ls /etc/openfleet-gpu/exporter" % EXPORTER,
            fails=True,
        ),
        Ask(NEW, then=SEE),
        Ask(absent, first=tools, then=gone + SEE, fails=True),
        Ask(absent, then="".join(map(fail_if, left))),
        Ask(absent),
    )
    assert killed.seen.count(EXPORTER) == 2 and "restart-pending" in killed.seen
    assert "complete the interrupted change of packages " + EXPORTER in repaired.said[-1]
    assert repaired.seen.split() == expected("4.5.0", "4.4.1", "4.5.0")
    assert "remove site-dcgm-tools" in needed.failed
    assert needed.seen == repaired.seen
    assert removed.changed and not nothing.changed
