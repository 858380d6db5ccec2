# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run pytest in its own PID namespace if tests use simulated GPUs.

Modules search for GPU holders among all processes of the machine. If a container from another project or checkout has a
GPU, it would count as a holder of the simulated GPUs too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterable

ROOT = Path(__file__).resolve().parents[1]
#: Tests that run modules on this machine.
ON_THIS_MACHINE = ("tests/adversary", "tests/audit", "tests/clients", "tests/integration", "tests/kubernetes")
#: Tests with lab hosts. podman manages containers only from the PID namespace that it started them in.
WITH_LAB_HOSTS = (
    "molecule",
    "tests/benchmark",
    "tests/lab",
    *(
        "tests/kubernetes/test_%s.py" % name
        for name in ("cdi", "dra", "kueue", "mig_manager", "nodes", "openfleet_dra", "site", "volcano")
    ),
)
#: enter_namespace sets this variable. Users can set it to run pytest without a namespace.
VARIABLE = "OPENFLEET_APART"
#: The first process of the namespace must reap the others.
COMMAND = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", '"$@"; exit $?', "--")


def needs_namespace(paths: Iterable[Path]) -> bool:
    """Return whether the paths have tests for this machine and no lab hosts."""
    paths = [path.resolve() for path in paths]
    return _overlap(paths, ON_THIS_MACHINE) and not _overlap(paths, WITH_LAB_HOSTS)


def _overlap(paths: list[Path], names: Iterable[str]) -> bool:
    places = [ROOT / name for name in names]
    return any(path == place or path in place.parents or place in path.parents for path in paths for place in places)


def can_make_namespace() -> bool:
    """Return whether this process may make a PID namespace and is not in one yet."""
    if VARIABLE in os.environ or os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run([*COMMAND, "true"], capture_output=True, check=False).returncode == 0


def enter_namespace(paths: Iterable[Path]) -> None:
    """Restart this command in a PID namespace.

    The function does nothing if the paths need no namespace, or if root has no permission to make one.
    """
    if not needs_namespace(paths) or not can_make_namespace():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[VARIABLE] = "1"
    os.execvp(COMMAND[0], [*COMMAND, sys.executable, *sys.orig_argv[1:]])
