# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for nvidia-smi that stores time slices in a file.

The real nvidia-smi does not see simulated GPUs.
"""

from __future__ import annotations

#: The program belongs in the folder `bin`, next to `slices.json`, which maps UUIDs to slices. If a file `kill` there
#: contains "before" or "after", the program kills its caller before or after a change.
NVIDIA_SMI = """#!%s
import json, os, pathlib, signal, sys

NAMES = ("Default", "Short", "Medium", "Long")
folder = pathlib.Path(__file__).resolve().parents[1]
file, kill = folder / "slices.json", folder / "kill"
slices, arguments = json.loads(file.read_text()), sys.argv[1:]
assert arguments[0] == "compute-policy", arguments
uuids = list(slices)
asked = [arguments[arguments.index("-i") + 1]] if "-i" in arguments else uuids
when = kill.read_text() if kill.exists() else ""
if "--set-timeslice" in arguments:
    if when == "before":
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    slices[asked[0]] = NAMES[int(arguments[-1])]
    file.write_text(json.dumps(slices))
    if when == "after":
        os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(0)
for uuid in asked:
    print("|   %%d   Timeslice       %%-14s|" %% (uuids.index(uuid), slices[uuid]))
"""
