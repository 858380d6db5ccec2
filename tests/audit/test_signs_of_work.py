# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which metrics count as work in five minutes of a GPU or an instance.

promtool evaluates the rules. The tests also check when metrics count as incomplete.
"""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import series
from tests.audit.roll_up_checks import GPU, NANS, SHORT, check

SIGNS = {
    "gpu:busy_ratio": "0x6",
    "gpu:compute_active_ratio": "0x6",
    "gpu:tensor_active_ratio": "0x6",
    "gpu:memory_bandwidth_active_ratio": "0x6",
    "gpu:power_watts": "70x6",
    "gpu:power_limit_watts": "700x6",
    "gpu:pcie_bytes_per_second": "130000x6",
    "gpu:nvlink_bytes_per_second": "0x6",
    "gpu:codec_busy_ratio": "0x6",
    "gpu:process_cpu_seconds_total": "5000x6",
}


@pytest.mark.parametrize(
    ("changes", "activity", "unreported"),
    [
        ({}, 130000 / 1e9, None),
        # A request of 0.4 s each minute averages less than 1 % of a minute. The second case is one request in five
        # minutes.
        ({"gpu:busy_ratio": "0.0067x6"}, 0.0335, None),
        ({"gpu:busy_ratio": "0 0 0.05 0 0 0"}, 0.25, None),
        # 0.2 % counts as work. Lower values are noise or a probe.
        ({"gpu:busy_ratio": "0.002x6"}, 0.01, None),
        ({"gpu:busy_ratio": "0.0019x6"}, 0.0095, None),
        ({"gpu:compute_active_ratio": "0.002x6"}, 0.01, None),
        ({"gpu:tensor_active_ratio": "0.002x6"}, 0.01, None),
        ({"gpu:memory_bandwidth_active_ratio": "0.002x6"}, 0.002, None),
        # The exporter's busy ratio is stuck at 0 and hides work.
        ({"gpu:compute_active_ratio": "0.4x6"}, 1, 0.4),
        ({"gpu:tensor_active_ratio": "0.15x6"}, 0.75, 0.15),
        ({"gpu:power_watts": "650x6"}, 650 / 700, 650 / 700),
        # Copies need no kernel.
        ({"gpu:memory_bandwidth_active_ratio": "0.1x6"}, 0.1, None),
        # The process loads weights, or two GPUs exchange data. 10 MB/s (PCIe) and 1 MB/s (NVLink) are work. Lower rates
        # are monitoring or waiting.
        ({"gpu:pcie_bytes_per_second": "0 0 2e10 0 0 0"}, 1, None),
        ({"gpu:pcie_bytes_per_second": "1e7x6"}, 0.01, None),
        ({"gpu:pcie_bytes_per_second": "9.9e6x6"}, 0.0099, None),
        ({"gpu:nvlink_bytes_per_second": "5e6x6"}, 0.05, None),
        ({"gpu:nvlink_bytes_per_second": "9e5x6"}, 0.009, None),
        # Only the video engines work, without a kernel. 1 % is the lowest value that NVML reports.
        ({"gpu:codec_busy_ratio": "0.3x6"}, 0.3, None),
        ({"gpu:codec_busy_ratio": "0 0 0.01 0 0 0"}, 0.01, None),
        # Half a core prepares the next step. The second case is a waiting process's CPU time.
        ({"gpu:process_cpu_seconds_total": "5000+30x6"}, 0.05, None),
        ({"gpu:process_cpu_seconds_total": "5000+3x6"}, 0.005, None),
        ({"gpu:process_cpu_seconds_total": "5000+6000x6"}, 1, None),
        # The process has filled the memory and waits. In the second case, the power is close to 45 % of the limit, as
        # on a card of 70 W.
        ({"gpu:power_watts": "130x6"}, 130000 / 1e9, None),
        ({"gpu:power_watts": "36x6", "gpu:power_limit_watts": "70x6"}, 130000 / 1e9, None),
        ({"gpu:busy_ratio": "0.9x6", "gpu:compute_active_ratio": "0.4x6"}, 1, None),
        # An unknown value is not idle time.
        ({"gpu:busy_ratio": NANS}, None, None),
        ({"gpu:busy_ratio": "_x6"}, None, None),
        ({"gpu:busy_ratio": "NaN NaN 0.1 NaN NaN NaN"}, 0.5, None),
        (
            {
                "gpu:compute_active_ratio": NANS,
                "gpu:tensor_active_ratio": "_x6",
                "gpu:power_watts": "_x6",
                "gpu:pcie_bytes_per_second": NANS,
                "gpu:nvlink_bytes_per_second": NANS,
                "gpu:codec_busy_ratio": NANS,
                "gpu:process_cpu_seconds_total": NANS,
            },
            0,
            None,
        ),
        # If a metric of the whole GPU is unknown, the other metrics still count.
        ({"gpu:pcie_bytes_per_second": NANS, "gpu:nvlink_bytes_per_second": "5e6x6"}, 0.05, None),
        ({"gpu:power_limit_watts": "_x6", "gpu:power_watts": "650x6"}, 130000 / 1e9, None),
    ],
)
def test_any_sign_of_work_is_activity(tmp_path, changes, activity, unreported):
    given = [("%s{%s}" % (name, GPU), values) for name, values in {**SIGNS, **changes}.items()]
    expected = {
        name: [] if value is None else [(name + SHORT, value)]
        for name, value in ((series.ACTIVITY, activity), (series.UNREPORTED_WORK, unreported))
    }
    check(tmp_path, given, expected)


@pytest.mark.parametrize(
    ("changes", "activity"),
    [
        ({"gpu:process_cpu_seconds_total": "5000+6000x6"}, 130000 / 1e9),
        ({"gpu:process_cpu_seconds_total": "5000+6000x6", "gpu:busy_ratio": "0.02x6"}, 0.1),
        ({"gpu:process_cpu_seconds_total": "5000+6000x6", "gpu:busy_ratio": NANS}, None),
    ],
)
def test_cpu_time_is_no_sign_that_the_device_works(tmp_path, changes, activity):
    given = [("%s{%s}" % (name, GPU), values) for name, values in {**SIGNS, **changes}.items()]
    expected = [] if activity is None else [(series.DEVICE_ACTIVITY + SHORT, activity)]
    check(tmp_path, given, {series.DEVICE_ACTIVITY: expected})


#: Two instances of a GPU that has no metrics for the whole GPU.
OWN = {"gpu:busy_ratio": "0x6", "gpu:compute_active_ratio": "0x6", "gpu:memory_bandwidth_active_ratio": "0x6"}


@pytest.mark.parametrize(
    ("first", "whole", "activity", "unreported"),
    [
        ({}, {}, (0, 0), (None, None)),
        # The metrics do not show which instance uses the power.
        ({}, {"gpu:power_watts": "630x6"}, (0.9, 0.9), (0.9, 0.9)),
        ({}, {"gpu:pcie_bytes_per_second": "2e8x6"}, (0.2, 0.2), (None, None)),
        ({}, {"gpu:nvlink_bytes_per_second": "2e7x6"}, (0.2, 0.2), (None, None)),
        ({}, {"gpu:codec_busy_ratio": "0.2x6"}, (0.2, 0.2), (None, None)),
        # An instance that works explains the power. The power shows nothing about its neighbour.
        ({"gpu:busy_ratio": "0 0 0.1 0 0 0"}, {"gpu:power_watts": "630x6"}, (0.5, 0), (None, None)),
        (
            {"gpu:memory_bandwidth_active_ratio": "0.3x6"},
            {"gpu:pcie_bytes_per_second": "2e8x6"},
            (0.3, 0),
            (None, None),
        ),
        ({"gpu:compute_active_ratio": "0.1x6"}, {"gpu:power_watts": "630x6"}, (0.5, 0), (0.1, None)),
        # A process's CPU time does not explain power.
        (
            {"gpu:process_cpu_seconds_total": "70+60x6"},
            {"gpu:power_watts": "630x6"},
            (0.9, 0.9),
            (0.9, 0.9),
        ),
        ({"gpu:process_cpu_seconds_total": "70+60x6"}, {}, (0.1, 0), (None, None)),
        # An instance without metrics is unknown.
        ({"gpu:busy_ratio": NANS}, {"gpu:power_watts": "630x6"}, (None, 0.9), (None, 0.9)),
    ],
)
def test_what_the_whole_gpu_does_is_a_sign_of_instances_that_show_none(tmp_path, first, whole, activity, unreported):
    own = {1: {**OWN, **first}, 2: OWN}
    given = [
        ('%s{%s,mig_instance="%d"}' % (name, GPU, number), values)
        for number, signs in own.items()
        for name, values in signs.items()
    ]
    # Another GPU of the host must have no effect.
    given += [('%s{host="a",gpu_uuid="GPU-2"}' % name, values) for name, values in SIGNS.items()]
    given += [
        ("%s{%s}" % (name, GPU), values)
        for name, values in {"gpu:power_watts": "70x6", "gpu:power_limit_watts": "700x6", **whole}.items()
    ]
    expected = {
        '%s{gpu_uuid="GPU-1"}' % name: [
            ('%s{gpu_uuid="GPU-1",host="a",mig_instance="%d"}' % (name, number), value)
            for number, value in enumerate(values, 1)
            if value is not None
        ]
        for name, values in ((series.ACTIVITY, activity), (series.UNREPORTED_WORK, unreported))
    }
    check(tmp_path, given, expected)


@pytest.mark.parametrize(
    ("before", "now", "limit", "told", "unreported"),
    [
        # The exporter reports an instance's utilization as 0, although the GPU uses half of its power limit and was
        # idle before: https://github.com/NVIDIA/dcgm-exporter/issues/216
        (80, 350, 700, 0.5, 0.5),
        # The same fault on a GPU that always works.
        (350, 350, 700, 0.5, 0.5),
        # 43 % of the limit, and more than 1.5 times the lowest hour's power. This is a sign of work, but not enough to
        # call a metric broken.
        (80, 300, 700, 300 / 700, None),
        (80, 200, 700, None, None),
        (250, 300, 700, None, None),
        # On a smaller card, the first value is below 45 %, the second is below 1.5 times its minimum, and 60 % is
        # sufficient by itself.
        (30, 66, 150, None, None),
        (30, 70, 150, 70 / 150, 70 / 150),
        (50, 70, 150, None, None),
        (80, 95, 150, 95 / 150, 95 / 150),
        # A card that uses half of its power limit as soon as it has a process.
        (30, 36, 70, None, None),
        # An exporter without a power limit.
        (40, 60, None, 1 - 40 / 60, None),
        (40, 59, None, None, None),
    ],
)
@pytest.mark.parametrize("instance", ["", ',mig_instance="3"'])
def test_power_counts_against_the_lowest_hour_too(tmp_path, before, now, limit, told, unreported, instance):
    given = [
        ("gpu:busy_ratio{%s%s}" % (GPU, instance), "0x75"),
        ("gpu:power_watts{%s}" % GPU, "%dx63 %dx10" % (before, now)),
    ]
    if limit:
        given.append(("gpu:power_limit_watts{%s}" % GPU, "%dx75" % limit))
    labels = '{gpu_uuid="GPU-1",host="a"%s}' % instance
    expected = {
        series.ACTIVITY: [(series.ACTIVITY + labels, told)] if told else None,
        series.UNREPORTED_WORK: [(series.UNREPORTED_WORK + labels, unreported)] if unreported else [],
    }
    if not told:
        # Without PCIe and NVLink there is no other sign of work.
        expected[series.ACTIVITY] = [(series.ACTIVITY + labels, 0)]
    check(tmp_path, given, expected, "72m")


#: Only the utilization is stuck. All other metrics are idle.
STUCK = {**SIGNS, "gpu:busy_ratio": "1x6", "gpu:sm_active_ratio": "0x6", "gpu:processes": "1x6"}
WITHOUT_SM = {**STUCK, "gpu:sm_active_ratio": "_x6", "gpu:compute_active_ratio": "1x6"}


@pytest.mark.parametrize(
    ("signs", "changes", "stuck"),
    [
        (STUCK, {}, True),
        (STUCK, {"gpu:busy_ratio": "0.99x6"}, True),
        # The utilization was below 99 % once.
        (STUCK, {"gpu:busy_ratio": "1 1 1 0.98 1 1"}, False),
        (STUCK, {"gpu:busy_ratio": NANS}, False),
        # A kernel waits on one of 160 SMs.
        (STUCK, {"gpu:sm_active_ratio": "0.006x6"}, False),
        (STUCK, {"gpu:sm_active_ratio": "0 0 0.002 0 0 0"}, False),
        # Idle SM activity is sufficient if the other metrics are idle or missing, and CPU time does not contradict it.
        (STUCK, {"gpu:power_watts": "_x6", "gpu:process_cpu_seconds_total": "_x6", "gpu:processes": "_x6"}, True),
        (STUCK, {"gpu:process_cpu_seconds_total": "5000+600x6"}, True),
        # One of the other metrics shows work.
        (STUCK, {"gpu:tensor_active_ratio": "0.002x6"}, False),
        (STUCK, {"gpu:memory_bandwidth_active_ratio": "0 0 0.01 0 0 0"}, False),
        (STUCK, {"gpu:pcie_bytes_per_second": "0 0 1e7 0 0 0"}, False),
        (STUCK, {"gpu:nvlink_bytes_per_second": "1e6x6"}, False),
        (STUCK, {"gpu:codec_busy_ratio": "0.01x6"}, False),
        (STUCK, {"gpu:power_watts": "209x6"}, True),
        (STUCK, {"gpu:power_watts": "210x6"}, False),
        (STUCK, {"gpu:power_watts": "31x6", "gpu:power_limit_watts": "70x6"}, True),
        (STUCK, {"gpu:power_watts": "32x6", "gpu:power_limit_watts": "70x6"}, False),
        # Without SM activity, the rule also needs idle power and CPU time, or no process.
        (WITHOUT_SM, {}, True),
        (WITHOUT_SM, {"gpu:sm_active_ratio": NANS}, True),
        (WITHOUT_SM, {"gpu:tensor_active_ratio": "_x6", "gpu:memory_bandwidth_active_ratio": "_x6"}, True),
        (WITHOUT_SM, {"gpu:process_cpu_seconds_total": "5000+5x6"}, True),
        (WITHOUT_SM, {"gpu:process_cpu_seconds_total": "5000+6x6"}, False),
        (WITHOUT_SM, {"gpu:process_cpu_seconds_total": "_x6"}, False),
        (WITHOUT_SM, {"gpu:process_cpu_seconds_total": "_x6", "gpu:processes": "0x6"}, True),
        (WITHOUT_SM, {"gpu:power_watts": "_x6"}, False),
        (WITHOUT_SM, {"gpu:power_limit_watts": "_x6"}, False),
        (WITHOUT_SM, {"gpu:power_watts": "210x6"}, False),
    ],
)
def test_utilisation_that_nothing_explains_is_stuck(tmp_path, signs, changes, stuck):
    given = [("%s{%s}" % (name, GPU), values) for name, values in {**signs, **changes}.items()]
    expected = [(series.UNEXPLAINED_BUSY + SHORT, float(changes.get("gpu:busy_ratio", "1x6")[:-2]))] if stuck else []
    check(tmp_path, given, {series.UNEXPLAINED_BUSY: expected})


def test_utilisation_of_an_instance_is_held_against_its_own_sms(tmp_path):
    own = {"gpu:busy_ratio": "1x6", "gpu:sm_active_ratio": "0x6"}
    given = [('%s{%s,mig_instance="1"}' % (name, GPU), values) for name, values in own.items()]
    given += [('%s{%s,mig_instance="2"}' % (name, GPU), "1x6") for name in own]
    stuck = '%s{gpu_uuid="GPU-1",host="a",mig_instance="1"}' % series.UNEXPLAINED_BUSY
    check(tmp_path, given, {series.UNEXPLAINED_BUSY: [(stuck, 1)]})
    # The neighbour's power is no sign that the metrics are right, because the power may belong to this instance.
    given += [("gpu:power_watts{%s}" % GPU, "600x6"), ("gpu:power_limit_watts{%s}" % GPU, "700x6")]
    check(tmp_path, given, {series.UNEXPLAINED_BUSY: []})


#: A hung all-reduce: a kernel waits on some SMs for another GPU.
HUNG = {**STUCK, "gpu:sm_active_ratio": "0.2x6", "gpu:compute_active_ratio": "0.2x6", "gpu:power_watts": "190x6"}


@pytest.mark.parametrize(
    ("changes", "stalled"),
    [
        ({}, True),
        ({"gpu:sm_active_ratio": "1x6"}, True),
        ({"gpu:process_cpu_seconds_total": "5000+600x6"}, True),
        ({"gpu:nvlink_bytes_per_second": "_x6", "gpu:pcie_bytes_per_second": "_x6", "gpu:power_watts": "_x6"}, True),
        ({"gpu:tensor_active_ratio": "_x6"}, False),
        ({"gpu:tensor_active_ratio": NANS}, False),
        ({"gpu:busy_ratio": "1 1 1 0.98 1 1"}, False),
        ({"gpu:tensor_active_ratio": "0 0 0.002 0 0 0"}, False),
        ({"gpu:memory_bandwidth_active_ratio": "0.01x6"}, False),
        ({"gpu:pcie_bytes_per_second": "1e7x6"}, False),
        ({"gpu:nvlink_bytes_per_second": "0 0 1e6 0 0 0"}, False),
        ({"gpu:codec_busy_ratio": "0.01x6"}, False),
        # A simulation that needs neither tensor cores nor memory uses much power.
        ({"gpu:power_watts": "314x6"}, True),
        ({"gpu:power_watts": "315x6"}, False),
        ({"gpu:power_watts": "41x6", "gpu:power_limit_watts": "70x6"}, True),
        ({"gpu:power_watts": "42x6", "gpu:power_limit_watts": "70x6"}, False),
    ],
)
def test_kernels_that_compute_and_move_nothing_are_stalled(tmp_path, changes, stalled):
    given = [("%s{%s}" % (name, GPU), values) for name, values in {**HUNG, **changes}.items()]
    expected = [(series.STALLED + SHORT, 1)] if stalled else []
    check(tmp_path, given, {series.STALLED: expected, series.UNEXPLAINED_BUSY: []})
