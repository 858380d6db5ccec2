# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After the drift is mended: what could stay has stayed, down to the UUID."""

from __future__ import annotations

import re

import pytest

# By host: the GPUs that the drift left alone, and those where it took a part only.
UNTOUCHED = {"h100": {2}, "a100": {0, 2, 3}, "pro6000": {0}}


def mig_uuids(listing: str) -> dict[int, set[str]]:
    """The UUIDs of the MIG devices of each GPU in what `nvidia-smi -L` printed."""
    found: dict[int, set[str]] = {}
    for line in listing.splitlines():
        if gpu := re.match(r"GPU (\d+): ", line):
            current = found.setdefault(int(gpu[1]), set())
        elif device := re.search(r"\(UUID: (MIG-[^)]+)\)", line):
            current.add(device[1])
    return found


@pytest.fixture(scope="module")
def before_and_now(lab_host):
    def read(name: str):
        host = lab_host(name)
        before = host.file("/var/tmp/before-the-drift").content_string
        return mig_uuids(before), mig_uuids(host.check_output("nvidia-smi -L"))

    return read


@pytest.mark.parametrize("name", sorted(UNTOUCHED))
def test_instances_that_nobody_touched_were_kept(before_and_now, name):
    before, now = before_and_now(name)
    for gpu in UNTOUCHED[name]:
        assert now[gpu] == before[gpu], f"GPU {gpu}"


def test_the_daemon_in_the_instance_that_stayed_was_not_restarted(lab_host, daemons_of):
    assert set(daemons_of("h100")) == {"inference", "small"}
    restarts = lab_host("h100").check_output("systemctl show --property=NRestarts,InvocationID openfleet-mps@small")
    assert restarts in lab_host("h100").file("/var/tmp/before-the-drift").content_string


def test_only_the_lost_instance_was_made_anew(before_and_now):
    before, now = before_and_now("h100")
    assert len(before[0]) == len(now[0]) == 3
    assert len(before[0] & now[0]) == 2


def test_only_the_lost_compute_instance_was_made_anew(before_and_now):
    before, now = before_and_now("h100")
    assert len(before[5]) == len(now[5]) == 3
    assert len(before[5] & now[5]) == 2


def test_instances_made_by_hand_that_fit_the_layout_were_kept(gpus_of):
    # By hand: 2g.48gb at 6 and one 1g.24gb at 0. A plan that starts afresh would put the large one first.
    instances = sorted((i.start, i.profile) for i in gpus_of("pro6000")[1].instances.values())
    assert instances == [(0, "1g.24gb"), (3, "1g.24gb"), (6, "2g.48gb")]
