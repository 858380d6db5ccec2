# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count a process as active on all its GPUs if one of them works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Holder, Holding, Quiet, Stat, Subject
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.together import together
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import judge
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rule import Policy
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.signals import SIGNALS

DAY = 86400.0
TRAIN = Holder("process", "pid 7 (train.py)", since_seconds=100.0, pid=7)
IDLE = Quiet(20 * DAY, longest_seconds=DAY, held_seconds=28 * DAY, signals=tuple(one.name for one in SIGNALS))


def gpu(number, quiet, *holders, host="a"):
    known = Stat(14 * DAY, 1.0, p95=0.5, p99=0.5, max=0.6, mean=0.4)
    subject = Subject("gpu", host, "GPU-%d" % number, gpu_index=str(number))
    more = {"memory": known, "busy": known, "compute": known, "memory_total_bytes": 1.0, "processes_now": 1.0}
    return Holding(subject, holders=holders or (TRAIN,), held_seconds=28 * DAY, quiet=quiet, **more)


def words(*found):
    return [judge(one, seconds=14 * DAY).word for one in together(found, Policy())]


def test_process_that_works_on_one_gpu_is_not_idle_on_others():
    found = together([gpu(0, None), gpu(1, IDLE), gpu(2, IDLE)], Policy())
    assert [one.works_on for one in found] == [(), ("a gpu 0",), ("a gpu 0",)]
    said = judge(found[1], seconds=14 * DAY)
    assert said.word == "standby" and "Its process works on a gpu 0." in said.reason


def test_process_that_works_on_no_gpu_is_idle_on_all():
    assert words(gpu(0, IDLE), gpu(1, IDLE)) == ["idle", "idle"]


def test_pause_explained_by_one_gpus_rhythm_excuses_the_others():
    assert words(gpu(0, replace(IDLE, longest_seconds=11 * DAY)), gpu(1, IDLE))[1] == "standby"


@pytest.mark.parametrize(
    "other",
    [
        replace(TRAIN, pid=8),
        # In these cases, the pid was reused, or the pid is unknown.
        replace(TRAIN, since_seconds=200.0),
        replace(TRAIN, pid=None),
        # Any CUDA program may have the device nodes of all GPUs open.
        replace(TRAIN, kind="device_handle"),
        replace(TRAIN, kind="mps"),
    ],
)
def test_only_the_same_process_is_an_excuse(other):
    assert words(gpu(0, None, other), gpu(1, IDLE))[1] == "idle"


def test_process_of_another_host_is_no_excuse():
    assert words(gpu(0, None, host="b"), gpu(1, IDLE))[1] == "idle"
