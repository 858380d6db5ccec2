# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query the Prometheus of a lab host.

The queries run inside the host, because no network reaches it.
"""

from __future__ import annotations

import json
import shlex
import urllib.parse
from typing import Any, NamedTuple

from tests.lab.host_state import Run, describe_failures

ADDRESS = "http://127.0.0.1:9090"
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"


class PrometheusError(Exception):
    """Prometheus does not respond, or returns an error."""


class Sample(NamedTuple):
    """One series of an instant vector, with its value."""

    labels: dict[str, str]
    value: float


class Prometheus:
    def __init__(self, run: Run) -> None:
        self.run = run

    def why_broken(self) -> str:
        """Return the reason why waiting is useless, or "" if there is none.

        The reason is a failed unit of the host, or a lack of inotify instances.
        """
        return describe_failures(self.run)

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an API response, for example for `query` or `targets`.

        Raises PrometheusError if the request fails.
        """
        url = f"{ADDRESS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        status, output = self.run(f"python3 -c {shlex.quote(_FETCH)} {shlex.quote(url)}")
        if status != 0:
            raise PrometheusError(f"{url}: {output.strip().splitlines()[-1:]}")
        return json.loads(output)["data"]

    def query(self, expression: str) -> list[Sample]:
        """Return the current samples of an expression. Raises PrometheusError if it fails."""
        result = self.ask("query", query=expression)["result"]
        return [Sample(one["metric"], float(one["value"][1])) for one in result]

    def number(self, expression: str) -> float:
        """Return the current value of an expression, or 0 if it has no value.

        PromQL returns no value for a count of nothing. Raises PrometheusError if the query fails.
        """
        samples = self.query(expression)
        if len(samples) > 1:
            raise PrometheusError(f"{expression} gives {len(samples)} values, not one")
        return samples[0].value if samples else 0.0

    def targets(self) -> dict[str, str]:
        """Return the health of each scraped instance: "up", "down" or "unknown"."""
        active = self.ask("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] for target in active}

    def active_alerts(self) -> list[tuple[str, dict[str, str]]]:
        """Return the state and the labels of each active alert.

        The state is "pending" or "firing".
        """
        return [(alert["state"], alert["labels"]) for alert in self.ask("alerts")["alerts"]]

    def alerts(self) -> dict[str, str]:
        """Return the state of each active alert: "pending" or "firing"."""
        states: dict[str, str] = {}
        for state, labels in self.active_alerts():
            name = labels["alertname"]
            states[name] = "firing" if "firing" in (state, states.get(name)) else "pending"
        return states
