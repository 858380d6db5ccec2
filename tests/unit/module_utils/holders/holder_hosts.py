# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Help tests of holders: make hosts with NVML data, and processes with open files.

These processes and files are real.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils.model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Host,
    Mig,
    Placement,
)

OPEN = "import sys\nfiles = [open(f) for f in sys.argv[1:] if f[0] == '/']\nprint('open', flush=True)\nsys.stdin.read()"


def instance(number: int, start: int, size: int = 2) -> GpuInstance:
    compute = ComputeInstance(0, size, Placement(0, size), "MIG-%d" % number)
    return GpuInstance(number, "%dg" % size, Placement(start, size), (compute,))


def gpu(index: int, *instances: GpuInstance, processes=()) -> Gpu:
    mig = Mig(True, bool(instances), bool(instances), (), instances)
    address = "0000:%02x:00.0" % (0x3B + index)
    return Gpu(index, "GPU-%d" % index, "NVIDIA H100 80GB HBM3", address, 80 << 30, mig, processes=tuple(processes))


def host(*gpus: Gpu) -> Host:
    return Host("580.65.06", "13.580.65.06", "13.0", True, gpus)


def no_tools(command, **_options):
    raise FileNotFoundError(2, "No such file or directory", command[0])


def never(command, **_options):
    raise AssertionError(command)


def named(folder: Path, name: str) -> Path:
    """Install a program with this name.

    The kernel shows this name as the name and executable of its processes.
    """
    return Path(shutil.copy(Path(sys.executable).resolve(), folder / name))


@contextlib.contextmanager
def opened(*files: object, program: Path = Path(sys.executable), within: Sequence[str] = (), **variables: str):
    """Start a process that has these files open, and end it after the block.

    The process opens absolute paths. Other arguments only appear in its command line. `within` is a command prefix, for
    example a command that enters a namespace.
    """
    command = [*within, str(program), "-c", OPEN, *map(str, files)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=dict(os.environ, **variables), **pipes) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.stdin.close()


class Proc:
    """A folder that simulates /proc of another host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process(1, "systemd")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")

    def process(
        self,
        pid: int,
        name: str,
        *opened: Path,
        cgroup: str = "0::/init.scope",
        uid: int = 0,
        parent: int = 1,
        words=(),
        variables=(),
    ) -> None:
        """Add a process with the arguments `words` and the environment `variables`.

        `variables` are (name, value) pairs.
        """
        self.write("%d/comm" % pid, name[:15] + "\n")
        self.write("%d/cmdline" % pid, "\0".join([name, *(words or ("--flag",)), ""]))
        self.write("%d/environ" % pid, "".join("%s=%s\0" % pair for pair in variables))
        self.write("%d/cgroup" % pid, cgroup + "\n")
        self.write("%d/status" % pid, "Name:\t%s\nPPid:\t%d\nUid:\t%s\n" % (name, parent, "\t".join(["%d" % uid] * 4)))
        (self.folder / str(pid) / "exe").symlink_to("/usr/sbin/" + name)
        (self.folder / str(pid) / "fd").mkdir()
        for number, file in enumerate(opened):
            (self.folder / str(pid) / "fd" / str(number)).symlink_to(file)
