# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the container toolkit with DNF.

The tests cover install, dry run, upgrade with its own locks, downgrade and removal.
"""

from __future__ import annotations

from rpm_runs import INVENTORY, Ask, fail_if

from tests.lab import role_plays

HOST = "el9"
NAMES = (
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
)
SEE = (
    "rpm -q --qf '%{NAME}=%{VERSION}\\n' "
    + " ".join(NAMES)
    + " | sort; grep container /etc/dnf/plugins/versionlock.list | sort || true"
)


def expected(version: str) -> list[str]:
    """Return the output of SEE if all packages have this version and are locked."""
    locks = sorted("%s-0:%s-1.*" % (name, version) for name in NAMES)
    return sorted("%s=%s" % (name, version) for name in NAMES) + locks


def test_dnf_installs_upgrades_and_removes_the_toolkit(lab_host):
    newer = {"container_toolkit_version": "1.18.2"}
    gone = "".join(
        [
            fail_if("rpm -q nvidia-container-toolkit-base"),
            fail_if("grep container /etc/dnf/plugins/versionlock.list"),
            "ls /etc/yum.repos.d",
        ]
    )
    first, right, foreign, upgraded, back, removed = role_plays.run_role(
        INVENTORY,
        "container_toolkit",
        HOST,
        [
            Ask(then=SEE),
            Ask(then=SEE),
            Ask(
                {**newer, "container_toolkit_repository_url": "http://127.0.0.1:8080/foreign/repos/rhel9/x86_64"},
                then=SEE,
                fails=True,
            ),
            Ask(newer, then=SEE),
            Ask(then=SEE),
            Ask({"container_toolkit_state": "absent"}, then=gone),
        ],
    )
    assert first.seen.split() == expected("1.18.1")
    assert not right.changed
    assert foreign.failed
    assert foreign.seen == first.seen
    assert upgraded.seen.split() == expected("1.18.2")
    assert back.seen.split() == expected("1.18.1")
    assert "openfleet-container-toolkit" not in removed.seen
