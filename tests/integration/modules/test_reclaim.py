# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module reclaim with the simulated NVML.

The module checks the host's real processes before it stops any of them.
"""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.plan import transaction

pytestmark = [pytest.mark.core, pytest.mark.host_python]


def test_released_gpu_spares_its_service(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    uuid = host.module("gpu_info")["gpus"][0]["uuid"]
    process = host.popen(["gpusim", "run", "--gpu", "0", "--memory", "2GiB", "--", "sleep", "300"])
    try:
        items = [
            {"kind": "unit", "name": "not-there.service", "gpus": [uuid]},
            {"kind": "container", "name": "not-there", "runtime": "podman", "gpus": [uuid]},
        ]
        done = host.module("reclaim", items=items)
        assert not done["changed"] and done["stopped"] == []
        assert [row["why"] for row in done["spared"]] == ["it no longer holds a GPU"] * 2
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_notices_are_recorded_after_delivery_and_removed_with_the_service(host):
    record = host.folder / "state.d/reclaim/notices.json"
    finding = {"kind": "unit", "name": "idle.service", "runtime": "", "gpus": ["GPU-0"]}
    # If the module never announced a stop, it creates no files.
    assert not host.module("reclaim", items=[])["changed"] and not record.parent.exists()
    assert host.module("reclaim", items=[], confirmed=[finding])["changed"]
    (row,) = json.loads(record.read_text())["notices"]
    assert {name: row[name] for name in finding} == finding
    assert record.parent.stat().st_mode & 0o777 == 0o700 and record.stat().st_mode & 0o777 == 0o600
    assert not host.module("reclaim", items=[])["changed"]
    assert json.loads(record.read_text())["notices"] == []


def test_nothing_is_stopped_while_a_run_changes_the_host(host):
    host.create([{"model": "H100-80GB", "count": 1}])
    with transaction.locked(str(host.folder / "state.d"), 60.0):
        done = host.module("reclaim", items=[{"kind": "unit", "name": "idle.service", "gpus": ["GPU-0"]}])
    assert done["stopped"] == done["noticed"] == []
    assert "another run is changing the layout" in done["spared"][0]["why"]
