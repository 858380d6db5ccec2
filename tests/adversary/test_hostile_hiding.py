# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a node outside the main thread's descriptors still holds the GPU.

The node is /dev/zero, which every user can open and map. The simulated driver has its major number.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.terminate import end_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import bare_handles, hidden_files, tasks
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import devices as holders_devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import processes as holders_processes
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import file_worker
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import host as vgpu_host
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import identity as vgpu_identity
from tests.adversary import hiding
from tests.adversary.attackers import ALICE, BOB, PYTHON, Window, gpu, holding, host, process, public_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")

#: The major number of memory devices, and the minor number of /dev/zero.
MEMORY, ZERO = 1, 5
#: Makes the functions of the script hiding.py available to the tests' own programs.
WITH_WAYS = "import sys\nsys.path.insert(0, sys.argv.pop(1))\nfrom hiding import *\n"
IN_TABLES = ["thread", "two_threads", "main_ended", "main_ended_and_thread"]
IN_MAPS = ["mapped", "mapped_low", "main_ended_and_mapped"]
#: The kernel shows that files are open in these ways, but not which files.
SUSPECTS = {
    "stream": "sent to its Unix socket",
    "datagram": "sent to its Unix socket",
    "not_accepted": "sent to its Unix socket",
    "socket_in_flight": "sent to its Unix socket",
    "in_flight_of_thread": "sent to its Unix socket",
    "ring": "registered with io_uring",
    "ring_of_thread": "registered with io_uring",
    "mapped_ring": "registered with io_uring",
}


@pytest.fixture
def folder(monkeypatch):
    with public_folder() as made:
        (made / "dev").mkdir()
        (made / "dev/nvidia5").write_bytes(bytes(hiding.PAGE))
        shutil.copy(hiding.__file__, made)
        yield made


@pytest.fixture
def driver(monkeypatch):
    """Simulate a driver that has the major number of memory devices."""
    monkeypatch.setattr(holders_devices, "_GPU_MAJOR", MEMORY)


@contextlib.contextmanager
def hides(folder, how, node="/dev/zero", user=ALICE):
    """Start a process of a user that hides the node.

    Skips the test if the kernel does not support the method.
    """
    made = process(PYTHON, folder / "hiding.py", how, node, user=user)
    try:
        started = made.__enter__()
    except AssertionError as error:
        pytest.skip("this kernel or its settings lack what %s takes: %s" % (how, error))
    if how.startswith("main_ended"):
        wait_for_main_thread(started)
    try:
        yield started
    finally:
        made.__exit__(None, None, None)


def wait_for_main_thread(made):
    """Wait until the main thread has ended.

    The other thread can report that it runs before the main thread has ended.
    """
    limit = time.monotonic() + 60
    while Path("/proc/%d/stat" % made.pid).read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < limit
        time.sleep(0.01)


def holders(folder, *processes, modules=None):
    window = Window(folder / "proc", *processes)
    (window.folder / "devices").write_text("Character devices:\n  1 mem\n")
    if modules is not None:
        (window.folder / "modules").write_text(modules)
    return list(find_holders(host(gpu(ZERO)), str(window.folder), str(folder / "dev"), kubelet_directory="/none"))


def by_name(folder, made):
    """Return root's holders for a process if nodes are identified by their file name.

    Hosts with simulated GPUs identify nodes in this way.
    """
    found = find_holders(host(gpu(ZERO)), dev=str(folder / "dev"), kubelet_directory="/none")
    return [holder for holder in found if holder.pid == made.pid]


@pytest.mark.parametrize("how", IN_TABLES + IN_MAPS)
def test_node_outside_of_descriptors_is_open(folder, driver, how):
    with hides(folder, how) as made:
        found = holders(folder, made)
        assert [(one.kind, one.pid, one.gpu_uuid) for one in found] == [("device_handle", made.pid, "GPU-5")]
        assert found[0].user == str(ALICE) and how in found[0].command and found[0].started_ticks


@pytest.mark.parametrize("how", IN_TABLES + IN_MAPS)
def test_names_are_nodes_on_simulated_hosts(folder, how):
    with hides(folder, how, folder / "dev/nvidia5") as made:
        assert [(one.kind, one.gpu_uuid) for one in by_name(folder, made)] == [("device_handle", "GPU-5")]


