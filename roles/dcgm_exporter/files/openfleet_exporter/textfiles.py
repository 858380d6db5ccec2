# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read metrics from files in Prometheus' text format."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Dict, Iterator, List

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

#: Valid names in the text format (https://prometheus.io/docs/instrumenting/exposition_formats), fewer than the parser
#: accepts.
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__name__$)[a-zA-Z_][a-zA-Z0-9_]*")
#: Maximum size of a file in bytes, enough for some ten thousand samples.
_MOST_BYTES = 1 << 22
#: Maximum timestamp, because Prometheus stores milliseconds in 64 bits.
_MOST_SECONDS = 2**63 / 1000


def families(folder: Path) -> Iterator[Metric]:
    """Return the metric families of all *.prom files.

    More families show whether each file is readable, and when it was written.
    """
    merged: Dict[str, Metric] = {}
    read = GaugeMetricFamily(
        "openfleet_exporter_textfile_readable", "1 if the file could be read as metrics.", labels=["file"]
    )
    written = GaugeMetricFamily(
        "openfleet_exporter_textfile_mtime_seconds", "When the file was written, Unix time.", labels=["file"]
    )
    for path in sorted(folder.glob("*.prom")):
        name = path.name.encode(errors="replace").decode()  # labels must be UTF-8, file names need not
        try:
            when, parsed = path.stat().st_mtime, _parse(path)
        except FileNotFoundError:
            continue  # deleted meanwhile
        except Exception as error:  # any parser error: one file must not break the whole scrape
            print("%s is skipped: %s" % (name, error or repr(error)), flush=True)
            read.add_metric([name], 0)
            continue
        read.add_metric([name], 1)
        written.add_metric([name], when)
        for family in parsed:
            if family.name in merged:
                merged[family.name].samples.extend(family.samples)
            else:
                merged[family.name] = family
    yield from merged.values()
    yield read
    yield written


def content(path: Path, most: int) -> str:
    """Return the text of a file of at most `most` bytes.

    Raises FileNotFoundError, OSError or ValueError. Checks the type after opening, so that a pipe in place of the file
    cannot block the scrape.
    """
    descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(text) > most:
        raise ValueError("more than %d bytes" % most)
    return text.decode("utf-8")


def _parse(path: Path) -> List[Metric]:
    """Parse a file. Raises an exception if Prometheus would reject the file."""
    text = content(path, _MOST_BYTES)
    if "\0" in text:
        raise ValueError("not a text file")
    parsed = list(text_string_to_metric_families(text))
    for family in parsed:
        for name in (family.name, *(sample.name for sample in family.samples)):
            if not _METRIC_NAME.fullmatch(name):
                raise ValueError("%r is not a metric name" % name)
        for sample in family.samples:
            for label in sample.labels:
                if not _LABEL_NAME.fullmatch(label):
                    raise ValueError("%r is not a label name" % label)
            if sample.timestamp is not None and not abs(sample.timestamp) < _MOST_SECONDS:
                raise ValueError("%s has an invalid timestamp" % sample.name)
    return parsed
