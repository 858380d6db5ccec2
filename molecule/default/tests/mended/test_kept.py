# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a run repairs drift and changes nothing else, not even UUIDs."""

from __future__ import annotations

import json
import os
import re

import pytest
from site_changes import DRIFT_CHANGES, PYNVML_DRIFTED

from tests.lab.fleet import LAB
from tests.lab.lab_fixtures import HOSTS, REPOSITORY

# For each host: GPUs without drift, and GPUs on which only a part has drifted.
UNTOUCHED = {"h100": {2}, "a100": {0, 2, 3}, "pro6000": {0}}


def mig_uuids(listing: str) -> dict[int, set[str]]:
    """Return the UUIDs of each GPU's MIG devices from the output of `nvidia-smi -L`."""
    found: dict[int, set[str]] = {}
    for line in listing.splitlines():
        if gpu := re.match(r"GPU (\d+): ", line):
            current = found.setdefault(int(gpu[1]), set())
        elif device := re.search(r"\(UUID: (MIG-[^)]+)\)", line):
            current.add(device[1])
    return found


@pytest.fixture(scope="module", autouse=True)
def mended(play_site):
    """Run site.yml. All tests run after it."""
    return play_site("converge-drifted.json")


def test_run_repairs_only_drift(mended):
    assert sorted(mended.hosts) == sorted([*HOSTS, "monitor"])
    assert set(mended.changes) == DRIFT_CHANGES


@pytest.mark.parametrize("name", PYNVML_DRIFTED)
def test_pynvml_is_restored_and_owned_by_root(lab_host, name):
    file = lab_host(name).file("/usr/local/lib/openfleet-gpu/python/pynvml.py")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)
    known = REPOSITORY / "roles" / "gpu_layout" / "files" / "pynvml.sha256"
    assert file.sha256sum == known.read_text().split()[0]


@pytest.mark.parametrize("name", HOSTS)
def test_second_plan_is_empty(lab_host, name):
    assert "nothing changed" in lab_host(name).check_output("gpu-layout apply --unlisted remove")


def test_report_has_every_host():
    report = json.loads((LAB / f"report-{os.environ['OPENFLEET_LAB']}" / "report.json").read_text())
    assert sorted(host["name"] for host in report["hosts"]) == HOSTS
    # The numbers of GPUs in inventories/simulated.
    assert report["totals"]["gpus"] == sum({"h100": 8, "a100": 4, "l40s": 2, "pro6000": 2}[name] for name in HOSTS)
    # drift/h100.sh stopped the MPS daemon on GPU 1 of h100.
    changed = {h["name"]: [i for i, gpu in enumerate(h["gpus"]) if gpu["changed"]] for h in report["hosts"]}
    drifted = {"a100": [1], "h100": [0, 1, 3, 4, 5, 6, 7], "l40s": [1], "pro6000": [1]}
    assert changed == {name: drifted[name] for name in HOSTS}


@pytest.mark.thorough
def test_a_second_run_and_a_dry_run_change_nothing(play_site):
    assert play_site("second.json").changes == ()
    assert play_site("check-finished.json", "--check").changes == ()


@pytest.fixture(scope="module")
def before_and_now(lab_host):
    def read(name: str):
        host = lab_host(name)
        before = host.file("/var/tmp/before-the-drift").content_string
        return mig_uuids(before), mig_uuids(host.check_output("nvidia-smi -L"))

    return read


@pytest.mark.parametrize("name", sorted({*UNTOUCHED} & {*HOSTS}))
def test_untouched_instances_were_kept(before_and_now, name):
    before, now = before_and_now(name)
    for gpu in UNTOUCHED[name]:
        assert now[gpu] == before[gpu], f"GPU {gpu}"


def test_daemon_in_kept_instance_is_not_restarted(lab_host, daemons_of):
    assert set(daemons_of("h100")) == {"inference", "small"}
    restarts = lab_host("h100").check_output("systemctl show --property=NRestarts,InvocationID openfleet-mps@small")
    assert restarts in lab_host("h100").file("/var/tmp/before-the-drift").content_string


def test_only_the_lost_instance_was_replaced(before_and_now):
    before, now = before_and_now("h100")
    assert len(before[0]) == len(now[0]) == 3
    assert len(before[0] & now[0]) == 2


def test_only_the_lost_compute_instance_was_replaced(before_and_now):
    before, now = before_and_now("h100")
    assert len(before[5]) == len(now[5]) == 3
    assert len(before[5] & now[5]) == 2


@pytest.mark.skipif("pro6000" not in HOSTS, reason="OPENFLEET_LIMIT leaves pro6000 out")
def test_matching_manual_instances_are_kept(gpus_of):
    # The manual drift is 2g.48gb at 6 and one 1g.24gb at 0. A plan that ignored existing instances would place the
    # large one first.
    instances = sorted((i.start, i.profile) for i in gpus_of("pro6000")[1].instances.values())
    assert instances == [(0, "1g.24gb"), (3, "1g.24gb"), (6, "2g.48gb")]
