# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test holders that NVML does not list.

Such holders block a change, even if they start during the run.
"""

from __future__ import annotations

import sys

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.planner import plan_gpu
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.mark import mark
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.model import CONTAINER, DEVICE_HANDLE, PROCESS
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Host, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from tests.unit.mig_rules import with_instances


@pytest.fixture
def gpu():
    return with_instances(assumed_gpus(["H100-80GB"])[0], [("3g.40gb", Placement(0, 4)), ("3g.40gb", Placement(4, 4))])


def disturbs(gpu, holders, *profiles):
    marked = mark(Host("1", "1", None, True, (gpu,)), holders).gpus[0]
    wanted = tuple(WantedInstance(profile) for profile in profiles)
    return [
        str(found) for found in plan_gpu(marked, Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision(wanted))).disturbs
    ]


def test_container_with_an_instance_holds_only_that_instance(gpu):
    container = Holder(gpu.uuid, gpu.mig.instances[1].id, CONTAINER, "container trainer")
    # The planner keeps the 3g instance that the container holds.
    assert disturbs(gpu, [container], "3g.40gb") == []
    assert disturbs(gpu, [container], "7g.80gb") == ["%s: 3g.40gb@4 is in use by container trainer" % gpu.short_label]


def test_holder_of_the_whole_gpu_holds_every_instance(gpu):
    job = Holder(gpu.uuid, None, DEVICE_HANDLE, "pid 12 (python3)")
    assert len(disturbs(gpu, [job], "7g.80gb")) == 2


def test_monitoring_blocks_only_mode_changes(gpu):
    watcher = Holder(gpu.uuid, None, DEVICE_HANDLE, "nvidia-persistenced", watches=True)
    assert disturbs(gpu, [watcher], "7g.80gb") == []
    off = mark(Host("1", "1", None, True, (gpu,)), [watcher]).gpus[0]
    plan = plan_gpu(off, Target(gpu.uuid, "gpu_layout[0]", "shared", None, {"compute_mode": "default"}))
    assert [str(found) for found in plan.disturbs] == [
        "%s, whose MIG mode would change, is in use by nvidia-persistenced" % gpu.short_label
    ]


def test_process_holds_only_its_compute_instance(gpu):
    process = Holder(gpu.uuid, gpu.mig.instances[0].id, PROCESS, "pid 7 (python3)", pid=7)
    marked = mark(Host("1", "1", None, True, (gpu,)), [process]).gpus[0]
    assert marked.mig.instances[0].held_by == (process,)
    assert marked.mig.instances[1].held_by == ()


def test_unknown_holders_do_not_block_a_rollback(host):
    """Roll back although the run does not know all holders.

    Slurm's controller fails during the run, so the run does not know the jobs. Then one of the run's steps fails.
    """
    host.create([{"model": "H100-80GB", "count": 1}])
    host.module("mig", layout=[{"gpus": "all", "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}])
    there = host.seen()
    host.gpusim("fail", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--code", "UNKNOWN")
    assert host.run([sys.executable, "-c", BLIND, str(host.folder / "state.d")]).stdout == "2 looks, outcome old\n"
    assert host.seen() == there


BLIND = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.mark import mark
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.model import unknown
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import MigDivision, WantedInstance
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal

with Session() as session:
    gpus = session.observe().gpus
    halves = (WantedInstance("3g.40gb"),) * 2
    plan = planner.plan(gpus, [Target(g.uuid, "", "mig", MigDivision(halves)) for g in gpus])
    looks = []
    def look(gpu=None):
        host = session.observe()
        looks.append(host)
        # The first scan, before the first step, is complete.
        return mark(host, unknown(host.gpus, "undeterminable", "") if len(looks) > 1 else ())
    try:
        apply_plan.apply(apply_plan.Context(session, Journal(sys.argv[1]), look=look), plan)
    except ApplyError as error:
        print("%d looks, outcome %s" % (len(looks), error.outcome))
"""


