# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics that others wrote to files, in the text format of Prometheus."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Dict, Iterator, List

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

#: The text format's (https://prometheus.io/docs/instrumenting/exposition_formats), of which the parser lets far more pass.
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__name__$)[a-zA-Z_][a-zA-Z0-9_]*")
#: Of a file: some ten thousand samples.
_MOST_BYTES = 1 << 22
#: Milliseconds in 64 bits.
_MOST_SECONDS = 2**63 / 1000


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
        name = path.name.encode(errors="replace").decode()  # it need not be UTF-8, and labels must
        try:
            when, found = path.stat().st_mtime, _parse(path)
        except FileNotFoundError:
            continue  # it has just gone
        except Exception as error:  # whatever the parser stumbles over: one file must not cost the host's whole scrape
            print("%s is left out: %s" % (name, error or repr(error)), flush=True)
            read.add_metric([name], 0)
            continue
        read.add_metric([name], 1)
        written.add_metric([name], when)
        for family in found:
            if family.name in merged:
                merged[family.name].samples.extend(family.samples)
            else:
                merged[family.name] = family
    yield from merged.values()
    yield read
    yield written


def content(path: Path, most: int) -> str:
    """Return the text of a file that others wrote. Raises FileNotFoundError, OSError or ValueError.

    A pipe would keep the scrape waiting for ever, also one that takes a file's place after a look at it.
    """
    descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(text) > most:
        raise ValueError("it has more than %d bytes" % most)
    return text.decode("utf-8")


def _parse(path: Path) -> List[Metric]:
    """What is in a file; raises something if Prometheus would not take it."""
    text = content(path, _MOST_BYTES)
    if "\0" in text:
        raise ValueError("it is no text")
    found = list(text_string_to_metric_families(text))
    for family in found:
        for name in (family.name, *(sample.name for sample in family.samples)):
            if not _METRIC_NAME.fullmatch(name):
                raise ValueError("%r is no name of a metric" % name)
        for sample in family.samples:
            for label in sample.labels:
                if not _LABEL_NAME.fullmatch(label):
                    raise ValueError("%r is no name of a label" % label)
            if sample.timestamp is not None and not abs(sample.timestamp) < _MOST_SECONDS:
                raise ValueError("%s has a time that no server takes" % sample.name)
    return found
