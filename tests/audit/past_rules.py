# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the shipped recording rules over an existing history with promtool.

promtool reads from a Prometheus, but writes its results to new blocks that this Prometheus has not loaded. So this
module evaluates rules in passes. Each pass has the rules whose input exists after the earlier passes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Iterable, Sequence

import yaml

from tests.audit.fleet_history import serve_blocks
from tests.monitoring.rule_files import TOOLS

#: Evaluation interval of groups that set none. The history has one sample a minute.
INTERVAL = "60s"
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")


def passes(files: Iterable[Path]) -> list[list[dict]]:
    """Return the files' rules as groups, in an order that promtool can evaluate.

    A rule may read its own series.
    """
    rules = [
        {**rule, "interval": group.get("interval", INTERVAL)}
        for file in files
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]
    made, left = [], rules
    while left:
        to_come = {rule["record"] for rule in left}
        ready = [rule for rule in left if not (to_come - {rule["record"]}) & set(_NAME.findall(rule["expr"]))]
        if not ready:
            raise ValueError("rules that wait for each other: %s" % sorted(to_come))
        left = [rule for rule in left if rule not in ready]
        groups: dict[str, list[dict]] = {}
        for rule in ready:
            groups.setdefault(rule["interval"], []).append({key: rule[key] for key in rule if key != "interval"})
        made.append([{"name": every, "interval": every, "rules": some} for every, some in groups.items()])
    return made


def record(files: Sequence[Path], folder: Path, start: int, end: int, block: int) -> None:
    """Evaluate the rules from `start` to `end`, and add the results to folder/data.

    fleet_history.make_blocks() created the folder. `block` is a block's length in seconds.
    """
    for number, groups in enumerate(passes(files)):
        rules, new = folder / ("rules-%d.yml" % number), folder / "new"
        rules.write_text(json.dumps({"groups": groups}))
        with serve_blocks(folder) as url:
            command = [str(TOOLS / "promtool"), "tsdb", "create-blocks-from", "rules", "--url=" + url]
            command += ["--start=%d" % start, "--end=%d" % end, "--output-dir=%s" % new, "--eval-interval=" + INTERVAL]
            command += ["--max-block-duration=%ds" % block, str(rules)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        for made in new.iterdir() if new.is_dir() else ():
            shutil.move(str(made), folder / "data")