def test_job_that_starts_after_the_plan_is_not_ended(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    host.module("mig", layout=[{"gpus": "all", "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}])
    there = host.seen()
    assert host.run([sys.executable, "-c", LATE, str(host.folder / "state.d")]).stdout.split() == [
        "old",
        "GPU-1-changed:False",
        "each-GPU-looked-at:True",
    ]
    assert host.seen() == there


LATE = """
import atexit, subprocess, sys
from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import MigDivision, WantedInstance
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal

with Session() as session:
    gpus = session.observe().gpus
    plan = planner.plan(gpus, [Target(g.uuid, "", "mig", MigDivision((WantedInstance("3g.40gb"),))) for g in gpus])
    looks = []
    def look(gpu=None):
        # At the second scan the first GPU has its new layout, and a job has started on the other one.
        if looks:
            job = subprocess.Popen(["gpusim", "run", "--gpu", "1", "--gi", "0", "--memory", "1MiB", "--", "sleep", "300"],
                                   stdout=subprocess.DEVNULL)
            atexit.register(job.kill)
            while not session.observe().gpus[1].processes:
                assert job.poll() is None
        looks.append(gpu)
        return session.observe(only=gpu)
    try:
        apply_plan.apply(apply_plan.Context(session, Journal(sys.argv[1]), look=look), plan)
    except ApplyError as error:
        print(error.outcome)
    print("GPU-1-changed:%s" % (session.observe().gpus[1].mig.instances[0].profile != "7g.80gb"))
    # The last scan reads all of them, before the rollback.
    print("each-GPU-looked-at:%s" % (looks == [gpus[0].uuid, gpus[1].uuid, None]))
"""


def test_session_reads_one_gpu_again_and_keeps_the_others(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    assert host.run([sys.executable, "-c", ONE]).stdout.split() == ["0,1", "1,1"]


ONE = """
import subprocess, sys
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session

def processes(host):
    return ",".join(str(len(gpu.processes)) for gpu in host.gpus)

with Session() as session:
    second = session.observe().gpus[1].uuid
    jobs = [
        subprocess.Popen(["gpusim", "run", "--gpu", gpu, "--memory", "1MiB", "--", "sleep", "300"], stdout=subprocess.DEVNULL)
        for gpu in "01"
    ]
    try:
        with Session() as other:
            while processes(other.observe()) != "1,1":
                assert {job.poll() for job in jobs} == {None}
        print(processes(session.observe(only=second)))
        print(processes(session.observe()))
    finally:
        for job in jobs:
            job.kill()
            job.wait()
"""


def test_holder_that_another_choice_would_spare_is_not_ended(host):
    """Refuse to end a holder that another plan would spare.

    The plan removes one of two equal instances. After the plan, a process starts in the instance to be removed.
    """
    host.create([{"model": "H100-80GB", "count": 1}])
    host.module("mig", layout=[{"gpus": "all", "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 2}]}])
    there = host.seen()
    done = host.run([sys.executable, "-c", SPARED, str(host.folder / "state.d")])
    assert done.stdout == "refused: 1g.10gb came into use\n"
    assert host.seen() == there


SPARED = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import BusyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.mark import mark
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import MigDivision, WantedInstance
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.steps import DestroyGpuInstance
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal

with Session() as session:
    gpus = session.observe().gpus
    plan = planner.plan(gpus, [Target(g.uuid, "", "mig", MigDivision((WantedInstance("1g.10gb"),))) for g in gpus])
    (doomed,) = [s.gpu_instance_id for s in plan.gpus[0].steps if isinstance(s, DestroyGpuInstance)]
    def look(gpu=None):
        host = session.observe()
        return mark(host, [Holder(host.gpus[0].uuid, doomed, "container", "container trainer")])
    try:
        apply_plan.apply(apply_plan.Context(session, Journal(sys.argv[1]), look=look), plan)
    except BusyError as error:
        print("refused: %s came into use" % error.disturbs[0].what.split(": ")[1].split("@")[0])
"""
