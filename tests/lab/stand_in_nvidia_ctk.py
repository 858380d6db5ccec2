#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for nvidia-ctk of NVIDIA's container toolkit, which can be had neither from PyPI nor from Debian.

Does what the tests need of `nvidia-ctk cdi generate`, by its documentation and its source
(https://github.com/NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk/cdi/generate): options, their environment variables,
names of devices, form of the result. The devices are those that `nvidia-smi -L` lists, or the lines of the file
STAND_IN_DEVICES. With STAND_IN_FAILS it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

NAMES = {
    "index": ("{gpu}", "{gpu}:{mig}"),
    "uuid": ("{uuid}", "{uuid}"),
    "type-index": ("gpu{gpu}", "mig{gpu}:{mig}"),
}


def devices(strategies: list[str]) -> list[str]:
    """GPUs in MIG mode are no devices of their own, as there."""
    listed = os.environ.get("STAND_IN_DEVICES")
    text = Path(listed).read_text() if listed else subprocess.check_output(["nvidia-smi", "-L"], text=True)
    found: list[tuple[int, str, list[str]]] = []
    for line in text.splitlines():
        uuid = re.search(r"UUID: ([^)]+)\)", line).group(1)
        if line.startswith("GPU"):
            found.append((int(re.match(r"GPU (\d+)", line).group(1)), uuid, []))
        else:
            found[-1][2].append(uuid)
    names = []
    for strategy in strategies:
        whole, part = NAMES[strategy]
        for gpu, uuid, migs in found:
            if migs:
                names += [part.format(gpu=gpu, mig=number, uuid=mig) for number, mig in enumerate(migs)]
            else:
                names.append(whole.format(gpu=gpu, uuid=uuid))
    return [*names, "all"]


def specification(names: list[str], form: str) -> str:
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", "update-ldcache"],
    }
    if form == "json":
        nodes = [{"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}} for name in names]
        data = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": nodes, "containerEdits": {"hooks": [hook]}}
        return json.dumps(data)
    lines = ["---", "cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "devices:"]
    for name in names:
        quoted = name if re.match(r"[A-Za-z]", name) else '"%s"' % name
        lines += ["    - name: %s" % quoted, "      containerEdits:", "        deviceNodes:"]
        lines += ["            - path: /dev/nvidia0"]
    lines += [
        "containerEdits:",
        "    hooks:",
        "        - hookName: createContainer",
        "          path: %s" % hook["path"],
    ]
    lines += ["          args:"] + ["            - %s" % argument for argument in hook["args"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print("NVIDIA Container Toolkit CLI version 0 (stand-in)")
        return 0
    assert sys.argv[1:3] == ["cdi", "generate"], sys.argv
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", ""))
    parser.add_argument("--format", choices=["yaml", "json"], default="yaml")
    parser.add_argument("--device-name-strategy", action="append", choices=list(NAMES), dest="strategies")
    options = parser.parse_args(sys.argv[3:])
    print('level=info msg="Auto-detected mode as stand-in"', file=sys.stderr)
    if os.environ.get("STAND_IN_FAILS"):
        print('level=error msg="failed to generate CDI spec"', file=sys.stderr)
        return 1
    text = specification(devices(options.strategies or ["index", "uuid"]), options.format)
    if options.output:
        Path(options.output).parent.mkdir(parents=True, exist_ok=True)
        Path(options.output).write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
