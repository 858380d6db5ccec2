# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users' own file systems that never answer: root's looks at their processes and homes end, and hold no lock.

Whoever waits for such a file system in the kernel is not ended by SIGKILL. The tests end what serves it, and with it the waiting.
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
from attackers import ALICE, BOB, PYTHON, ROOT, holding, process, public_folder

from ansible_collections.openfleet.gpu.plugins.module_utils import child_process, file_worker
from ansible_collections.openfleet.gpu.plugins.module_utils.accounts import account_of, is_foreign

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
SILENT = Path(__file__).with_name("silent_files.py")
IN_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
#: No test waits for it.
LONG = 300
#: Takes the host's lock, looks and says what it found.
LOOK = """
import sys
from attackers import gpu, host
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.transaction import locked
def never(command, **options):
    raise FileNotFoundError(2, "No such file", command[0])
with locked(sys.argv[1], 0):
    for one in find_holders(host(gpu(0), gpu(1)), dev=sys.argv[2], run=never, kubelet_directory="/none"):
        print(one.kind, one.pid, one.user, one.gpu_uuid, one.who)
"""


@pytest.fixture
def folder():
    with public_folder() as made:
        (made / "dev").mkdir()
        for name in ("nvidia0", "nvidia1"):
            (made / "dev" / name).touch()
        (made / "silent.py").write_text(SILENT.read_text())
        (made / "mnt").mkdir()
        # Where a host lets users mount file systems, everybody may open the node.
        os.mknod(made / "fuse", stat.S_IFCHR | 0o600, os.makedev(10, 229))
        (made / "fuse").chmod(0o666)
        yield made


@contextlib.contextmanager
def silent(folder, what, *within, user=ALICE):
    """A process of a user with such a file system. What waits for it is free again behind the block."""
    if not Path("/proc/filesystems").read_text().count("\tfuse\n"):
        pytest.skip("this kernel has no FUSE")
    command = [*within, *IN_A_NAMESPACE, PYTHON, folder / "silent.py", folder / "fuse", what, folder / "mnt"]
    with process(*command, user=user) as made:
        yield made
    limit = time.monotonic() + LONG
    while child_process.stuck() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not child_process.stuck()


def look(folder):
    """What a run sees that holds the host's lock. It ends by itself, and the lock is free behind it."""
    paths = (ROOT / "collections", ROOT / "tests/adversary")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, folder / "state", folder / "dev"],
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
        capture_output=True, text=True, check=False, timeout=LONG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (folder / "state/lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return done.stdout.splitlines()


def test_a_root_that_does_not_answer_holds_up_no_look_and_keeps_no_lock(folder):
    """And holds nothing: by the kernel's word no process there has a GPU open."""
    with silent(folder, "root") as made, holding(folder / "dev/nvidia1", user=BOB) as held:
        assert is_foreign("/proc/%d" % made.pid) and account_of("/proc/%d" % made.pid) == ALICE
        for _again in range(3):
            (found,) = look(folder)
            assert found.startswith("device_handle %d %d GPU-1 " % (held.pid, BOB))
            # Later looks leave no more behind.
            assert child_process.stuck() == {ALICE: 1}


def test_with_a_gpu_open_it_is_not_known_what_else_it_was_given(folder):
    opened = 'exec 9<%s; exec "$@"' % (folder / "dev/nvidia0")
    with silent(folder, "root", "sh", "-c", opened, "sh") as made:
        found = look(folder)
        # One of each GPU: what a process has open says more than what is not known of it.
        assert [line.split()[0:4:3] for line in found] == [["device_handle", "GPU-0"], ["unknown", "GPU-1"]]
        assert "the devices of the container of pid %d, user %d, are not known" % (made.pid, ALICE) in found[1]


def test_words_that_do_not_answer_hold_up_no_look_and_keep_no_lock(folder):
    """They are in a file of that file system, mapped where the kernel reads the arguments."""
    opened = 'exec 9<%s; exec "$@"' % (folder / "dev/nvidia0")
    with silent(folder, "words", "sh", "-c", opened, "sh") as made:
        found = look(folder)
        assert [line.split()[:4] for line in found] == [["device_handle", str(made.pid), str(ALICE), "GPU-0"]]
        # The kernel's short name, in place of the command line.
        assert "pid %d ([" % made.pid in found[0]
        # Some kernels let go of a page when the one that waits is killed.
        assert child_process.stuck() in ({}, {ALICE: 1})


TELL = """
import fcntl, sys
from pathlib import Path
from ansible_collections.openfleet.gpu.plugins.module_utils import reclaim_tell
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
reclaim_tell._HOME_SECONDS = 1.0
with Path(sys.argv[1]).open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    for _again in range(2):
        try:
            reclaim_tell._home("notebook.service", int(sys.argv[2]), "It will be stopped.")
        except FleetError as error:
            print(error, flush=True)
with Path(sys.argv[1]).open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("free")
"""


def test_a_home_that_does_not_answer_keeps_no_lock(folder):
    """The child that waits for it has nothing open, and the next notice does not start another one."""
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
    assert "home: the look at it takes too long" in first
    assert "home: an earlier look at it hangs in the kernel" in second and "uid %d" % ALICE in second
    assert last == "free" and done.returncode == 0, done.stderr


# --- Without such a file system ----------------------------------------------------------------------------------------


@file_worker.task
def wait_for(path):
    return Path(path).read_text()


def test_who_does_not_answer_is_asked_once_in_a_look_and_root_a_few_times(folder, monkeypatch):
    """And all others go on to be asked."""
    monkeypatch.setattr(file_worker, "_SECONDS", 0.01)
    os.mkfifo(folder / "silent")
    (folder / "speaks").write_text("at once")
    worker = file_worker.Worker()
    asked = {ALICE: 0, 0: 0}
    real = worker._asked
    for account in (ALICE, 0):
        for _again in range(20):
            monkeypatch.setattr(
                worker, "_asked", lambda *a, who=account: asked.update({who: asked[who] + 1}) or real(*a)
            )
            with pytest.raises(file_worker.NoAnswerError) as error:
                worker.ask(account, wait_for, str(folder / "silent"))
            assert error.value.asked
    assert asked == {ALICE: 1, 0: 8}
    monkeypatch.setattr(file_worker, "_SECONDS", LONG)
    worker._seconds_left = LONG
    assert worker.ask(BOB, wait_for, str(folder / "speaks")) == "at once"
    worker.close()


def test_what_others_use_up_is_told_apart(folder, monkeypatch):
    (folder / "speaks").write_text("at once")
    for worker in (file_worker.Worker(deadline=time.monotonic() - 1), file_worker.Worker()):
        worker._unanswered = worker._unanswered or child_process.Counter()
        if worker._deadline > time.monotonic():
            worker._unanswered.update(dict.fromkeys(range(100, 100 + file_worker._MOST), 1))
        with pytest.raises(file_worker.NoAnswerError) as error:
            worker.ask(BOB, wait_for, str(folder / "speaks"))
        assert not error.value.asked


def test_an_error_of_the_question_is_raised(folder):
    with pytest.raises(FileNotFoundError):
        file_worker.ask(0, wait_for, str(folder / "none"))


def test_the_child_of_a_look_has_nothing_of_its_parent_open(folder):
    with (folder / "speaks").open("w"), file_worker.one_look():
        opened = file_worker.ask(0, list_opened)
    assert not [path for path in opened if str(folder) in path]
    assert sorted(opened)[:3] == [os.devnull] * 3


@file_worker.task
def list_opened():
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return found
