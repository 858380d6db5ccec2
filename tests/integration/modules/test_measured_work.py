# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure GPUs' and instances' work with the simulated NVML."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.integration.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.core, pytest.mark.host_python]

HALVES = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.%dgb", "count": 2}]}]
MEASURE = """
import dataclasses, json, sys
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.bounded_session import BoundedSession
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.work import measure
places, seconds = json.loads(sys.argv[1])
with BoundedSession() as session:
    work = session.perform(measure, [tuple(place) for place in places], seconds)
print(json.dumps([[place, dataclasses.asdict(work[tuple(place)])] for place in places if tuple(place) in work]))
"""


def work(host, *places, seconds=0.5):
    """Return each place's measured work, or None for places that gpu_info left out."""
    done = subprocess.run(
        [host.python, "-c", MEASURE, json.dumps([places, seconds])],
        env=host.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    found = {tuple(place): values for place, values in json.loads(done.stdout)}
    return [found.get(tuple(place)) for place in places]


def halves(host, model, memory_gb):
    """Split GPU 0 into two instances.

    Return its UUID and the instances' ids.
    """
    host.create([{"model": model, "count": 2}])
    layout = json.loads(json.dumps(HALVES).replace("%d", str(memory_gb)))
    host.module("layout", layout=layout)
    gpu = host.module("gpu_info")["gpus"][0]
    return gpu["uuid"], [instance["id"] for instance in gpu["mig"]["instances"]]


def test_instances_are_measured_apart(host):
    uuid, (first, second) = halves(host, "H100-80GB", 40)
    host.gpusim("load", "0/%d" % first, "--pattern", "constant", "--utilization", "0.5", "--bandwidth", "0")
    busy, idle, gone = work(host, (uuid, first), (uuid, second), (uuid, 13))
    assert busy["kernels_ratio"] == pytest.approx(0.005) and idle["kernels_ratio"] == 0
    assert busy["utilization_percent"] is idle["utilization_percent"] is None
    assert gone["kernels_ratio"] is None
    # The simulator reports no traffic and no media engines for instances.
    assert busy["pcie_bytes_per_second"] is busy["engines_ratio"] is None
    assert busy["watts"] == pytest.approx(idle["watts"], rel=0.01) and busy["watts"] > 0


def test_instances_before_hopper_are_not_measured(host):
    uuid, (first, _second) = halves(host, "A100-40GB", 20)
    (rest,) = work(host, (uuid, first))
    host.gpusim("load", "0/%d" % first, "--pattern", "constant", "--utilization", "100")
    (busy,) = work(host, (uuid, first))
    assert rest["kernels_ratio"] is busy["kernels_ratio"] is rest["utilization_percent"] is None
    assert busy["watts"] > 2 * rest["watts"] > 0


@pytest.mark.parametrize(("model", "ratio"), [("H100-80GB", 0.004), ("L4-24GB", None)])
def test_short_kernels_of_a_gpu_are_counted_where_gpm_exists(host, model, ratio):
    """Count kernels of 4 ms each second, which utilization rounds to 0."""
    host.create([{"model": model, "count": 1}])
    uuid = host.module("gpu_info")["gpus"][0]["uuid"]
    host.gpusim("load", "0", "--pattern", "constant", "--utilization", "0.4")
    found, lost = work(host, (uuid, None), ("GPU-other", None))
    assert found["utilization_percent"] == 0 and found["engines_ratio"] == 0
    assert found["kernels_ratio"] == (ratio and pytest.approx(ratio))
    assert lost is None


def test_utilization_is_the_highest_sample(host):
    host.create([{"model": "L4-24GB", "count": 2}])
    busy, idle = [gpu["uuid"] for gpu in host.module("gpu_info")["gpus"]]
    host.gpusim("load", "0", "--pattern", "constant", "--utilization", "30")
    assert [one["utilization_percent"] for one in work(host, (busy, None), (idle, None))] == [30, 0]