@pytest.mark.parametrize("how", ["ring", "ring_of_thread"])
def test_names_of_registered_files_are_nodes_on_simulated_hosts(folder, how):
    with hides(folder, how, folder / "dev/nvidia5") as made:
        assert [(one.kind, one.gpu_uuid) for one in by_name(folder, made)] == [("device_handle", "GPU-5")]


@pytest.mark.parametrize("how", SUSPECTS)
def test_possible_node_blocks_as_unknown(folder, driver, how):
    with hides(folder, how) as made:
        (found,) = holders(folder, made)
        assert (found.kind, found.pid, found.gpu_uuid, found.user) == ("unknown", made.pid, "GPU-5", str(ALICE))
        assert SUSPECTS[how] in found.who and "pid %d" % made.pid in found.who and found.blocks()


@pytest.mark.parametrize("how", ["stream", "ring", "mapped_ring"])
def test_use_count_explained_by_open_files_clears_suspects(folder, driver, how):
    """Check that explained use counts do not block a change.

    Some users of GPUs also use io_uring, or are stopped while they receive files.
    """
    with hides(folder, how) as made:
        assert (
            holders(folder, made, modules="nvidia 1 1 nvidia_uvm, Live 0x0 (POE)\nnvidia_uvm 1 0 - Live 0x0 (OE)\n")
            == []
        )


@pytest.mark.parametrize("how", [*SUSPECTS, "closed_ring"])
def test_unexplained_use_count_blocks(folder, driver, how):
    """Block a change if open files do not explain the driver's use count.

    Only the use count reveals a ring that has neither a descriptor nor a mapping.
    """
    with hides(folder, how) as made:
        found = holders(folder, made, modules="nvidia 1 3 nvidia_uvm, Live 0x0 (POE)\n")
        (count,) = [one for one in found if one.pid is None]
        assert (count.kind, count.gpu_uuid) == ("unknown", "GPU-5") and "2 more references than open files" in count.who
        assert count.blocks()


@pytest.mark.parametrize("how", ["nothing", "thread", "mapped"])
def test_process_that_cannot_hide_is_no_suspect(folder, driver, how):
    with hides(folder, how) as made:
        found = holders(folder, made, modules="nvidia 1 1 nvidia_uvm, Live 0x0 (POE)\n")
        assert [one.kind for one in found] == ([] if how == "nothing" else ["device_handle"])


def test_briefly_queued_files_are_no_suspects(folder, driver):
    """Ignore files that are queued only briefly.

    Every service that receives files from clients has such files.
    """
    late = "pair = in_flight('/dev/null')\nthreading.Timer(0.2, lambda: pair[1].recvmsg(1, 0)).start()\nwait()\n"
    with process(PYTHON, "-c", WITH_WAYS + late, folder, user=ALICE) as made:
        assert holders(folder, made) == []


def test_without_kcmp_every_table_is_read(folder, driver, monkeypatch):
    monkeypatch.setattr(tasks, "_CALL_NUMBER", None)
    with hides(folder, "thread") as made:
        assert [(one.kind, one.pid) for one in holders(folder, made)] == [("device_handle", made.pid)]


