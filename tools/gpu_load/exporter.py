# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the embedded exporter on a loopback port, and read one GPU's series."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterable, Iterator, Union

SOURCE = Path(__file__).resolve().parents[2] / "roles" / "dcgm_exporter" / "files"
#: Modules that the exporter needs in addition to pynvml.
MODULES = ("nvitop_exporter", "prometheus_client")
#: Series that the audit uses as signs of work, with their values on a fully busy GPU. See docs/dcgm_exporter.md.
SIGNALS = {
    "gpu_utilization_Percentage": 100.0,
    "openfleet_gpu_graphics_active_ratio": 1.0,
    "openfleet_gpu_sm_active_ratio": 1.0,
}
PROCESSES = "openfleet_gpu_processes"
SCRAPE_SECONDS = 30
#: Ratios are means between two samples. After some intervals, ratios no longer include values from before the load.
SAMPLE_SECONDS, SAMPLES = 1, 3
_SERIES = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)

#: Values by the name of the series, or, as text, the reason why they are missing.
Series = Union["dict[str, float]", str]


@contextmanager
def running(folder: Path) -> Iterator[Callable[[str], Series]]:
    """Run the exporter until the block ends.

    Yield a function that returns the series of a GPU, given its UUID.
    """
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        reason = "Python has no module %s (pip install -r %s)" % (
            " and ".join(missing), SOURCE / "embedded-requirements.txt",
        )  # fmt: skip
        yield lambda uuid: reason
        return
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(json.dumps({"port": 0, "sample_interval": SAMPLE_SECONDS, "processes": "none"}))
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    environment = dict(os.environ, PYTHONPATH=path, STATE_DIRECTORY=str(folder))
    command = [sys.executable, "-m", "openfleet_exporter", str(config)]
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            port, last_line = _port(process.stdout)
            yield lambda uuid: _read(port, uuid) if port else "the exporter does not start: %s" % last_line
        finally:
            process.kill()


def _port(output: Iterable[str]) -> tuple[str, str]:
    """Return the exporter's port and its last line. The port is "" if it ended."""
    line = ""
    for line in output:
        match = re.search(r"serving on \S+ port (\d+)", line)
        if match:
            return match.group(1), line
    return "", line.strip()


def _read(port: str, uuid: str) -> Series:
    time.sleep(SAMPLES * SAMPLE_SECONDS)
    try:
        with urllib.request.urlopen("http://127.0.0.1:%s/metrics" % port, timeout=SCRAPE_SECONDS) as answer:
            text = answer.read().decode()
    except (OSError, ValueError) as error:
        return "the exporter does not answer: %s" % error
    wanted = (*SIGNALS, PROCESSES)
    rows = _SERIES.findall(text)
    return {name: float(value) for name, labels, value in rows if name in wanted and '"%s"' % uuid in labels}
