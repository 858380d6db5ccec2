# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a process that poses as GPU monitoring still holds its GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import watchers as holders_watchers
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from tests.unit.module_utils.holders.holder_hosts import gpu, host, instance, named, no_tools, opened

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="other users, and files of root, need root"),
]
#: Commands that run a program as an unprivileged user.
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PROGRAMS = ["dcgm-exporter", "nv-hostengine", "nvidia-smi"]


@pytest.fixture
def roots(monkeypatch):
    """Return a directory that only root can change.

    Only root can change the directories above it too.
    """
    with tempfile.TemporaryDirectory(prefix="openfleet-", dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(holders_watchers, "DIRECTORIES", (folder,))
        yield Path(folder)


@pytest.fixture
def users():
    """Return a user's directory that other users can read."""
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        os.chown(folder, 65534, 65534)
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def dev(roots):
    (roots / "dev").mkdir()
    (roots / "dev" / "nvidia0").touch()
    return roots / "dev"


@pytest.fixture
def found(dev):
    """Return a function that runs a program with the GPU open.

    The function returns true if the program only watches, so that it does not block a change of an instance.
    """

    def look(program, *within):
        with opened(dev / "nvidia0", program=program, within=within) as process:
            of = host(gpu(0, instance(1, 0)))
            holders = find_holders(of, dev=str(dev), run=no_tools, kubelet_directory=str(dev / "kubelet"))
            (holder,) = [one for one in holders if one.pid == process.pid]
            assert holder.blocks()
            assert holder.watches == (not holder.blocks(1))
            return holder.watches

    return look


def bound(source, target):
    """Return a command prefix that mounts `source` over `target`.

    Users can do this in their own mount namespace.
    """
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(source), str(target), *NOBODY]


@pytest.mark.parametrize("name", PROGRAMS)
def test_own_program_of_a_user_is_a_holder(found, users, name):
    program = named(users, name)
    os.chown(program, 65534, 65534)
    assert not found(program, *NOBODY)


@pytest.mark.parametrize("name", PROGRAMS)
def test_host_program_only_watches_for_any_user(found, roots, name):
    assert found(named(roots, name))
    assert found(named(roots, name), *NOBODY)


def test_program_in_a_users_directory_is_a_holder(found, users):
    # A hard link has the same effect if the host allows it (fs.protected_hardlinks).
    assert not found(named(users, "nvidia-smi"), *NOBODY)


@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_replaceable_program_is_a_holder(found, roots, mode):
    program = named(roots, "nvtop")
    os.chown(program, 0, 65534)
    program.chmod(mode)
    assert not found(program, *NOBODY)
    program.chmod(0o755)
    assert found(program, *NOBODY)
    roots.chmod(0o777)
    assert not found(program, *NOBODY)


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="no mount namespaces here",
)
def test_program_mounted_over_the_hosts_is_a_holder(found, roots, users):
    there = roots / "nvidia-smi"
    there.write_bytes(b"the host's own")
    there.chmod(0o755)
    program = named(users, "train")
    os.chown(program, 65534, 65534)
    assert not found(there, *bound(program, there))
    # Also mount root's file over the user's file.
    mine = users / "nvidia-smi"
    mine.touch()
    assert not found(mine, *bound(Path(sys.executable).resolve(), mine))


def test_name_set_by_the_process_does_not_count(dev, roots):
    """Ignore the name that the process sets with prctl(2), PR_SET_NAME.

    ps shows this name.
    """
    script = (
        "import ctypes, sys\nctypes.CDLL(None).prctl(15, b'dcgm-exporter', 0, 0, 0)\n"
        "file = open(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()"
    )
    command = [*NOBODY, sys.executable, "-c", script, str(dev / "nvidia0")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        assert Path("/proc/%d/comm" % process.pid).read_text() == "dcgm-exporter\n"
        of = host(gpu(0, instance(1, 0)))
        (holder,) = [one for one in find_holders(of, dev=str(dev), run=no_tools) if one.pid == process.pid]
        assert not holder.watches and holder.blocks(1)
        process.stdin.close()


def test_root_in_a_container_with_the_name_of_the_scan_is_not_hidden(dev, roots):
    """Do not hide a process of a container's root with the name of the scan.

    Root in a container without a user namespace is the host's root.
    """
    program = named(roots, "gpu-layout")
    within = ["unshare", "--pid", "--fork", "--kill-child"]
    for words, count in (([], 0), (within, 1)):
        with opened(dev / "nvidia0", "metrics", program=program, within=words):
            holders = find_holders(host(gpu(0)), dev=str(dev), run=no_tools, kubelet_directory=str(dev / "kubelet"))
            assert len([one for one in holders if one.kind == "device_handle"]) == count
