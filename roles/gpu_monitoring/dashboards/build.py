# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write this directory's dashboards to roles/gpu_monitoring/files/dashboards.

usage: python roles/gpu_monitoring/dashboards/build.py [--check]

With --check, the command writes nothing: it lists stale files, and exits with status 1 if it finds any. The command
needs Grafana's grafana-foundation-sdk (pyproject.toml). The role itself needs only the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cost import cost
from fleet import fleet
from gpu import gpu
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from host import host
from tenants import tenants

BOARDS = (fleet, host, gpu, tenants, cost)
TARGET = Path(__file__).parents[1] / "files" / "dashboards"


def contents():
    """Return each file's text by the file's name."""
    texts = {}
    for number, function in enumerate(BOARDS):
        board = function()
        for at, panel in enumerate(board.panels or []):
            panel.id_val = at + 1
        name = "openfleet-gpu-%d-%s.json" % (number + 1, board.uid.rpartition("-")[2])
        texts[name] = JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n"
    return texts


def main(arguments):
    texts = contents()
    current = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.json")}
    stale = sorted(name for name in texts.keys() | current.keys() if texts.get(name) != current.get(name))
    if arguments == ["--check"]:
        for name in stale:
            print("%s is stale: run make dashboards" % (TARGET / name))
        return 1 if stale else 0
    if arguments:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    for name in stale:
        if name in texts:
            (TARGET / name).write_text(texts[name], encoding="utf-8")
        else:
            (TARGET / name).unlink()
        print("written: %s" % name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