def test_threads_that_share_a_table_are_not_read_again(folder, driver, monkeypatch):
    many = (
        "import threading\nfor _ in range(300): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    many += "import sys\nprint('open', flush=True)\nsys.stdin.read()"
    read = []
    real = os.scandir
    with process(PYTHON, "-c", many, user=ALICE) as made:
        monkeypatch.setattr(os, "scandir", lambda path: read.append(str(path)) or real(path))
        assert holders(folder, made) == []
    assert [path for path in read if path.endswith("/fd")] == ["%s/proc/%d/fd" % (folder, made.pid)]


def test_descriptor_tables_of_many_tasks_are_read_until_the_deadline(folder, driver):
    """Read the descriptor tables of all threads of a process.

    Each thread has its own descriptor table, and the node is in the last one.
    """
    crowd = WITH_WAYS + (
        "ready = threading.Semaphore(0)\n"
        "def own(number):\n    libc.unshare(CLONE_FILES)\n    [os.dup(0) for _ in range(20)]\n"
        "    number == 99 and opened('/dev/zero')\n    ready.release()\n    threading.Event().wait()\n"
        "for number in range(100): threading.Thread(target=own, args=[number]).start()\n"
        "[ready.acquire() for _ in range(100)]\nwait()\n"
    )
    with process(PYTHON, "-c", crowd, folder, user=ALICE) as made:
        assert [(one.kind, one.pid) for one in holders(folder, made)] == [("device_handle", made.pid)]


def test_process_that_starts_during_a_scan_is_scanned(folder, driver, monkeypatch):
    with hides(folder, "nothing") as first, hides(folder, "mapped") as made:
        listed = iter([[first.pid], [first.pid, made.pid], [first.pid, made.pid]])
        monkeypatch.setattr(holders_processes, "_pids", lambda _proc: next(listed))
        assert [(one.kind, one.pid) for one in holders(folder, first, made)] == [("device_handle", made.pid)]


#: Opens a node and a listening socket, and ends its main thread.
SERVES = WITH_WAYS + "server = socket.create_server(('127.0.0.1', 0))\nmain_ended(sys.argv[1])\n"


def test_sockets_count_after_the_main_thread_ended(folder):
    """Count sockets after the main thread has ended.

    Reclaim must not treat the process as idle, because it still serves clients.
    """
    with process(PYTHON, "-c", SERVES, folder, folder / "dev/nvidia5", user=ALICE) as made:
        wait_for_main_thread(made)
        found = find_holders(host(gpu(ZERO)), dev=str(folder / "dev"), kubelet_directory="/none", sockets=True)
        (holder,) = [one for one in found if one.pid == made.pid]
        assert (holder.listens, holder.clients) == (True, 0)


def test_tenant_process_counts_after_its_main_thread_ended(folder):
    variable = {vgpu_identity._NAME_VARIABLE.rstrip("="): "alice"}
    with process(PYTHON, folder / "hiding.py", "main_ended", "/dev/zero", user=ALICE, **variable) as made:
        wait_for_main_thread(made)
        assert vgpu_host.VgpuHost(root=str(folder)).names_of(made.pid) == {"alice"}


# --- mappings that cannot be read -----------------------------------------------------------------------------------


def test_unresponsive_mappings_block_as_unknown_for_one_user(folder, driver, monkeypatch):
    """Check that unreadable mappings affect only one user.

    A page fault waits for this user's file system, so only this user's processes count as unknown.
    """
    real = hidden_files._beginning
    monkeypatch.setattr(file_worker, "_SECONDS", 1.0)
    with hides(folder, "nothing") as silent, hides(folder, "mapped", user=BOB) as made:
        asked = lambda path: signal.pause() if "/%d/" % silent.pid in path else real(path)  # noqa: E731
        monkeypatch.setattr(hidden_files, "_beginning", asked)
        found = {(one.kind, one.pid): one for one in holders(folder, silent, made)}
        assert set(found) == {("unknown", silent.pid), ("device_handle", made.pid)}
        assert "cannot be read in time" in found["unknown", silent.pid].who


def test_unreadable_links_of_mapped_files_are_not_skipped(folder, driver, monkeypatch):
    monkeypatch.setattr(hidden_files, "_may_follow", lambda: False)
    with hides(folder, "mapped") as made:
        (found,) = holders(folder, made)
        assert (found.kind, found.pid) == ("unknown", made.pid) and "CAP_SYS_ADMIN" in found.who


# --- the scan ends a process only when its last thread has ended ----------------------------------------------------

#: Ignores SIGTERM, and ends its main thread.
STUBBORN = WITH_WAYS + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nmain_ended(sys.argv[1])\n"


@pytest.mark.parametrize("how", IN_TABLES + IN_MAPS)
def test_hidden_holder_is_ended(folder, how):
    with hides(folder, how, folder / "dev/nvidia5") as made:
        (holder,) = by_name(folder, made)
        assert bare_handles.has_open(made.pid)
        (ended,) = end_holders([Disturbance("gpu 5", (holder,))], grace_seconds=60)
        assert ended == holder.who and made.wait(timeout=60) == -signal.SIGTERM


def test_process_without_main_thread_is_waited_for_and_killed(folder):
    with process(PYTHON, "-c", STUBBORN, folder, folder / "dev/nvidia5", user=ALICE) as made:
        wait_for_main_thread(made)
        (holder,) = by_name(folder, made)
        assert end_holders([Disturbance("gpu 5", (holder,))], grace_seconds=0.2)
        assert made.wait(timeout=60) == -signal.SIGKILL


def test_process_that_closed_the_node_is_not_ended(folder):
    with holding(folder / "dev/nvidia5", user=ALICE) as held, hides(folder, "nothing", user=ALICE) as other:
        assert bare_handles.has_open(held.pid) and not bare_handles.has_open(other.pid)
