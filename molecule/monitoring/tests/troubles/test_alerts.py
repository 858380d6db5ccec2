# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Troubles, each alone, from the host to the receiver: each raises its alert and no other one, and clears it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from watched_fleet import Told, eventually, shorten_memory_of_xids


class Trouble(NamedTuple):
    """What is done on a host, what undoes it, and the labels of the alert that it must raise. What has no cure passes."""

    host: str
    cause: str
    cure: str | None
    labels: dict[str, str]


# Of a host's state Prometheus hears once gpu-layout was asked for it, which a timer does each minute. Here only the tests do:
# a look that had begun before a cause or a cure would be taken for theirs.
LOOK = "systemctl start gpu-layout-metrics.service"

TROUBLES = {
    "an application's Xid error": Trouble(
        "hopper",
        "gpusim xid 1 31",
        None,
        {"alertname": "GpuXidApplication", "host": "hopper", "gpu_index": "1", "xid": "31"},
    ),
    "a Xid error of the hardware": Trouble(
        "ada",
        "gpusim xid 0 74",
        None,
        {"alertname": "GpuXidHardware", "host": "ada", "gpu_index": "0", "xid": "74"},
    ),
    "a lost GPU": Trouble(
        "hopper",
        "gpusim lose 1",
        "gpusim restore 1",
        {"alertname": "GpuLost", "host": "hopper", "gpu_index": "1"},
    ),
    "heat": Trouble(
        "ada",
        "gpusim set 0 throttle thermal",
        "gpusim set 0 throttle off",
        {"alertname": "GpuThermalThrottle", "host": "ada", "gpu_index": "0"},
    ),
    "drift by hand": Trouble(
        "hopper",
        f"nvidia-smi -i 1 -c PROHIBITED && {LOOK}",
        f"nvidia-smi -i 1 -c DEFAULT && {LOOK}",
        {"alertname": "GpuLayoutDrift", "host": "hopper", "gpu_index": "1"},
    ),
    "an MPS daemon that ended": Trouble(
        "hopper",
        f"systemctl stop openfleet-mps@inference && {LOOK}",
        f"systemctl start openfleet-mps@inference && {LOOK}",
        {"alertname": "GpuMpsDaemonDown", "host": "hopper", "gpu_index": "2", "daemon": "inference"},
    ),
    "an exporter that ended": Trouble(
        "ada",
        "systemctl stop dcgm-exporter",
        "systemctl start dcgm-exporter",
        {"alertname": "GpuExporterDown", "host": "ada", "instance": "ada:9400"},
    ),
}


@pytest.fixture(scope="session")
def hurried(monitor, hopper, ada):
    """The monitoring host, where minutes have become seconds."""
    for host in (hopper, ada):
        shorten_memory_of_xids(host)
        host.check_output("systemctl stop gpu-layout-metrics.timer")
    monitor.hurry()
    yield monitor
    for host in (hopper, ada):
        host.check_output("systemctl start gpu-layout-metrics.timer")


@pytest.mark.parametrize("name", TROUBLES)
def test_it_raises_its_alert_and_no_other_and_clears_it(hurried, request, name):
    trouble = TROUBLES[name]
    host = request.getfixturevalue(trouble.host)
    alert = trouble.labels["alertname"]
    for watched in ("hopper", "ada"):
        request.getfixturevalue(watched).check_output(LOOK)
    hurried.quiet()
    told = Told(hurried)
    host.check_output(trouble.cause)
    try:
        eventually(lambda: told.statuses(alert), lambda seen: "firing" in seen, f"{alert} at the receiver")
        if trouble.cure:
            # An alert that waits for longer than this one would be pending by now.
            eventually(hurried.prometheus.alerts, lambda alerts: alerts == {alert: "firing"}, f"{alert} alone")
    finally:
        if trouble.cure:
            host.run(trouble.cure)
    eventually(lambda: told.statuses(alert)[-1:], lambda seen: seen == ["resolved"], f"{alert} cleared at the receiver")
    hurried.quiet()
    assert told.names() == {alert}
    for one in told.alerts():
        assert trouble.labels.items() <= one["labels"].items(), one["labels"]
        assert one["annotations"]["runbook"].endswith(f"docs/alerts.md#{alert.lower()}")
