# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test runs with users' unresponsive file systems.

The scan must end and release the lock. test_hostile_filesystem tests the blocked children, and how the scan counts
them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.adversary.attackers import ALICE, ROOT
from tests.adversary.silence import LONG, SILENT, fuse_folder, look, silent

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
folder = pytest.fixture(fuse_folder)


def test_other_devices_of_a_process_with_an_open_gpu_are_unknown(folder):
    opened = 'exec 9<%s; exec "$@"' % (folder / "dev/nvidia0")
    with silent(folder, "root", "sh", "-c", opened, "sh") as made:
        found = look(folder)
        # Expect one line for each GPU. If a process has the GPU open, the line says so, even if other processes are
        # unknown.
        assert [line.split()[0:4:3] for line in found] == [["device_handle", "GPU-0"], ["unknown", "GPU-1"]]
        assert "the devices of the container of pid %d, user %d, are not known" % (made.pid, ALICE) in found[1]


TELL = """
import fcntl, sys
from pathlib import Path
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import tell
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
tell._HOME_SECONDS = 1.0
with Path(sys.argv[1]).open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    for _again in range(2):
        try:
            tell._home("notebook.service", int(sys.argv[2]), "It will be stopped.")
        except FleetError as error:
            print(error, flush=True)
with Path(sys.argv[1]).open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("free")
"""


def test_unresponsive_home_holds_no_lock(folder):
    """Hold no lock while an unresponsive home blocks a child.

    The blocked child has no file open, and the next notice starts no other child.
    """
    home = folder / "home"
    home.mkdir()
    os.chown(home, ALICE, ALICE)
    (folder / "passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:%d:%d::%s:/bin/sh\n" % (ALICE, ALICE, home))
    script = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "-", folder / "passwd"]
    tell = [sys.executable, "-c", TELL, folder / "lock", str(ALICE)]
    done = subprocess.run(
        [*inside, sys.executable, SILENT, folder / "fuse", "home", home, str(ALICE), *tell],
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        capture_output=True, text=True, check=False, timeout=LONG,
    )  # fmt: skip
    first, second, last = done.stdout.splitlines()
    assert "home: the query takes too long" in first
    assert "home: an earlier query hangs in the kernel" in second and "uid %d" % ALICE in second
    assert last == "free" and done.returncode == 0, done.stderr
