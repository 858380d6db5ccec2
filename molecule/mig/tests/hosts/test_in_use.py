# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that somebody holds: the run goes around them; where it cannot it is refused whole, waits, or ends them, as asked."""

from __future__ import annotations

import contextlib

from gpu_hosts import USER

#: GPU 7 as one instance, for which both that are there must go, and GPU 0 changed beside it.
WHOLE = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]},
    {"gpus": [7], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]},
]


def profiles(host, gpu: int) -> list[str]:
    return sorted(instance.profile for instance in host.gpus()[gpu].instances.values())


def refused(site, host, *words) -> None:
    """A run to WHOLE is refused with these words, and nvidia-smi sees nothing changed, down to the UUIDs."""
    before = host.gpus()
    said = site("hopper", gpu_layout=WHOLE).failed("hopper")
    assert [word for word in words if word not in said] == [], said
    assert "nothing was changed" in said
    assert host.gpus() == before


def test_a_busy_instance_that_would_have_to_go_refuses_the_run(site, hopper):
    with hopper.gpu_job(7, start=4) as job:
        refused(site, hopper, "gpu 7: 3g.40gb@4", f"pid {job.pid} ", "sleep 600", f"user {USER}", f"{job.unit}.service")
        assert hopper.runs(job)
    # The control: the same run, with the job gone.
    site("hopper", gpu_layout=WHOLE).succeeded()
    assert profiles(hopper, 7) == ["7g.80gb"] and profiles(hopper, 0) == ["1g.10gb"] * 7


def test_an_open_device_node_holds_without_a_process_in_nvml(site, hopper):
    with hopper.handle("/dev/nvidia7") as job:
        refused(site, hopper, "gpu 7: 3g.40gb@0", "gpu 7: 3g.40gb@4", f"pid {job.pid} ", f"user {USER}", "node open")


def test_a_container_that_was_given_a_gpu_holds_it_unopened(site, hopper):
    with hopper.container("nvidia7") as job:
        refused(
            site, hopper, "gpu 7: 3g.40gb@0", f"{job.unit}.service", f"pid {job.pid}: sleep 600", "given the device"
        )


def test_whoever_can_stay_stays(site, hopper):
    """Either half of a GPU can be the one that stays; a plan that did not look would keep the same one everywhere."""
    (zero, left), (one, right), (seven, handled) = (hopper.instance(*at) for at in ((0, 0), (1, 4), (7, 4)))
    # The capability nodes of instances: see the chapter on device nodes of NVIDIA's MIG user guide.
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
        site("hopper", layout_stage="second").succeeded()
        assert hopper.not_as("second") == []
        kept = [hopper.instance(0, 0), hopper.instance(1, 4), hopper.instance(7, 4)]
        assert kept == [(zero, left), (one, right), (seven, handled)]
        assert all(hopper.runs(holder) for holder in holders)


def test_a_run_that_waits_shows_for_whom_and_goes_on_by_itself(site, hopper):
    before = hopper.gpus()
    with hopper.gpu_job(7, start=4) as job:
        run = site("hopper", gpu_layout=WHOLE, gpu_layout_on_busy="wait", gpu_layout_busy_poll=1)
        run.wait_for("FAILED - RETRYING")
        run.wait_for(f"pid {job.pid} ")
        assert hopper.gpus() == before
    run.succeeded()
    assert profiles(hopper, 7) == ["7g.80gb"]


def test_a_run_that_waited_in_vain_says_for_whom(site, hopper):
    before = hopper.gpus()
    with hopper.gpu_job(7, start=4) as job:
        waits = {"gpu_layout_on_busy": "wait", "gpu_layout_busy_poll": 1, "gpu_layout_busy_timeout": 2}
        said = site("hopper", gpu_layout=WHOLE, **waits).failed("hopper")
        assert f"pid {job.pid} " in said and f"user {USER}" in said, said
        assert hopper.runs(job)
    assert hopper.gpus() == before


def test_force_ends_who_is_in_the_way_and_nobody_else(site, hopper):
    kept = hopper.instance(0, 0)
    with hopper.gpu_job(7, start=4) as doomed, hopper.gpu_job(0, start=0) as spared, hopper.gpu_job(
        1, start=0
    ) as apart:
        layout = [hopper.variables["layouts"]["second"][0] | {"gpus": [0]}, WHOLE[1]]
        site("hopper", gpu_layout=layout, gpu_layout_on_busy="force").succeeded()
        assert not hopper.runs(doomed)
        assert hopper.runs(spared) and hopper.runs(apart)
    assert profiles(hopper, 7) == ["7g.80gb"]
    assert hopper.instance(0, 0) == kept and len(hopper.gpus()[0].instances) == 3
