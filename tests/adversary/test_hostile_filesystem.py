# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test users' unresponsive file systems.

Scans of processes and homes must end, and hold no lock. SIGKILL does not end a process that waits for such a file
system in the kernel. So the tests end the file system's server, which ends the wait.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes import accounts, child_process, file_worker
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.accounts import account_of, is_foreign
from tests.adversary.attackers import ALICE, BOB, holding
from tests.adversary.silence import LONG, fuse_folder, look, silent

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
folder = pytest.fixture(fuse_folder)


def test_unresponsive_root_folder_blocks_no_scan_and_no_lock(folder):
    """Scan a process whose root folder is unresponsive.

    The process is no holder, because the kernel shows that it has no GPU open.
    """
    with silent(folder, "root") as made, holding(folder / "dev/nvidia1", user=BOB) as held:
        assert is_foreign("/proc/%d" % made.pid) and account_of("/proc/%d" % made.pid) == ALICE
        for _again in range(3):
            (found,) = look(folder)
            assert found.startswith("device_handle %d %d GPU-1 " % (held.pid, BOB))
            # Later scans leave no more blocked children.
            assert child_process.stuck() == {ALICE: 1}


def test_unresponsive_arguments_block_no_scan_and_no_lock(folder):
    """Map the arguments from a file of the unresponsive file system.

    The kernel reads a process's arguments from this memory.
    """
    opened = 'exec 9<%s; exec "$@"' % (folder / "dev/nvidia0")
    with silent(folder, "words", "sh", "-c", opened, "sh") as made:
        found = look(folder)
        assert [line.split()[:4] for line in found] == [["device_handle", str(made.pid), str(ALICE), "GPU-0"]]
        # The kernel's short name is shown in place of the command line.
        assert "pid %d ([" % made.pid in found[0]
        # On some kernels, killing the child that waits for the page ends its wait.
        assert child_process.stuck() in ({}, {ALICE: 1})


def test_subordinate_id_counts_for_its_account(folder, monkeypatch, tmp_path):
    """Count processes with subordinate ids for the account that owns these ids.

    An account with many user ids may have no more waiting children than an account with one.
    """
    (tmp_path / "subuid").write_text("%d:300000:65536\n%d:400000:65536\n" % (ALICE, BOB))
    monkeypatch.setattr(accounts, "SUBORDINATE", str(tmp_path / "subuid"))
    for user, account in ((300005, ALICE), (400005, BOB), (500005, 500005), (ALICE, ALICE)):
        for within in ([], ["unshare", "--user"]):
            with holding(folder / "dev/nvidia0", user=user, within=within) as made:
                assert account_of("/proc/%d" % made.pid) == account
    # A user id in the host's account database counts as its own account, even if /etc/subuid lists it.
    (tmp_path / "subuid").write_text("%d:0:65536\n" % ALICE)
    assert account_of("/proc/%d" % os.getpid()) == 0


# --- tests without an unresponsive file system ----------------------------------------------------------------------


@file_worker.task
def wait_for(path):
    return Path(path).read_text()


def test_unresponsive_account_is_asked_once_per_scan_and_root_a_few_times(folder, monkeypatch):
    """Query an unresponsive account only once per scan.

    All other accounts are still queried.
    """
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


def test_limits_used_by_others_are_distinguished(folder, monkeypatch):
    (folder / "speaks").write_text("at once")
    for worker in (file_worker.Worker(deadline=time.monotonic() - 1), file_worker.Worker()):
        worker._unanswered = worker._unanswered or child_process.Counter()
        if worker._deadline > time.monotonic():
            worker._unanswered.update(dict.fromkeys(range(100, 100 + file_worker._MOST), 1))
        with pytest.raises(file_worker.NoAnswerError) as error:
            worker.ask(BOB, wait_for, str(folder / "speaks"))
        assert not error.value.asked


def test_account_cannot_use_up_the_questions_of_others(folder):
    """Check that one account cannot use up the queries of others.

    The account's processes can simulate any number of children that do not end.
    """
    (folder / "speaks").write_text("at once")
    worker = file_worker.Worker()
    worker._unanswered = child_process.Counter({ALICE: 10 * file_worker._MOST, 0: 100})
    assert worker.ask(BOB, wait_for, str(folder / "speaks")) == "at once"
    worker.close()


def test_subordinate_ids_count_once(monkeypatch, tmp_path):
    (tmp_path / "subuid").write_text("%d:300000:65536\n" % ALICE)
    monkeypatch.setattr(accounts, "SUBORDINATE", str(tmp_path / "subuid"))
    names = {str(pid): "look-%d" % (300000 + pid) for pid in range(2, 40)}
    status = "State:\tD (disk sleep)\nUid:\t%s\t0\t0\t0\nSigPnd:\t0000000000000100\n"

    def read(path):
        name = names[path.split("/")[2]]
        return name + "\n" if path.endswith("comm") else status % name[len("look-") :]

    monkeypatch.setattr(child_process, "read", read)
    monkeypatch.setattr(child_process.os, "listdir", lambda _path: list(names))
    assert child_process.stuck() == {ALICE: len(names)}


def test_task_of_a_module_loaded_during_a_scan_is_answered(folder):
    (folder / "speaks").write_text("at once")
    with file_worker.one_look():
        assert file_worker.ask(0, wait_for, str(folder / "speaks")) == "at once"

        @file_worker.task
        def loaded_later(path):
            return Path(path).read_text().upper()

        assert file_worker.ask(0, loaded_later, str(folder / "speaks")) == "AT ONCE"


def test_error_of_the_question_is_raised(folder):
    with pytest.raises(FileNotFoundError):
        file_worker.ask(0, wait_for, str(folder / "none"))


def test_child_of_a_scan_inherits_no_descriptors(folder):
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
