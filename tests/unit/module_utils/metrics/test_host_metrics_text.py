# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the metrics of a host's layout with Prometheus's parser."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import KINDS
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics.drift import GpuDrift
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics.text import (
    Family,
    Sample,
    Snapshot,
    families,
    render,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.model import GpuInstance, Holder, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import metrics as mps_metrics
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import MpsDaemon, MpsPlace, MpsSeen
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import metrics as vgpu_metrics
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.counters import Counters
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import (
    VgpuSeat,
    VgpuSeen,
    VgpuTenant,
    VgpuUsage,
    VgpuUse,
)

GIB = 1 << 30
WHOLE, SPLIT = assumed_gpus(["H100-80GB", "H100-80GB"])
INSTANCES = (GpuInstance(3, "1g.10gb", Placement(0, 1)), GpuInstance(2, "3g.40gb", Placement(4, 4)))
SPLIT = dataclasses.replace(SPLIT, mig=dataclasses.replace(SPLIT.mig, enabled=True, pending=True, instances=INSTANCES))
GPUS = (WHOLE, SPLIT)


def told(**seen):
    """Return {name: {labels: value}} as Prometheus parses the text.

    Labels are a sorted tuple. Labels with an empty value are left out.
    """
    daemons, tenants, deaths = seen.pop("daemons", ()), seen.pop("tenants", ()), seen.pop("deaths", {})
    gpus, counters = {gpu.uuid: gpu for gpu in seen.get("gpus", ())}, seen.pop("counters", {})
    seen["service_families"] = (
        *mps_metrics.families(daemons, gpus, deaths),
        *vgpu_metrics.families(tenants, gpus, counters),
    )
    found = {}
    for family in text_string_to_metric_families(render(families(Snapshot(1795000000.25, **seen)))):
        assert family.documentation and family.type in ("gauge", "counter", "histogram"), family
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if v))
            values = found.setdefault(sample.name, {})
            assert labels not in values, "told twice"
            values[labels] = sample.value
    return found


def labels(gpu, **more):
    return tuple(sorted({"gpu_uuid": gpu.uuid, "gpu_index": str(gpu.index), **more}.items()))


def test_failed_check_exports_only_its_failure():
    assert told(problems=(FleetError("here", "broken"),)) == {
        "openfleet_layout_check_success": {(): 0},
        "openfleet_layout_check_timestamp_seconds": {(): 1795000000.25},
    }


def test_check_during_a_change_is_no_success():
    assert told(changing=FleetError("this host", "another run"))["openfleet_layout_check_success"] == {(): 0}
    assert told()["openfleet_layout_check_success"] == {(): 1}


def test_differing_gpu_has_drifted():
    found = told(gpus=GPUS, standing=(GpuDrift(WHOLE.uuid, "mps"), GpuDrift(SPLIT.uuid, "mig", ("create", "destroy"))))
    assert found["openfleet_layout_drift"] == {labels(WHOLE): 0, labels(SPLIT): 1}
    assert found["openfleet_layout_differences"] == {labels(WHOLE): 0, labels(SPLIT): 2}
    assert found["openfleet_layout_sharing_info"] == {labels(WHOLE, sharing="mps"): 1, labels(SPLIT, sharing="mig"): 1}


