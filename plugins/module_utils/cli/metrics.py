# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand metrics.

It exports the drift of the host and the GPU holders to Prometheus.
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Iterable

from ..durable import replacing
from ..errors import FleetError
from ..layout.files import read_layout
from ..metrics.look import look
from ..metrics.text import Snapshot, families, render
from ..model import to_data
from ..techniques.forms import parse_layout

#: Name of the file with the samples, in the given directory.
FILE = "openfleet_gpu_layout.prom"


class LookError(FleetError):
    """Raised if some data could not be read.

    `problems` has all problems. The error's place, problem and fix are those of the first problem.
    """

    def __init__(self, problems: Iterable[FleetError]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(first.where, first.problem, first.cure)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def metrics(options: Namespace) -> int:
    """Print the samples, or write them to the file in the directory.

    Raises an error for values that could not be read, after the other samples were written.
    """
    try:
        seen = look(lambda: parse_layout(read_layout(options.layout)), options.state_directory, options.unlisted)
    except BaseException:
        # The file must not present old values as current ones.
        if options.textfile:
            failed = Snapshot(time.time(), problems=(FleetError("this host", "reading the host did not end"),))
            write(Path(options.textfile), render(families(failed)))
        raise
    if options.textfile:
        write(Path(options.textfile), render(families(seen)))
    elif options.json and not seen.problems:
        print(json.dumps(_data(seen), indent=2))
    elif not options.json:
        print(render(families(seen)), end="")
    if seen.problems:
        raise LookError(seen.problems)
    if seen.changing is not None:
        # Another run is changing the host. This is temporary and not a failure.
        print("gpu-layout: %s" % seen.changing, file=sys.stderr)
    return 0


def write(directory: Path, text: str) -> None:
    """Replace the file atomically, or remove it if it cannot be written."""
    path = directory / FILE
    try:
        with replacing(path, 0o644) as file:
            file.write(text.encode())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise FleetError(
            str(path), "it cannot be written: %s" % error, "Make the directory, and room in it, as root."
        ) from error


def _data(seen: Snapshot) -> dict[str, Any]:
    """Return the samples, and texts for the differences."""
    gpus = {gpu.uuid: gpu.index for gpu in seen.gpus}
    return {
        "changing": None if seen.changing is None else str(seen.changing),
        "gpus": [
            {
                "index": gpus[each.gpu_uuid],
                "uuid": each.gpu_uuid,
                "sharing": each.sharing,
                "differences": list(each.differences),
            }
            for each in seen.standing
        ],
        "unmanaged": [to_data(each) for each in seen.unmanaged],
        "metrics": [
            {
                "name": family.name + sample.suffix,
                "type": family.kind,
                "labels": dict(sample.labels),
                "value": sample.value,
            }
            for family in families(seen)
            for sample in family.samples
        ],
    }
