# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the roll-ups that an audit reads, with promtool.

A sample covers five minutes, and each GPU has one series even if several exporters report it.
"""

from __future__ import annotations

import subprocess

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import series
from tests.audit.roll_up_checks import GPU, NANS, ROLL_UPS, SHORT, check
from tests.monitoring.rule_files import promtool_test, rules_of, tool

#: Input values of each minute from minute 0 on, and the recorded value at minute 5. Some releases of Prometheus count
#: minute 0 too. The results are the same.
CASES = {
    "gpu:memory_used_bytes:max5m": ("gpu:memory_used_bytes", "10 20 70 20 10 10", 70),
    "gpu:busy_ratio:avg5m": ("gpu:busy_ratio", "0.5 0 0.5 1 0.25 0.75", 0.5),
    "gpu:compute_active_ratio:avg5m": ("gpu:compute_active_ratio", "0.5 0 0.5 1 0.25 0.75", 0.5),
    "gpu:memory_bandwidth_active_ratio:avg5m": ("gpu:memory_bandwidth_active_ratio", "0.5 0 0.5 1 0.25 0.75", 0.5),
    "gpu:tensor_active_ratio:avg5m": ("gpu:tensor_active_ratio", "0.5 0 0.5 1 0.25 0.75", 0.5),
    "gpu:processes:max5m": ("gpu:processes", "0 0 3 0 0 0", 3),
    "gpu:power_watts:avg5m": ("gpu:power_watts", "200 100 200 300 200 200", 200),
}
#: Roll-ups from several series. Each has its own test.
MADE_OF_SEVERAL = {
    "gpu:tenant_memory_used_bytes:max5m",
    "gpu:held:avg5m",
    "gpu:throttled:avg5m",
    series.ACTIVITY,
    series.DEVICE_ACTIVITY,
    series.UNREPORTED_WORK,
    series.UNEXPLAINED_BUSY,
    series.STALLED,
    "gpu:power_watts:avg1h",
    "gpu:power_watts:min7d",
}


def test_each_keeps_what_the_audit_asks_of_it(tmp_path):
    series = [("%s{%s}" % (source, GPU), values) for source, values, _value in CASES.values()]
    expected = {name: [(name + SHORT, value)] for name, (_source, _values, value) in CASES.items()}
    check(tmp_path, series, expected)


def test_the_lowest_hour_is_that_of_a_week(tmp_path):
    hours = ["_", "300", "80", *["200"] * 175]
    test = {
        "input_series": [{"series": "gpu:power_watts:avg1h{%s}" % GPU, "values": " ".join(hours)}],
        "promql_expr_test": [
            {
                "expr": "last_over_time(gpu:power_watts:min7d[2h])",
                "eval_time": when,
                "exp_samples": [{"labels": "gpu:power_watts:min7d" + SHORT, "value": value}],
            }
            for when, value in (("1h", 300), ("3h", 80), ("169h", 80), ("174h", 200))
        ],
    }
    assert promtool_test(tmp_path, [ROLL_UPS], [test], interval=3600) == ""


def test_an_hour_is_an_average_of_what_was_told(tmp_path):
    given = [
        ("gpu:power_watts{%s}" % GPU, "_x30 100x15 200x15"),
        ('gpu:power_watts{host="a",gpu_uuid="GPU-2"}', "0x60"),
    ]
    # Averages over five minutes, which the rule calculates every minute. A GPU that reports 0 W has no valid value.
    check(
        tmp_path,
        given,
        {"count(gpu:power_watts:avg1h)": [("{}", 1)], "count(gpu:power_watts:avg1h > 125 < 175)": [("{}", 1)]},
        "60m",
    )


def test_nan_is_no_sample_of_a_roll_up(tmp_path):
    given = [("%s{%s}" % (source, GPU), NANS) for source, _values, _value in CASES.values()]
    check(tmp_path, given, {name: [] for name in CASES})


def test_two_exporters_and_two_workloads_make_one_series(tmp_path):
    source = "gpu:memory_used_bytes{%s,%%s}" % GPU
    series = [
        (source % 'job="a",workload="x"', "10x6"),
        (source % 'job="a",workload="y"', "10x6"),
        (source % 'job="b"', "12x6"),
    ]
    check(tmp_path, series, {"gpu:memory_used_bytes:max5m": [("gpu:memory_used_bytes:max5m" + SHORT, 12)]})


def test_instances_and_tenants_stay_apart(tmp_path):
    name = "gpu:tenant_memory_used_bytes"
    series = [('%s{%s,tenant="%s"}' % (name, GPU, tenant), "%dx6" % value) for tenant, value in (("a", 1), ("b", 2))]
    series += [('gpu:busy_ratio{%s,mig_instance="%d"}' % (GPU, n), "0.%dx6" % n) for n in (1, 2)]
    check(
        tmp_path,
        series,
        {
            name + ":max5m": [
                ('%s:max5m{gpu_uuid="GPU-1",host="a",tenant="%s"}' % (name, t), v) for t, v in (("a", 1), ("b", 2))
            ],
            "gpu:busy_ratio:avg5m": [
                ('gpu:busy_ratio:avg5m{gpu_uuid="GPU-1",host="a",mig_instance="%d"}' % n, n / 10) for n in (1, 2)
            ],
        },
    )


def test_held_is_by_each_holder_whatever_their_number(tmp_path):
    series = [
        ('gpu:held{%s,kind="container"}' % GPU, "1x6"),
        ('gpu:held{%s,kind="slurm"}' % GPU, "0x6"),
        ("gpu:processes{%s}" % GPU, "2x6"),
        ('gpu:processes{host="a",gpu_uuid="GPU-2"}', "0x6"),
        # The series has values from minute 4 on, or for half of the time.
        ('gpu:processes{host="a",gpu_uuid="GPU-3"}', "_ 0 0 0 1 1"),
        ('gpu:held{host="a",gpu_uuid="GPU-3",kind="slurm"}', "_ 0.1 0.1 0.1 0.1 0.1"),
    ]
    name = "gpu:held:avg5m"
    others = [(name + '{gpu_uuid="GPU-%d",host="a"}' % gpu, value) for gpu, value in ((2, 0), (3, 0.5))]
    check(tmp_path, series, {name: [(name + SHORT, 1), *others]})


def test_throttled_is_kept_where_it_was(tmp_path):
    reasons = {"hot": "_ 0 1 0 1 0", "cap": "0x6"}
    series = [('gpu:throttled{%s,reason="%s"}' % (GPU, reason), values) for reason, values in reasons.items()]
    name = "gpu:throttled:avg5m"
    check(tmp_path, series, {name: [(name + '{gpu_uuid="GPU-1",host="a",reason="hot"}', 0.4)]})


def test_what_is_not_reported_has_no_roll_up(tmp_path):
    check(
        tmp_path,
        [("gpu:busy_ratio{%s}" % GPU, "NaN NaN NaN NaN NaN NaN")],
        {'{__name__=~"gpu:(memory|tensor|held).*5m"}': []},
    )


#: Three five-minute values at minutes 5, 10 and 15, and their recorded result.
LONG_CASES = {
    "gpu:memory_used_bytes:max15m": ("gpu:memory_used_bytes:max5m", "10 40 20", 40),
    "gpu:compute_active_ratio:avg15m": ("gpu:compute_active_ratio:avg5m", "0 1 0.5", 0.5),
    "gpu:compute_active_ratio:max15m": ("gpu:compute_active_ratio:avg5m", "0 1 0.5", 1),
    "gpu:memory_bandwidth_active_ratio:avg15m": ("gpu:memory_bandwidth_active_ratio:avg5m", "0 1 0.5", 0.5),
    "gpu:tensor_active_ratio:avg15m": ("gpu:tensor_active_ratio:avg5m", "0 1 0.5", 0.5),
    "gpu:processes:max15m": ("gpu:processes:max5m", "0 2 1", 2),
}


def test_a_quarter_of_an_hour_keeps_average_and_peak(tmp_path):
    series = {source: values for source, values, _value in LONG_CASES.values()}
    test = {
        "interval": "5m",
        # Minute 0 has no value, because some releases of Prometheus would count this minute.
        "input_series": [
            {"series": "%s{%s}" % (name, GPU), "values": "_ " + values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {"expr": name, "eval_time": "15m", "exp_samples": [{"labels": name + SHORT, "value": value}]}
            for name, (_source, _values, value) in LONG_CASES.items()
        ],
    }
    assert promtool_test(tmp_path, [ROLL_UPS], [test]) == ""


def test_the_audit_reads_roll_ups_that_there_are():
    recorded = {rule.name for rule in rules_of([ROLL_UPS])}
    asked = (*series.SERIES.values(), series.TENANT)
    wanted = {name for one in asked for name in (one.roll_up, one.long, one.peaks)} | {
        series.HELD,
        series.THROTTLED,
        series.ACTIVITY,
        series.DEVICE_ACTIVITY,
        series.UNREPORTED_WORK,
        series.UNEXPLAINED_BUSY,
        series.STALLED,
    }
    # The audit reads no peaks of memory bandwidth and tensor cores, so no roll-up has them.
    wanted -= {"", *(one.peaks for one in asked if not {"p99", "max"} & set(one.figures))}
    assert wanted <= recorded
    # Every roll-up has a case in this file.
    assert recorded - set(CASES) - set(LONG_CASES) == MADE_OF_SEVERAL
    subprocess.run([tool("promtool"), "check", "rules", str(ROLL_UPS)], check=True, stdout=subprocess.DEVNULL)
