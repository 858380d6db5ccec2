# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a GPU and its series for tests of roll-ups.

promtool runs the rules on them.
"""

from __future__ import annotations

from tests.monitoring.rule_files import FILES, promtool_test

ROLL_UPS = FILES / "rollups.yml"
GPU = 'host="a",gpu_uuid="GPU-1"'
SHORT = '{gpu_uuid="GPU-1",host="a"}'
MINUTES = "5m"
NANS = " ".join(["NaN"] * 6)


def check(folder, series, expected, when=MINUTES):
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": when,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
            }
            for expr, samples in expected.items()
        ],
    }
    assert promtool_test(folder, [ROLL_UPS], [test]) == ""
