# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that users who open a GPU's node under another name are holders.

The node is /dev/full, which every user can open. The simulated driver has its major number.
"""

from __future__ import annotations

import os

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import devices as holders_devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import open_files
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.devices import Devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.processes import command_of, scan
from tests.adversary.attackers import ALICE, PYTHON, Window, gpu, host, process, public_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")

#: The major number of memory devices, and the minor number of /dev/full.
MEMORY, FULL = 1, 7
OF_ROOT, OF_A_USER = ["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]
#: Opens the file `$1` and prints `open`, after unmounting a second argument.
HOLD = """
import ctypes, sys
f = open(sys.argv[1])
if sys.argv[2:]:
    assert ctypes.CDLL(None).umount2(sys.argv[2].encode(), 2) == 0
print("open", flush=True)
sys.stdin.read()
"""
#: Keeps a descriptor from a process that opened the node in its own namespace and has ended.
RECEIVE = """
import socket, subprocess, sys
near, far = socket.socketpair()
send = (
    "import array, socket, sys\\n"
    "far = socket.socket(fileno=int(sys.argv[1]))\\n"
    "file = open('/mnt/x')\\n"
    "far.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [file.fileno()]))])"
)
command = [*sys.argv[2:], "sh", "-ec", sys.argv[1] + '\\nexec "$@"', "sh", sys.executable, "-c", send, str(far.fileno())]
subprocess.run(command, pass_fds=[far.fileno()], check=True)
kept = near.recvmsg(1, socket.CMSG_SPACE(4))
print("open", flush=True)
sys.stdin.read()
"""
BIND = "mount -nt tmpfs none /mnt\ntouch '/mnt/%s'\nmount -n --bind /dev/full '/mnt/%s'"


@pytest.fixture
def folder(monkeypatch):
    monkeypatch.setattr(holders_devices, "_GPU_MAJOR", MEMORY)
    with public_folder() as made:
        (made / "dev").mkdir()
        yield made


def look(folder, *processes):
    window = Window(folder / "proc", *processes)
    (window.folder / "devices").write_text("Character devices:\n  1 mem\n")
    found = find_holders(host(gpu(FULL)), str(window.folder), str(folder / "dev"), kubelet_directory="/none")
    return [(holder.kind, holder.pid, holder.gpu_uuid) for holder in found]


def held_by(made):
    return [("device_handle", made.pid, "GPU-%d" % FULL)]


@pytest.mark.parametrize("within", [OF_ROOT, OF_A_USER], ids=["root in a container", "a user"])
@pytest.mark.parametrize(
    ("arrange", "where"),
    [
        (BIND % ("x", "x"), ["/mnt/x"]),
        (BIND % ("a b", "a b"), ["/mnt/a b"]),
        ("mount -n --rbind /dev /mnt", ["/mnt/full"]),
        ("mount -n --bind /dev/full /dev/null", ["/dev/null"]),
        (BIND % ("x", "x"), ["/mnt/x", "/mnt/x"]),
        ("mount -nt tmpfs none /mnt\nmknod /mnt/x c 1 7", ["/mnt/x"]),
    ],
    ids=["elsewhere", "with a blank", "all of /dev", "as /dev/null", "and taken away", "made"],
)
def test_node_is_recognized_under_any_name(folder, within, arrange, where):
    if "mknod" in arrange and within is OF_A_USER:
        pytest.skip("only root makes nodes that can be opened")
    command = [*within, "sh", "-ec", arrange + '\nexec "$@"', "sh", PYTHON, "-c", HOLD, *where]
    with process(*command, user=0 if within is OF_ROOT else ALICE) as made:
        assert look(folder, made) == held_by(made)


def test_node_from_another_namespace_is_recognized(folder):
    """Recognize a GPU's node although no path leads to its mount."""
    with process(PYTHON, "-c", RECEIVE, BIND % ("x", "x"), *OF_A_USER, user=ALICE) as made:
        assert look(folder, made) == held_by(made)


def test_file_on_a_server_is_not_read_and_hides_no_node(folder, monkeypatch):
    """Check that a file on a server is not read.

    A lost server never responds. A path below the server's mount is recognized by the mount, not by the name.
    """
    monkeypatch.setattr(open_files.RemoteMounts, "of", lambda *_arguments: {"/dev": "1000000"})
    with process(PYTHON, "-c", HOLD, "/dev/full", user=ALICE) as made:
        assert look(folder, made) == held_by(made)
    line = "77 1 0:50 / /home/a\\040b rw,relatime shared:1 - nfs4 server:/home rw\n78 1 0:51 / /x rw - fuse x rw\n"
    assert open_files._REMOTE_MOUNT.findall(line) == [("77", "/home/a\\040b")]


def test_node_is_recognized_without_statx(folder, monkeypatch):
    monkeypatch.setattr(open_files, "_call", None)
    with process(PYTHON, "-c", HOLD, "/dev/full", user=ALICE) as made:
        assert look(folder, made) == held_by(made)


# --- reads that fail or never end -----------------------------------------------------------------------------------


def test_unreadable_process_is_not_skipped(folder, monkeypatch):
    """Do not skip a process that cannot be read, for example without free descriptors.

    It may hold a GPU.
    """
    real = os.scandir

    def scandir(path):
        if str(path).startswith(str(folder / "proc")):
            raise OSError(24, "Too many open files")
        return real(path)

    with process(PYTHON, "-c", HOLD, "/dev/full", user=ALICE) as made:
        monkeypatch.setattr(os, "scandir", scandir)
        assert [(kind, pid) for kind, pid, _gpu in look(folder, made)] == [("unknown", None)]


def test_very_long_command_line_is_read_in_part(monkeypatch):
    assert command_of(["x", *["y"] * 5000]) == "x" + " y" * 498 + "..."
    shown = []
    monkeypatch.setattr(
        "ansible_collections.openfleet.gpu.plugins.module_utils.processes.command_line.shown",
        lambda words: shown.extend(words) or "",
    )
    command_of(["y"] * 30000)
    assert len(shown) == 1000


def test_scan_reads_this_machines_proc(folder):
    """Scan this machine's /proc.

    With a driver, the scan reads the device number of every open file.
    """
    devices = Devices(host(gpu(FULL)), "/proc", str(folder / "dev"))
    devices.has_driver = True
    assert not scan(devices).crowded
