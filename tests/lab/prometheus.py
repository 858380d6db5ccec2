# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query the Prometheus of a lab host.

It is called inside the host, because no network reaches it.
"""

from __future__ import annotations

import json
import shlex
import urllib.parse
from typing import Any, NamedTuple

from host_state import Run, describe_failures

ADDRESS = "http://127.0.0.1:9090"
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"


class PrometheusError(Exception):
    """Prometheus does not answer, or not with what was asked for."""


class Sample(NamedTuple):
    """A series of an instant vector, and its value."""

    labels: dict[str, str]
    value: float


class Prometheus:
    def __init__(self, run: Run) -> None:
        self.run = run

    def why_broken(self) -> str:
        """Return why waiting is of no use: failed units of the host, or no inotify instance. Empty if neither is found."""
        return describe_failures(self.run)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API, as `query` or `targets`. Raises PrometheusError."""
        url = f"{ADDRESS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        status, output = self.run(f"python3 -c {shlex.quote(_FETCH)} {shlex.quote(url)}")
        if status != 0:
            raise PrometheusError(f"{url}: {output.strip().splitlines()[-1:]}")
        return json.loads(output)["data"]

    def query(self, expression: str) -> list[Sample]:
        """What an expression is now. Raises PrometheusError."""
        result = self.ask("query", query=expression)["result"]
        return [Sample(one["metric"], float(one["value"][1])) for one in result]

    def number(self, expression: str) -> float:
        """What an expression of one value is now; 0 where it has none, as a count of nothing. Raises PrometheusError."""
        samples = self.query(expression)
        if len(samples) > 1:
            raise PrometheusError(f"{expression} gives {len(samples)} values, not one")
        return samples[0].value if samples else 0.0

    def targets(self) -> dict[str, str]:
        """Health ("up", "down", "unknown") of each scraped instance."""
        active = self.ask("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] for target in active}

    def active_alerts(self) -> list[tuple[str, dict[str, str]]]:
        """State ("pending" or "firing") and labels of each alert that is not quiet."""
        return [(alert["state"], alert["labels"]) for alert in self.ask("alerts")["alerts"]]

    def alerts(self) -> dict[str, str]:
        """State of each alert that is not quiet: "pending" or "firing"."""
        states: dict[str, str] = {}
        for state, labels in self.active_alerts():
            name = labels["alertname"]
            states[name] = "firing" if "firing" in (state, states.get(name)) else "pending"
        return states
