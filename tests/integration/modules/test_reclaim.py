# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module reclaim against the simulated NVML: it looks at the host's real processes before it stops anything."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.core, pytest.mark.host_python]


def test_what_does_not_hold_the_gpu_any_more_is_spared(host):
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
        assert [row["why"] for row in done["spared"]] == ["it holds no GPU any more"] * 2
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
