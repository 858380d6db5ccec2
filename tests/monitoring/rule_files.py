# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the rule files of the role gpu_monitoring and exporters' text.

The module combines both into promtool's tests.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Iterable, NamedTuple

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = ROOT / "roles" / "gpu_monitoring" / "files"
RULES = sorted((FILES / "rules").glob("*.yml"))
ALERTS = sorted((FILES / "alerts").glob("*.yml"))
TOOLS = ROOT / ".lab" / "prometheus" / "usr" / "bin"

#: Seconds between two scrapes, and between two evaluations.
INTERVAL = 60


class Rule(NamedTuple):
    """A rule of a file. `name` is the recorded series or the alert."""

    file: Path
    name: str
    is_alert: bool
    expr: str
    labels: dict
    annotations: dict


class Sample(NamedTuple):
    """A line of an exporter's text."""

    name: str
    labels: tuple  # of (name, value), sorted
    value: float


def rules_of(paths: Iterable[Path]) -> list[Rule]:
    """Return the rules of the files in order."""
    return [
        Rule(
            path,
            rule.get("record") or rule["alert"],
            "alert" in rule,
            rule["expr"],
            rule.get("labels", {}),
            rule.get("annotations", {}),
        )
        for path in paths
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def tool(name: str) -> str:
    """Return the path of promtool or prometheus.

    If the program is missing, the test fails and says how to install it.
    """
    path = TOOLS / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make prometheus-tools`")
    return str(path)


_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'\s*(\w+)="((?:[^"\\]|\\.)*)"\s*,?')


def parse(text: str) -> list[Sample]:
    """Return the samples of an exporter's text (Prometheus' text format)."""
    samples = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.match(line)
        if not found:
            raise ValueError(f"no sample: {line!r}")
        labels = tuple(sorted(_LABEL.findall(found["labels"] or "")))
        samples.append(Sample(found["name"], labels, float(found["value"])))
    return samples


def scraped(sample: Sample, scrape: dict) -> str:
    """Return the series that Prometheus creates from a sample.

    If the scrape and the exporter set a label with the same name, the exporter's label gets a prefix. Empty labels
    are removed.
    """
    labels = {(f"exported_{name}" if name in scrape else name): value for name, value in sample.labels}
    return as_series(sample.name, {**labels, **scrape})


def as_series(name: str, labels: dict) -> str:
    """Return the series in PromQL notation, without empty labels."""
    inside = ",".join(f"{key}={json.dumps(str(value))}" for key, value in sorted(labels.items()) if value != "")
    return f"{name}{{{inside}}}" if inside else name


def as_number(value: float) -> str:
    """Return the number without an exponent, for promtool's series."""
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) else repr(value)


def input_series(targets: Iterable[tuple[dict, list[str | None]]]) -> list[dict]:
    """Return promtool's input for some targets.

    A target is (labels of the scrape, texts of its scrapes in order). The text is None for a failed scrape. A series
    that is missing in a later scrape ends at that scrape, as in Prometheus.
    """
    series: dict[str, list[str]] = {}
    for scrape, texts in targets:
        for number, text in enumerate(texts):
            now = {scraped(sample, scrape): as_number(sample.value) for sample in parse(text or "")}
            now[as_series("up", scrape)] = "0" if text is None else "1"
            for name in {*series, *now}:
                values = series.setdefault(name, [])
                if name in now:
                    values += ["_"] * (number - len(values)) + [now[name]]
                elif len(values) == number and values and values[-1] not in ("_", "stale"):
                    values.append("stale")
    return [{"series": name, "values": " ".join(values)} for name, values in sorted(series.items())]


def promtool_test(directory: Path, rule_files: Iterable[Path], tests: list[dict], interval: int = INTERVAL) -> str:
    """Run the tests on the rules with promtool, and return its error or an empty text.

    `interval` is in seconds.
    """
    path = directory / "test.yml"
    path.write_text(
        json.dumps(
            {
                "rule_files": [str(file) for file in rule_files],
                "evaluation_interval": f"{interval}s",
                "tests": [{"interval": f"{interval}s", **test} for test in tests],
            }
        )
    )
    done = subprocess.run([tool("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"
