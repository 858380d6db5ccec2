# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Scan for GPU holders while a user's file system does not respond.

silent_files.py implements the file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.adversary.attackers import ALICE, PYTHON, ROOT, process, public_folder

SILENT = Path(__file__).with_name("silent_files.py")
IN_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
#: Timeout in seconds. It ends only failing tests.
LONG = 300
#: Takes the host's lock, scans for holders and prints them.
LOOK = """
import sys
from attackers import gpu, host
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.transaction import locked
def never(command, **options):
    raise FileNotFoundError(2, "No such file", command[0])
with locked(sys.argv[1], 0):
    for one in find_holders(host(gpu(0), gpu(1)), dev=sys.argv[2], run=never, kubelet_directory="/none"):
        print(one.kind, one.pid, one.user, one.gpu_uuid, one.who)
"""


def fuse_folder():
    """Create two GPUs and the files for an unresponsive file system.

    For fixtures.
    """
    with public_folder() as made:
        (made / "dev").mkdir()
        for name in ("nvidia0", "nvidia1"):
            (made / "dev" / name).touch()
        (made / "silent.py").write_text(SILENT.read_text())
        (made / "mnt").mkdir()
        # Every user can open this node on hosts that let users mount file systems.
        os.mknod(made / "fuse", stat.S_IFCHR | 0o600, os.makedev(10, 229))
        (made / "fuse").chmod(0o666)
        yield made


@contextlib.contextmanager
def silent(folder, what, *within, user=ALICE):
    """Start a process of a user with an unresponsive file system.

    After the block, waits until the file system blocks no more child processes.
    """
    if not Path("/proc/filesystems").read_text().count("\tfuse\n"):
        pytest.skip("this kernel has no FUSE")
    command = [*within, *IN_A_NAMESPACE, PYTHON, folder / "silent.py", folder / "fuse", what, folder / "mnt"]
    with process(*command, user=user) as made:
        yield made
    # Import here, so that the test fails because of the scan if the module is missing.
    from ansible_collections.openfleet.gpu.plugins.module_utils.processes import child_process

    limit = time.monotonic() + LONG
    while child_process.stuck() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not child_process.stuck()


def look(folder):
    """Run a scan that holds the host's lock, and return its lines.

    The scan must end by itself and release the lock.
    """
    paths = (ROOT / "collections", ROOT / "tests/adversary")
    made = subprocess.Popen(
        [sys.executable, "-c", LOOK, folder / "state", folder / "dev"],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        told, problem = made.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        # Do not wait for the scan: if it is blocked in the kernel, it ends only together with the file system.
        made.kill()
        pytest.fail("the scan does not end")
    assert made.returncode == 0, problem
    with (folder / "state/lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return told.splitlines()
