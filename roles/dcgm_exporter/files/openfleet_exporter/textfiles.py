# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics that others wrote to files, in the text format of Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families


def families(folder: Path) -> Iterator[Metric]:
    """Those of all *.prom files, and of each file whether it could be read and how old it is."""
    merged: Dict[str, Metric] = {}
    read = GaugeMetricFamily(
        "openfleet_exporter_textfile_readable", "1 if the file could be read as metrics.", labels=["file"]
    )
    written = GaugeMetricFamily(
        "openfleet_exporter_textfile_mtime_seconds", "When the file was written, Unix time.", labels=["file"]
    )
    for path in sorted(folder.glob("*.prom")):
        try:
            when, found = path.stat().st_mtime, list(text_string_to_metric_families(path.read_text()))
        except FileNotFoundError:
            continue  # it has just gone
        except (OSError, ValueError) as error:
            print("%s is left out: %s" % (path, error), flush=True)
            read.add_metric([path.name], 0)
            continue
        read.add_metric([path.name], 1)
        written.add_metric([path.name], when)
        for family in found:
            if family.name in merged:
                merged[family.name].samples.extend(family.samples)
            else:
                merged[family.name] = family
    yield from merged.values()
    yield read
    yield written
