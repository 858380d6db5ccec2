# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start two runs at the same time.

The second run waits for the first run, or fails and names the first run.
"""

from __future__ import annotations

import json

import pytest
from gpu_hosts import HALF_WAY


def report(folder) -> dict:
    return json.loads((folder / "report.json").read_text())


# tests/integration/modules/test_transactions.py also tests two runs, with only the module.
@pytest.mark.thorough
def test_second_run_names_the_first_or_waits_for_its_result(site, apply, canary, tmp_path):
    canary.stop_at(*HALF_WAY)
    first = site("canary", layout_stage="second", gpu_report_dir=str(tmp_path / "first"))
    pid = canary.until_stopped(first)
    half_done = canary.gpus()
    said = apply(canary, "second", lock_timeout=1).failed()
    assert "another run is changing the layout" in said and f"pid {pid} " in said, said
    second = site("canary", layout_stage="second", gpu_layout_lock_timeout=300, gpu_report_dir=str(tmp_path / "second"))
    canary.until_waiting_for(pid)
    assert canary.gpus() == half_done
    canary.go_on(pid)
    first.succeeded()
    second.succeeded()
    assert canary.not_as("second") == []
    # The first run created every instance.
    (made,) = report(tmp_path / "first")["hosts"][0]["gpus"]
    there = [uuid for instance in canary.gpus()[0].instances.values() for uuid in instance.uuids]
    assert sorted(uuid for i in made["instances"] for uuid in i["mig_uuids"]) == sorted(there)
    assert report(tmp_path / "second")["totals"]["gpus_changed"] == 0
