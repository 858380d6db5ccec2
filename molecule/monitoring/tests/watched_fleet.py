# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the monitored fleet's state in Prometheus, and the alerts at the receiver."""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import Any, Callable

from tests.lab.lab_fixtures import container_name
from tests.lab.prometheus import Prometheus

#: Timeout of all waits in seconds. It is much longer than necessary, because the machine may be busy.
PATIENCE_SECONDS = 300
RECEIVED = "/var/lib/receiver/alerts"
RULES = "/etc/prometheus/openfleet-gpu/rules"
EXPORTER_UNIT = "dcgm-exporter"
#: The tests divide the durations of alerts and of Alertmanager by this factor.
SPEED = 30
#: These durations are longer, because a busy machine alone must not fire alerts. An exporter may miss several scrapes,
#: which are two seconds apart. The exporter must remember an Xid error until all programs have passed it on.
EXPORTER_DOWN_SECONDS, XID_SECONDS = 40, 60
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


#: Functions that return the reason why no wait can succeed. There is one for each Monitor.
_WHY_BROKEN: list[Callable[[], str]] = []
_LOOKS_BETWEEN_CHECKS = 10


def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool], what: str) -> Any:
    """Return the value of look() once `wanted` accepts it.

    Fails after PATIENCE_SECONDS. If a unit of the monitoring host has failed, it fails at once with the reason.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    for turn in itertools.count(1):
        if wanted(seen := look()):
            break
        reasons = [why_broken() for why_broken in _WHY_BROKEN] if turn % _LOOKS_BETWEEN_CHECKS == 0 else []
        assert not any(reasons), f"{what}: {seen!r}. {' '.join(reasons)}"
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS} s, but {seen!r}"
        # Each check costs a tenth of a second of CPU time, which other tests need.
        time.sleep(1)
    return seen


def shortened(text: str) -> tuple[str, int]:
    """Shorten the durations in alerts or in Alertmanager's routes.

    Returns the new text and the number of changes. It shortens `for:`, ranges of expressions, and waits of routes. It
    does not shorten seconds that an expression compares with.
    """

    def shorter(found: re.Match) -> str:
        seconds = int(found["number"]) * _UNIT_SECONDS[found["unit"]]
        # Alertmanager's wait for grouping alerts does not matter here.
        seconds = 1 if found["before"].startswith("group") else max(1, seconds // SPEED)
        return f"{found['before']}{seconds}s{found['after']}"

    pattern = r"(?P<before>\bfor: |\bgroup_wait: |\bgroup_interval: |\[)(?P<number>\d+)(?P<unit>[smhd])(?P<after>\]|\n)"
    return re.subn(pattern, shorter, text)


def shorten_memory_of_xids(host: Any) -> None:
    """Make a host's exporter forget Xid errors after seconds instead of five minutes."""
    path = host.check_output("find / -xdev -path '*/openfleet_exporter/events.py'")
    assert host.check_output("grep -c '^RECENT = 300.0$' %s", path) == "1"
    host.check_output(f"sed -i 's/^RECENT = 300.0$/RECENT = {XID_SECONDS}.0/' %s", path)
    host.check_output(f"systemctl restart {EXPORTER_UNIT}")


class Monitor:
    def __init__(self, host: Any) -> None:
        self.host = host
        self.name = container_name("monitor")
        self.prometheus = Prometheus(self._run)
        _WHY_BROKEN.append(self.prometheus.why_broken)

    def _run(self, command: str) -> tuple[int, str]:
        done = self.host.run(command)
        return done.rc, done.stdout + done.stderr

    def hurry(self) -> None:
        """Shorten minutes to seconds in the files that the role has written."""
        alerts = f"{RULES}/openfleet-gpu-alerts.yml"
        routes = "/etc/prometheus/openfleet-gpu/secrets/openfleet-gpu-alertmanager.yml"
        for path in (alerts, routes):
            text, count = shortened(self.host.file(path).content_string)
            assert count >= 2, f"{path} has {count} durations to shorten: it is not what this scenario knows"
            if path == alerts:
                text, count = re.subn(
                    r"(- alert: GpuExporterDown\n(?: +(?!- ).*\n)*? +for: )\d+s\n",
                    rf"\g<1>{EXPORTER_DOWN_SECONDS}s\n",
                    text,
                )
                assert count == 1, f"{path} has GpuExporterDown {count} times"
            # Write a new file and rename it, so that Prometheus never reads an incomplete file.
            self.host.check_output(
                f"cp -p {path} {path}.new && cat >{path}.new <<'END'\n{text}END\nmv {path}.new {path}"
            )
        self.host.check_output("promtool check rules %s", alerts)
        self.host.check_output("systemctl reload prometheus prometheus-alertmanager")
        # Both programs read their files at intervals. An alert is late if it fires before Prometheus finds Alertmanager
        # again.
        eventually(self._longest_wait, lambda seconds: 0 < seconds <= 4 * 3600 // SPEED, "the shorter alerts")
        eventually(self._alertmanagers, lambda urls: urls == ["http://127.0.0.1:9093/api/v2/alerts"], "Alertmanager")

    def _longest_wait(self) -> float:
        """Return the seconds that the slowest alert waits before it fires."""
        groups = self.prometheus.ask("rules", type="alert")["groups"]
        return max((rule["duration"] for group in groups for rule in group["rules"]), default=0)

    def _alertmanagers(self) -> list[str]:
        return [one["url"] for one in self.prometheus.ask("alertmanagers")["activeAlertmanagers"]]

    # -------------------------------------------------------------- reading -----------------------------------------

    def received(self) -> list[dict]:
        """Return all notifications that Alertmanager has sent."""
        file = self.host.file(RECEIVED)
        return [json.loads(line) for line in file.content_string.splitlines()] if file.exists else []

    def quiet(self) -> None:
        """Wait until no alert is firing or pending."""
        eventually(self.prometheus.alerts, lambda alerts: alerts == {}, "no alert")


class Told:
    """Notifications about alerts that start after this object is created."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        # RFC 3339 in UTC with seconds, which sorts as text. All hosts use this machine's clock.
        self.begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())

    def alerts(self) -> list[dict]:
        return [alert for alert in self.monitor.received() if alert["startsAt"] >= self.begin]

    def names(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.alerts()}

    def statuses(self) -> dict[str, list[str]]:
        """Return the states of the notifications of each alert, oldest first.

        The keys are the names of the alerts. The states are "firing" and "resolved".
        """
        told: dict[str, list[str]] = {}
        for alert in self.alerts():
            told.setdefault(alert["labels"]["alertname"], []).append(alert["status"])
        return told
