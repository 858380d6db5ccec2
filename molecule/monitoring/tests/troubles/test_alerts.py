# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cause faults, and check that each fires only its own alert, which then clears.

The tests read the alerts at the receiver. The faults of one round exist at the same time, so that the tests need not
wait for each fault separately. Each fault is on a separate GPU or host. If a fault fired another alert, this alert
would have unexpected labels.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from watched_fleet import Told, eventually, shorten_memory_of_xids

from tests.thorough import THOROUGH


class Trouble(NamedTuple):
    """A fault: its command, the command that undoes it, and the alert's labels.

    A fault without a second command ends by itself.
    """

    host: str
    cause: str
    cure: str | None
    labels: dict[str, str]


# Prometheus reads a host's state from gpu-layout, which a timer usually runs every minute. Here only the tests run it,
# because a run that started before a change could report the old state afterwards.
LOOK = "systemctl start gpu-layout-metrics.service"

ROUNDS = {
    "errors": [
        # An Xid error that an application causes.
        Trouble(
            "hopper",
            "gpusim xid 0 31",
            None,
            {"alertname": "GpuXidApplication", "host": "hopper", "gpu_index": "0", "xid": "31"},
        ),
        # An Xid error that faulty hardware causes.
        Trouble(
            "ada",
            "gpusim xid 0 74",
            None,
            {"alertname": "GpuXidHardware", "host": "ada", "gpu_index": "0", "xid": "74"},
        ),
        # A lost GPU.
        Trouble(
            "hopper",
            "gpusim lose 1",
            "gpusim restore 1",
            {"alertname": "GpuLost", "host": "hopper", "gpu_index": "1"},
        ),
        # Overheating.
        Trouble(
            "hopper",
            "gpusim set 2 throttle thermal",
            "gpusim set 2 throttle off",
            {"alertname": "GpuThermalThrottle", "host": "hopper", "gpu_index": "2"},
        ),
    ],
    "services": [
        # Manual drift.
        Trouble(
            "hopper",
            f"nvidia-smi -i 1 -c PROHIBITED && {LOOK}",
            f"nvidia-smi -i 1 -c DEFAULT && {LOOK}",
            {"alertname": "GpuLayoutDrift", "host": "hopper", "gpu_index": "1"},
        ),
        # The MPS daemon has ended.
        Trouble(
            "hopper",
            f"systemctl stop openfleet-mps@inference && {LOOK}",
            f"systemctl start openfleet-mps@inference && {LOOK}",
            {"alertname": "GpuMpsDaemonDown", "host": "hopper", "gpu_index": "2", "daemon": "inference"},
        ),
        # The exporter has ended.
        Trouble(
            "ada",
            "systemctl stop dcgm-exporter",
            "systemctl start dcgm-exporter",
            {"alertname": "GpuExporterDown", "host": "ada", "instance": "ada:9400"},
        ),
    ],
}


def alert_of(labels, troubles):
    """Return the fault that an alert reports, or None."""
    return next((one for one in troubles if one.labels.items() <= labels.items()), None)


@pytest.fixture(scope="session")
def hurried(monitor, hopper, ada):
    """Return the monitoring host with minutes shortened to seconds."""
    for host in (hopper, ada):
        shorten_memory_of_xids(host)
        host.check_output("systemctl stop gpu-layout-metrics.timer")
    monitor.hurry()
    yield monitor
    for host in (hopper, ada):
        host.check_output("systemctl start gpu-layout-metrics.timer")


# tests/monitoring checks with promtool which alert each fault fires. This test covers the path from a host to
# Alertmanager.
@pytest.mark.parametrize("name", list(ROUNDS) if THOROUGH else ["errors"])
def test_each_fault_fires_only_its_alert_and_clears(hurried, hopper, ada, name):
    hosts, troubles = {"hopper": hopper, "ada": ada}, ROUNDS[name]
    wanted = {trouble.labels["alertname"] for trouble in troubles}
    lasting = {trouble.labels["alertname"] for trouble in troubles if trouble.cure}
    for host in hosts.values():
        host.check_output(LOOK)
    hurried.quiet()
    told = Told(hurried)

    def firing():
        return {alert for alert, statuses in told.statuses().items() if "firing" in statuses}

    def alone(active):
        """Return whether the permanent alerts are firing and no other alert exists.

        By now, an alert that waits longer would be pending.
        """
        told_of = [(state, alert_of(labels, troubles)) for state, labels in active]
        names = {trouble.labels["alertname"] for state, trouble in told_of if trouble and state == "firing"}
        return lasting <= names and len(names) == len(told_of)

    try:
        for trouble in troubles:
            hosts[trouble.host].check_output(trouble.cause)
        eventually(firing, lambda seen: seen >= wanted, "all of them at the receiver")
        eventually(hurried.prometheus.active_alerts, alone, "them alone")
    finally:
        for trouble in troubles:
            if trouble.cure:
                hosts[trouble.host].run(trouble.cure)

    def resolved():
        return {alert for alert, statuses in told.statuses().items() if statuses[-1] == "resolved"}

    eventually(resolved, lambda seen: seen >= wanted, "all of them cleared at the receiver")
    hurried.quiet()
    assert told.names() == wanted
    for one in told.alerts():
        trouble = alert_of(one["labels"], troubles)
        assert trouble, one["labels"]
        assert one["annotations"]["runbook"].endswith(f"docs/alerts.md#{trouble.labels['alertname'].lower()}")
