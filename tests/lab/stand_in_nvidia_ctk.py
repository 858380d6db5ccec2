#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Act like nvidia-ctk, which neither PyPI nor Debian offers.

It implements the parts of `nvidia-ctk cdi generate` and `nvidia-ctk runtime configure` that the tests need: options,
environment variables, device names and output formats. Sources are NVIDIA's documentation and
https://github.com/NVIDIA/nvidia-container-toolkit, cmd/nvidia-ctk and pkg/config/engine. The devices are those that
`nvidia-smi -L` lists, or the lines of the file STAND_IN_DEVICES. If STAND_IN_FAILS is set, the program fails. In
addition to device nodes, a container gets nvidia-smi, the NVML library that the loader finds, and the state of the
simulated GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

#: The build of the mirror replaces this text by a version. A file without this replacement acts as the latest version.
VERSION = "{version}" if "{version}"[0].isdigit() else "1.18.2"

NAMES = {
    "index": ("{gpu}", "{gpu}:{mig}"),
    "uuid": ("{uuid}", "{uuid}"),
    "type-index": ("gpu{gpu}", "mig{gpu}:{mig}"),
}


def devices(strategies: list[str]) -> list[tuple[str, list[int]]]:
    """Return (name, GPU and instance numbers) of each device.

    As in the real program, a GPU in MIG mode is not a device, but its instances are.
    """
    listed = os.environ.get("STAND_IN_DEVICES")
    text = Path(listed).read_text() if listed else subprocess.check_output(["nvidia-smi", "-L"], text=True)
    found: list[tuple[int, str, list[str]]] = []
    for line in text.splitlines():
        uuid = re.search(r"UUID: ([^)]+)\)", line).group(1)
        if line.startswith("GPU"):
            found.append((int(re.match(r"GPU (\d+)", line).group(1)), uuid, []))
        else:
            found[-1][2].append(uuid)
    named = []
    for strategy in strategies:
        whole, part = NAMES[strategy]
        for gpu, uuid, migs in found:
            if migs:
                named += [(part.format(gpu=gpu, mig=number, uuid=mig), [gpu]) for number, mig in enumerate(migs)]
            else:
                named.append((whole.format(gpu=gpu, uuid=uuid), [gpu]))
    return [*named, ("all", [gpu for gpu, _uuid, _migs in found])]


def mounts() -> list[tuple[str, str]]:
    """Return [(path on the host, path in the container)]."""
    program = shutil.which("nvidia-smi")
    found = [(str(Path(program).resolve()), "/usr/bin/nvidia-smi")] if program else []
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    library = re.search(r"libnvidia-ml\.so\.1 .*=> (\S+)", cache)
    found += [(str(Path(library[1]).resolve()), library[1])] if library else []
    state = "/var/lib/gpusim/state"
    return found + ([(state, state)] if Path(state).exists() else [])


