# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that site.yml prints many hosts' error only once, with their names."""

from __future__ import annotations

import re

import pytest

from tests.integration.simulated_fleet import Fleet
from tests.integration.warm_ansible import interpreter
from tests.thorough import THOROUGH

TYPO = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.45gb"}]}]
HOSTS = ["node%02d" % number for number in range(40 if THOROUGH else 7)]
NAMED = "node00, node01, node02, node03, node04 and %d more hosts: " % (len(HOSTS) - 5)
# Maximum lines of a failed run, and additional lines for each host. Separate errors took 37 lines for each host.
MOST_LINES, MOST_LINES_OF_HOST = 120, 18


@pytest.fixture
def fleet(host, library, tmp_path):
    """Return hosts with one GPU each. The GPUs have different UUIDs."""
    fleet = Fleet(tmp_path, library, HOSTS)
    for name, each in fleet.hosts.items():
        each.create([{"model": "H100-80GB", "count": 1}], host=name)
    return fleet


def failed_hosts(run):
    return re.findall(r"^(\S+) +: ok=\d+ .*failed=1 ", run.stdout, re.MULTILINE)


def assert_one_error(run):
    """Check that all hosts failed with few lines, and return the output as one line."""
    assert run.returncode != 0
    assert failed_hosts(run) == HOSTS, run.stdout
    assert len((run.stdout + run.stderr).splitlines()) <= MOST_LINES + MOST_LINES_OF_HOST * len(HOSTS), run.stdout
    return " ".join((run.stdout + run.stderr).split())


def test_equal_layout_errors_of_many_hosts_are_one_error(fleet):
    run = fleet.play(dict.fromkeys(HOSTS, TYPO))
    said = assert_one_error(run)
    # Two places print the error: the play that ends the run, and the closing summary.
    assert said.count("there is no profile 3g.45gb. Did you mean 3g.40gb?") == 2
    assert said.count(NAMED + "gpu_layout[0] on gpu 0 (NVIDIA H100 80GB HBM3, GPU-") == 2
    assert "Failed: " + NAMED in said.partition("GPU FLEET")[2]
    assert "(This is the message of node00.)" in said
    assert "No plan for any host: " in said and "Correct the errors above" in said
    assert set(map(str, fleet.seen().values())) == {"[]"}


def test_equal_errors_of_hosts_without_a_driver_are_one_error(fleet, tmp_path):
    """Check the layout of hosts without a driver.

    The check uses the catalogue of GPU models.
    """
    python = str(interpreter(tmp_path / "python3"))
    missing = {"ansible_python_interpreter": python, "gpu_layout_expected_gpus": ["H100-80GB"]}
    fleet.more = dict.fromkeys(HOSTS, missing)
    said = assert_one_error(fleet.play(dict.fromkeys(HOSTS, TYPO), "--check"))
    assert said.count("there is no profile 3g.45gb. Did you mean 3g.40gb?") == 2
    assert "Failed: " + NAMED in said.partition("GPU FLEET")[2]


def test_verbose_output_has_the_error_of_each_host(fleet):
    run = fleet.play(dict.fromkeys(HOSTS[:6], TYPO), "-v")
    said = " ".join((run.stdout + run.stderr).split())
    for host in HOSTS[:6]:
        assert f"{host}: gpu_layout[0] on gpu 0 (NVIDIA H100 80GB HBM3, GPU-" in said
