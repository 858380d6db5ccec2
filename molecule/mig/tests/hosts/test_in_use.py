# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test changes of busy GPUs.

Depending on the configuration, a change keeps busy instances, is refused, waits, or ends their processes.
"""

from __future__ import annotations

import contextlib

import pytest
from gpu_hosts import USER

#: GPU 7 becomes one instance, so both current instances must be destroyed. GPU 0 changes in the same run.
WHOLE = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]},
    {"gpus": [7], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]},
]


def profiles(host, gpu: int) -> list[str]:
    return sorted(instance.profile for instance in host.gpus()[gpu].instances.values())


@pytest.fixture
def refused(apply, hopper):
    """Return a function that checks that a change to WHOLE is refused with this text.

    nvidia-smi must show no change, not even of UUIDs.
    """

    def check(*words: str) -> None:
        before = hopper.gpus()
        said = apply(hopper, WHOLE).failed()
        assert [word for word in words if word not in said] == [], said
        assert "nothing was changed" in said
        assert hopper.gpus() == before

    return check


# tests/integration/modules/test_site_on_busy.py also tests that a busy host refuses a run, or waits and continues.
@pytest.mark.thorough
def test_busy_host_refuses_the_run_or_waits_and_continues(site, hopper):
    before = hopper.gpus()
    with hopper.gpu_job(7, start=4) as job:
        said = site("hopper", gpu_layout=WHOLE).failed("hopper")
        words = ["gpu 7 (GPU-", "): 3g.40gb@4", f"pid {job.pid} ", "sleep 600", f"user {USER}", f"{job.unit}.service"]
        assert [word for word in [*words, "nothing was changed"] if word not in said] == [], said
        assert hopper.gpus() == before
        assert hopper.runs(job)
        run = site("hopper", gpu_layout=WHOLE, gpu_layout_on_busy="wait", gpu_layout_busy_poll=1)
        run.wait_for("FAILED - RETRYING")
        run.wait_for(f"pid {job.pid} ")
        assert hopper.gpus() == before
    run.succeeded()
    assert profiles(hopper, 7) == ["7g.80gb"] and profiles(hopper, 0) == ["1g.10gb"] * 7


def test_busy_instance_blocks_its_removal(refused, apply, hopper):
    with hopper.gpu_job(7, start=4) as job:
        refused("gpu 7 (GPU-", "): 3g.40gb@4", f"pid {job.pid} ", "sleep 600", f"user {USER}", f"{job.unit}.service")
        assert hopper.runs(job)
    # As a control, the same change succeeds without the job.
    apply(hopper, WHOLE).succeeded()
    assert profiles(hopper, 7) == ["7g.80gb"] and profiles(hopper, 0) == ["1g.10gb"] * 7


def test_open_device_node_counts_as_holder_without_nvml_process(refused, hopper):
    with hopper.handle("/dev/nvidia7") as job:
        refused("gpu 7 (GPU-", "): 3g.40gb@0", "): 3g.40gb@4", f"pid {job.pid} ", f"user {USER}", "node open")


def test_container_with_gpu_holds_it_unopened(refused, hopper):
    with hopper.container("nvidia7") as job:
        refused("gpu 7 (GPU-", "): 3g.40gb@0", f"{job.unit}.service", f"pid {job.pid}: sleep 600", "given the device")


def test_holders_that_can_stay_are_kept(apply, hopper):
    """Keep the busy half of a GPU, for each of the two halves.

    A plan that ignores holders would always keep the same half.
    """
    (zero, left), (one, right), (seven, handled) = (hopper.instance(*at) for at in ((0, 0), (1, 4), (7, 4)))
    # The chapter on device nodes in NVIDIA's MIG User Guide explains the numbers of instances' capability nodes.
    capability = f"/dev/nvidia-caps/nvidia-cap{3 + 135 * 7 + 9 * seven}"
    with contextlib.ExitStack() as stack:
        holders = [
            stack.enter_context(holder)
            for holder in (
                hopper.gpu_job(0, start=0),
                hopper.gpu_job(1, start=4),
                hopper.handle(capability),
                hopper.handle("/dev/nvidia7", program="nvidia-persistenced"),
            )
        ]
        apply(hopper, "second").succeeded()
        assert hopper.not_as("second") == []
        kept = [hopper.instance(0, 0), hopper.instance(1, 4), hopper.instance(7, 4)]
        assert kept == [(zero, left), (one, right), (seven, handled)]
        assert all(hopper.runs(holder) for holder in holders)


def test_timeout_of_waiting_names_the_job(apply, hopper):
    before = hopper.gpus()
    with hopper.gpu_job(7, start=4) as job:
        said = apply(hopper, WHOLE, on_busy="wait", busy_timeout=2).failed()
        assert f"pid {job.pid} " in said and f"user {USER}" in said, said
        assert hopper.runs(job)
    assert hopper.gpus() == before


def test_force_ends_only_blocking_processes(apply, hopper):
    kept = hopper.instance(0, 0)
    with hopper.gpu_job(7, start=4) as doomed, hopper.gpu_job(0, start=0) as spared, hopper.gpu_job(
        1, start=0
    ) as apart:
        layout = [hopper.variables["layouts"]["second"][0] | {"gpus": [0]}, WHOLE[1]]
        apply(hopper, layout, on_busy="force").succeeded()
        assert not hopper.runs(doomed)
        assert hopper.runs(spared) and hopper.runs(apart)
    assert profiles(hopper, 7) == ["7g.80gb"]
    assert hopper.instance(0, 0) == kept and len(hopper.gpus()[0].instances) == 3
