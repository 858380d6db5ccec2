# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which runs of pytest get a PID namespace."""

from __future__ import annotations

import pytest

from tests.apart import ROOT, WITH_LAB_HOSTS, needs_namespace


@pytest.mark.parametrize(
    "names",
    [
        ["tests/integration"],
        ["tests/unit", "tests/integration/modules/test_mig.py"],
        ["tests/kubernetes/test_role.py"],
        ["tests/adversary/test_hostile_host.py"],
    ],
)
def test_tests_of_modules_on_this_machine_have_a_pid_namespace(names):
    assert needs_namespace([ROOT / name for name in names])


@pytest.mark.parametrize(
    "names",
    [
        ["tests/unit"],
        # In a new PID namespace, podman would not find the processes of lab hosts.
        *([name] for name in WITH_LAB_HOSTS),
        ["tests/integration", "tests/lab"],
        ["tests/kubernetes"],
        ["tests"],
        ["."],
    ],
)
def test_other_tests_have_no_pid_namespace(names):
    assert not needs_namespace([ROOT / name for name in names])


def test_every_file_that_starts_lab_hosts_is_known():
    """Find every file that starts lab hosts.

    Nodes of the cluster fixture are lab hosts too.
    """
    users = [path for path in (ROOT / "tests/kubernetes").glob("test_*.py") if "(cluster" in path.read_text()]
    assert users and not any(needs_namespace([path]) for path in users)