def test_holders_count_by_gpu_or_instance_and_kind():
    holders = [
        Holder(WHOLE.uuid, None, "device_handle", "a"),
        Holder(WHOLE.uuid, None, "device_handle", "b"),
        Holder(SPLIT.uuid, 2, "process", "c"),
        Holder(SPLIT.uuid, None, "slurm", "d"),
        # This holder uses an instance that does not exist any more.
        Holder(SPLIT.uuid, 9, "process", "e"),
    ]
    whole, split = {"model": WHOLE.name}, {"model": SPLIT.name}
    small = dict(split, mig_profile="1g.10gb", mig_instance="3")
    half = dict(split, mig_profile="3g.40gb", mig_instance="2")
    assert told(gpus=GPUS, holders=tuple(holders))["openfleet_holders"] == {
        labels(WHOLE, kind="process", **whole): 0,
        labels(WHOLE, kind="device_handle", **whole): 2,
        labels(SPLIT, kind="process", **split): 1,
        labels(SPLIT, kind="slurm", **split): 1,
        labels(SPLIT, kind="process", **small): 0,
        labels(SPLIT, kind="process", **half): 1,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_holder_is_exported(kind):
    found = told(gpus=GPUS, holders=(Holder(WHOLE.uuid, None, kind, "a"),))["openfleet_holders"]
    assert found[labels(WHOLE, kind=kind, model=WHOLE.name)] == 1
    assert labels(WHOLE, kind="process", model=WHOLE.name) in found


def test_cpu_time_is_of_processes_that_use_the_gpu():
    def holder(uuid, place, kind, pid, seconds, unit=None, job=None):
        return Holder(uuid, place, kind, "a", pid, unit_or_container=unit, job=job, cpu_seconds=seconds)

    holders = (
        holder(WHOLE.uuid, None, "process", 7, 100.25, "train.service"),
        holder(WHOLE.uuid, None, "mps", 8, 20.5),
        # This data loader only has the node open, but is in the unit of a GPU process. So its time counts for the unit.
        holder(WHOLE.uuid, None, "device_handle", 9, 3.0, "train.service"),
        # These processes only have the node open, and are in another or an unknown unit. So their time does not count.
        holder(WHOLE.uuid, None, "device_handle", 10, 5000.0, "other.service"),
        holder(WHOLE.uuid, None, "device_handle", 11, 5000.0),
        # A holder that is a container or a job has no process, and an ended process has no CPU time.
        Holder(WHOLE.uuid, None, "container", "b", unit_or_container="train.service"),
        holder(WHOLE.uuid, None, "process", 12, None),
        holder(SPLIT.uuid, 2, "process", 13, 1.5, job="4711"),
        holder(SPLIT.uuid, 2, "device_handle", 14, 0.5, job="4711"),
        # This process may use any instance of the GPU, so each instance gets its time.
        holder(SPLIT.uuid, None, "process", 15, 64.0),
    )
    split = {"model": SPLIT.name}
    assert told(gpus=GPUS, holders=holders)["openfleet_holders_cpu_seconds_total"] == {
        labels(WHOLE, model=WHOLE.name): 123.75,
        labels(SPLIT, mig_profile="1g.10gb", mig_instance="3", **split): 64.0,
        labels(SPLIT, mig_profile="3g.40gb", mig_instance="2", **split): 66.0,
    }
    assert told(gpus=GPUS[:1])["openfleet_holders_cpu_seconds_total"] == {labels(WHOLE, model=WHOLE.name): 0}


def test_daemon_is_up_on_each_of_its_devices():
    place = MpsPlace(SPLIT.uuid, "3g.40gb", 4)
    up = MpsSeen(MpsDaemon("up", (MpsPlace(WHOLE.uuid), MpsPlace("GPU-lost")), 2, 50), (), True, 7, (), (), 50.0)
    silent = MpsSeen(MpsDaemon("silent", (place,), 2, 50), (), True, 8, problem="it does not answer")
    down = MpsSeen(MpsDaemon("down", (place,), 2, 50), (), False, problem="it is not running")
    coming = MpsSeen(MpsDaemon("coming", (place,), 2, 50), (), False)
    assert told(gpus=GPUS, daemons=(up, silent, down, coming))["openfleet_mps_daemon_up"] == {
        labels(WHOLE, daemon="up"): 1,
        (("daemon", "up"), ("gpu_uuid", "GPU-lost")): 1,
        labels(SPLIT, daemon="silent", mig_instance="2"): 0,
        labels(SPLIT, daemon="down", mig_instance="2"): 0,
    }


def test_deaths_of_servers_count_on_each_device_of_their_daemon():
    whole = MpsSeen(MpsDaemon("whole", (MpsPlace(WHOLE.uuid),), 2, 50), (), True, 7, (), (), 50.0)
    part = MpsSeen(
        MpsDaemon("part", (MpsPlace(SPLIT.uuid, "3g.40gb", 4),), 2, 50), (), False, problem="it is not running"
    )
    unread = MpsSeen(MpsDaemon("unread", (MpsPlace(WHOLE.uuid),), 2, 50), (), True, 7, (), (), 50.0)
    found = told(gpus=GPUS, daemons=(whole, part, unread), deaths={"whole": 3, "part": 0})
    assert found["openfleet_mps_server_deaths_total"] == {
        labels(WHOLE, daemon="whole"): 3,
        labels(SPLIT, daemon="part", mig_instance="2"): 0,
    }


def test_tenant_has_quota_and_usage():
    seats = (VgpuSeat(WHOLE.uuid, 0), VgpuSeat(SPLIT.uuid, 1))
    usage = VgpuUsage(1, (VgpuUse(WHOLE.uuid, 3 * GIB, 4 * GIB, 17),))
    at_work = VgpuSeen(VgpuTenant("at-work", 8 * GIB, 35, seats), usage=usage)
    by_mps = VgpuSeen(VgpuTenant("by-mps", GIB, 5, seats[:1], provider="mps"))
    found = told(gpus=GPUS, tenants=(at_work, by_mps))
    here, there = labels(WHOLE, tenant="at-work"), labels(SPLIT, tenant="at-work")
    other = labels(WHOLE, tenant="by-mps")
    assert found["openfleet_tenant_memory_limit_bytes"] == {here: 8 * GIB, there: 8 * GIB, other: GIB}
    assert found["openfleet_tenant_sm_limit_ratio"] == {here: 0.35, there: 0.35, other: 0.05}
    # The driver does not report how much memory an MPS tenant uses.
    assert found["openfleet_tenant_memory_used_bytes"] == {here: 3 * GIB, there: 0}
    assert found["openfleet_tenant_denied_total"] == {here: 17, there: 0}


def test_colocated_tenants_have_waits_and_gpu_time():
    def colocated(name, priority, seat):
        return VgpuSeen(VgpuTenant(name, GIB, 100, (VgpuSeat(WHOLE.uuid, seat),), "colocate", priority))

    more = ((0.001, 40), (0.002, 30), (0.005, 20), (0.01, 10), (0.02, 5), (0.05, 0))
    counters = {
        (WHOLE.uuid, 0): Counters(4 * 10**9, 0, 0, 100, 1500 * 10**6, more),
        (WHOLE.uuid, 1): Counters(7 * 10**9, 0, 12, 0, 0, tuple((seconds, 0) for seconds, _ in more)),
        # The tenant `full` has a share of 100 percent and is not measured. The tenant `late` never ran with the agent.
        (WHOLE.uuid, 2): Counters(0, 0, 0, 0, 0, ()),
    }
    full = VgpuSeen(VgpuTenant("full", GIB, 100, (VgpuSeat(WHOLE.uuid, 2),)))
    late = colocated("late", 1, 3)
    found = told(gpus=GPUS, tenants=(colocated("on", 0, 0), colocated("off", 1, 1), full, late), counters=counters)
    online, offline = (labels(WHOLE, tenant=name, latency=f"{name}line") for name in ("on", "off"))
    assert found["openfleet_tenant_gpu_seconds_total"] == {online: 4, offline: 7}
    assert found["openfleet_tenant_gave_way_total"] == {offline: 12}
    assert found["openfleet_tenant_wait_seconds_count"] == {online: 100}
    assert found["openfleet_tenant_wait_seconds_sum"] == {online: 1.5}
    buckets = {dict(key)["le"]: value for key, value in found["openfleet_tenant_wait_seconds_bucket"].items()}
    assert buckets == {"0.001": 60, "0.002": 70, "0.005": 80, "0.01": 90, "0.02": 95, "0.05": 100, "+Inf": 100}


@pytest.mark.parametrize("text", ['a "b"', "a\\b", "a\\nb", "a\nb", 'end\\"', "größer", "{}=,#"])
def test_labels_and_help_texts_are_escaped(text):
    family = Family("odd", "gauge", text.replace('"', ""), (Sample(1, {"label": text, "other": "x"}),))
    (read,) = text_string_to_metric_families(render([family]))
    assert read.samples[0].labels == {"label": text, "other": "x"}
    assert read.documentation == text.replace('"', "")


def test_numbers_keep_their_precision():
    values = (2**53 - 1, 1795000000.123456, 0.07, 0)
    family = Family("odd", "gauge", "help", tuple(Sample(value, {"n": str(n)}) for n, value in enumerate(values)))
    (read,) = text_string_to_metric_families(render([family]))
    assert tuple(sample.value for sample in read.samples) == values
