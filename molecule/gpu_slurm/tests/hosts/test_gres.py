# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which devices jobs get, and which jobs end when the node's GRES change."""

from __future__ import annotations

import pytest
from slurm_host import MIXED, SEVEN, SHARED, SLICED, THREE, layout


def test_jobs_get_the_devices_of_their_type(host):
    found = host.reset(layout(MIXED))
    kinds = host.types()
    assert found["gres"] == "gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3"
    given = []
    for gres, kind in [
        ("gpu:1g.10gb:1", "1g.10gb"),
        ("gpu:h100:2", "h100"),
        ("gpu:3g.40gb:1", "3g.40gb"),
        ("gpu:1g.10gb:1", "1g.10gb"),
    ]:
        _job, environment = host.submit(gres)
        numbers = [int(number) for number in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        assert [kinds[found["devices"][number]] for number in numbers] == [kind] * len(numbers), gres
        given += numbers
    assert len(given) == len(set(given)) == 5
    assert host.node()["Gres"].partition("(")[0] == found["gres"]


def test_jobs_on_other_gpus_survive_a_change_in_place(host):
    host.reset(layout(MIXED))
    (job, environment), (second, _environment) = host.submit("gpu:h100:1"), host.submit("gpu:h100:1")
    planned = host.mapping(layout(THREE))
    assert (planned["change"]["way"], planned["change"]["jobs"]) == ("in place", [])
    assert "total 6): in place" in planned["plan"][0]
    host.apply(layout(THREE))
    host.configure(host.mapping(layout(THREE)))
    host.in_service()
    new, of_new = host.submit("gpu:1g.10gb:3")
    assert [host.state(one) for one in (job, second, new)] == ["JobState=RUNNING Restarts=0"] * 3
    found = host.mapping(layout(THREE))
    assert found["change"]["way"] == "nothing"
    kinds = host.types()
    assert [kinds[found["devices"][int(number)]] for number in of_new["CUDA_VISIBLE_DEVICES"].split(",")] == [
        "1g.10gb"
    ] * 3
    assert kinds[found["devices"][int(environment["CUDA_VISIBLE_DEVICES"])]] == "h100"


def test_job_on_a_changed_gpu_is_named(host):
    host.reset(layout(MIXED))
    on_mig, _environment = host.submit("gpu:3g.40gb:1")
    # The change keeps the instances that these jobs use.
    for gres in ("gpu:1g.10gb:1", "gpu:h100:1"):
        host.submit(gres)
    planned = host.mapping(layout(THREE))
    assert (planned["change"]["way"], planned["change"]["jobs"]) == ("affected jobs", [on_mig])
    assert planned["plan"][0].endswith(f"jobs on changed GPUs must end first: {on_mig}")


@pytest.mark.thorough
def test_changed_total_ends_every_gpu_job(host):
    """Check that the plan names the jobs that Slurm ends."""
    host.reset(layout(MIXED))
    job, _environment = host.submit("gpu:h100:1")
    planned = host.mapping(layout(SEVEN))
    assert (planned["change"]["way"], planned["change"]["jobs"]) == ("all jobs", [job])
    assert f"total 6 -> 10): all GPU jobs must end first: {job}" in planned["plan"][0]
    host.apply(layout(SEVEN))
    host.configure(host.mapping(layout(SEVEN)))
    # Slurm requeued the job although its GPU did not change.
    host.wait_until(
        f"! scontrol show job {job} | grep -q 'JobState=RUNNING.*' || scontrol show job {job} | grep -q Restarts=1"
    )
    assert host.state(job) != "JobState=RUNNING Restarts=0"


def test_jobs_share_a_gpu_by_shards(host):
    found = host.reset(layout(SHARED, SLICED), "gpu,shard")
    assert found["gres"] == "gpu:h100:4,shard:4"
    first, second = host.submit("shard:2")[1], host.submit("shard:1")[1]
    assert first["CUDA_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "1"
    assert host.mapping(layout(SHARED, SLICED))["change"]["way"] == "nothing"
    whole, environment = host.submit("gpu:h100:3")
    assert "1" not in environment["CUDA_VISIBLE_DEVICES"].split(",")
    assert host.state(whole) == "JobState=RUNNING Restarts=0"


def test_jobs_get_a_share_of_a_gpu_with_mps(host):
    daemon = {"sharing": "mps", "mps": {"name": "inference", "clients": 4, "active_thread_percentage": 25}}
    # Slurm does not need the MPS daemon, so the test does not apply the layout.
    host.apply(layout())
    found = host.reset(layout(SHARED, SHARED, daemon), "gpu,mps", apply=False)
    assert found["gres"] == "gpu:h100:3,gpu:h100_mps:1,mps:100"
    environment = host.submit("mps:25")[1]
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    gpus = host.module("gpu_info", telemetry=False, holders=False)["gpus"]
    assert found["devices"][int(environment["CUDA_VISIBLE_DEVICES"])] == gpus[2]["uuid"]


@pytest.mark.thorough
def test_shards_in_a_cluster_with_mps_are_refused(host):
    """Refuse shards in a cluster with MPS, because a job on a shard gets no device."""
    host.reset(layout(SHARED, SLICED), "gpu,shard")
    host.ask("sed -i 's/^GresTypes=.*/GresTypes=gpu,shard,mps/' /etc/slurm/slurm.conf")
    host.restart()
    host.in_service()
    assert "Remove mps from GresTypes" in host.mapping(layout(SHARED, SLICED))["problems"][0]
    environment = host.submit("shard:1")[1]
    assert environment["SLURM_SHARDS_ON_NODE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environment