def environment() -> list[str]:
    """Return the variable that tells the simulator which boot of the host this is.

    The simulator identifies a boot by the process with pid 1. In a container this is another process, so without the
    variable it would look like another boot (gpusim, boot.c).
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    # Like the simulator, add one to the ticks (process.c).
    return ["GPUSIM_BOOT=%s %d" % (boot, started + 1)]


def specification(named: list[tuple[str, list[int]]], form: str) -> str:
    given = mounts()
    folders = sorted({str(Path(path).parent) for _host, path in given if ".so" in path})
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", "update-ldcache", *(part for folder in folders for part in ("--folder", folder))],
    }
    if form == "json":
        nodes = [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia%d" % gpu} for gpu in gpus]}}
            for name, gpus in named
        ]
        edits = {
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "env": environment(),
            "hooks": [hook],
            "mounts": [{"hostPath": host, "containerPath": path, "options": ["rbind"]} for host, path in given],
        }
        data = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": nodes, "containerEdits": edits}
        return json.dumps(data)
    lines = ["---", "cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "devices:"]
    for name, gpus in named:
        quoted = name if re.match(r"[A-Za-z]", name) else '"%s"' % name
        lines += ["    - name: %s" % quoted, "      containerEdits:", "        deviceNodes:"]
        lines += ["            - path: /dev/nvidia%d" % gpu for gpu in gpus]
    lines += [
        "containerEdits:",
        "    deviceNodes:",
        "        - path: /dev/nvidiactl",
        "    env:",
        *("        - %s" % setting for setting in environment()),
        "    hooks:",
        "        - hookName: createContainer",
        "          path: %s" % hook["path"],
    ]
    lines += ["          args:"] + ["            - %s" % argument for argument in hook["args"]]
    if given:
        lines += ["    mounts:"]
    for host, path in given:
        lines += ["        - hostPath: %s" % host, "          containerPath: %s" % path]
        lines += ["          options:", "            - rbind"]
    return "\n".join(lines) + "\n"


# -- nvidia-ctk runtime configure --------------------------------------------------------------------------------------

CRI = 'plugins."io.containerd.grpc.v1.cri"'


def configure(arguments: list[str]) -> int:
    """Write the engine's configuration, even if it is already right.

    Since 1.18, nvidia-ctk writes separate drop-in files for containerd and CRI-O.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", default="docker", choices=["docker", "containerd", "crio"])
    parser.add_argument("--config", default="")
    parser.add_argument("--nvidia-set-as-default", action="store_true")
    parser.add_argument("--cdi.enabled", dest="cdi", action="store_true")
    drop_ins = tuple(map(int, VERSION.split("."))) >= (1, 18, 0)
    if drop_ins:
        parser.add_argument("--drop-in-config", default="")
    options = parser.parse_args(arguments)
    config = Path(options.config)
    text = config.read_text() if config.exists() else ""
    if options.runtime == "docker":
        data = json.loads(text) if text.strip() else {}
        data.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
        if options.nvidia_set_as_default:
            data["default-runtime"] = "nvidia"
        if options.cdi:
            data.setdefault("features", {})["cdi"] = True
        config.write_text(json.dumps(data, indent=4, sort_keys=True))
        return 0
    runtime = containerd_runtime(options) if options.runtime == "containerd" else crio_runtime(options)
    if not drop_ins or not options.drop_in_config:
        # Rewrite the main file. Like the real program, this loses the comments.
        kept = "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
        config.write_text(merged(kept, runtime))
        return 0
    drop_in = Path(options.drop_in_config)
    drop_in.write_text(("version = 2\n" if options.runtime == "containerd" else "") + runtime)
    if options.runtime == "containerd":
        take_in(config, text, str(drop_in.parent) + "/*.toml")
    return 0


def merged(text: str, more: str) -> str:
    """Merge two TOML texts so that each table occurs only once.

    If a table exists already, its new lines are inserted after its header.
    """
    for block in re.split(r"\n(?=\[)", "\n" + more.strip())[1:]:
        header, _, lines = (block + "\n").partition("\n")
        new = "".join(line + "\n" for line in lines.splitlines() if line.strip() and line not in text.splitlines())
        if header in text.splitlines():
            text = text.replace(header + "\n", header + "\n" + new)
        else:
            text += "\n%s\n%s" % (header, lines)
    return text


def take_in(config: Path, text: str, pattern: str) -> None:
    """Add an import of the drop-ins to containerd's main file.

    The main file loses its comments. Version 1.18.0 drops existing imports
    (https://github.com/NVIDIA/nvidia-container-toolkit/pull/1382).
    """
    found = re.search(r"^imports = \[(.*?)\]\n?", text, re.MULTILINE | re.DOTALL)
    named = re.findall(r'"([^"]+)"', found[1]) if found else []
    if pattern not in named:
        named = [pattern] if VERSION == "1.18.0" else [*named, pattern]
    body = text.replace(found[0], "") if found else text
    body = "".join(line for line in body.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    config.write_text("imports = [%s]\n%s" % (", ".join('"%s"' % name for name in named), body or "version = 2\n"))


def containerd_runtime(options: argparse.Namespace) -> str:
    lines = ["", "[%s]" % CRI, "  enable_cdi = true"] if options.cdi else []
    if options.nvidia_set_as_default:
        lines += ["", "[%s.containerd]" % CRI, '  default_runtime_name = "nvidia"']
    lines += ["", "[%s.containerd.runtimes.nvidia]" % CRI, '  runtime_type = "io.containerd.runc.v2"']
    lines += ["", "[%s.containerd.runtimes.nvidia.options]" % CRI]
    return "\n".join([*lines, '  BinaryName = "/usr/bin/nvidia-container-runtime"', ""])


def crio_runtime(options: argparse.Namespace) -> str:
    lines = ["[crio.runtime]", 'default_runtime = "nvidia"'] if options.nvidia_set_as_default else []
    lines += ["[crio.runtime.runtimes.nvidia]", 'runtime_path = "/usr/bin/nvidia-container-runtime"']
    return "\n".join([*lines, 'runtime_type = "oci"', ""])


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print("NVIDIA Container Toolkit CLI version %s (stand-in)" % VERSION)
        return 0
    if sys.argv[1:3] == ["runtime", "configure"]:
        return configure(sys.argv[3:])
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
