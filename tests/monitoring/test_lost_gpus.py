# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how long a GPU counts as lost after DCGM reported XID 79, with promtool."""

from __future__ import annotations

from tests.monitoring.rule_files import FILES, as_series, promtool_test

DCGM = FILES / "rules" / "dcgm.yml"
WEEK_SECONDS = 7 * 24 * 3600


def series(name: str, values: str, **labels: str) -> dict:
    return {"series": as_series(name, {"job": "gpu_exporter", "instance": "a:9400", **labels}), "values": values}


def gpu(name: str, values: str, **labels: str) -> dict:
    return series(name, values, host="a", UUID="u0", gpu="0", **labels)


def lost(when: dict[str, int | None]) -> list[dict]:
    """Return a promtool test that expects these values of gpu:lost for GPU u0.

    None means that the series must not exist.
    """
    return [
        {
            "expr": 'max by (gpu_uuid) (gpu:lost{gpu_uuid="u0"})',
            "eval_time": time,
            "exp_samples": [] if value is None else [{"labels": '{gpu_uuid="u0"}', "value": value}],
        }
        for time, value in when.items()
    ]


def test_it_is_lost_though_scrapes_fail_and_until_its_exporter_is_a_target_no_more(tmp_path):
    problems = promtool_test(
        tmp_path,
        [DCGM],
        [
            {
                "input_series": [
                    series("up", "1x9 0x9 1x79 stale"),
                    gpu("DCGM_FI_DEV_FB_USED", "1x4 stale"),
                    gpu("DCGM_FI_DEV_XID_ERRORS", "0x4 79 stale"),
                ],
                "promql_expr_test": lost({"4m": 0, "6m": 1, "15m": 1, "99m": 1, "155m": 1, "165m": None}),
            }
        ],
    )
    assert not problems, problems


def test_it_is_not_lost_when_another_pod_of_the_exporter_sees_it_again(tmp_path):
    problems = promtool_test(
        tmp_path,
        [DCGM],
        [
            {
                "input_series": [
                    series("up", "1x9 stale"),
                    series("up", "_x9 1x20", instance="b:9400"),
                    gpu("DCGM_FI_DEV_FB_USED", "1x4 stale"),
                    gpu("DCGM_FI_DEV_XID_ERRORS", "0x4 79 stale"),
                    gpu("DCGM_FI_DEV_FB_USED", "_x14 1x10", instance="b:9400"),
                ],
                "promql_expr_test": lost({"6m": 1, "12m": 1, "16m": 0}),
            }
        ],
    )
    assert not problems, problems


def test_after_a_week_it_is_taken_for_one_that_was_taken_out(tmp_path):
    # The rule has already recorded the time of XID 79, which lies before promtool's time 0.
    noted = series("gpu_map:dcgm_lost", f"-{WEEK_SECONDS - 600} _x60", host="a", gpu_uuid="u0", gpu_index="0")
    problems = promtool_test(
        tmp_path,
        [DCGM],
        [
            {
                "input_series": [series("up", "1x60"), noted],
                "promql_expr_test": lost({"9m": 1, "11m": None, "59m": None}),
            }
        ],
    )
    assert not problems, problems
