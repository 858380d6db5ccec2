# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the errors of the lock, which name its owner and why it cannot be acquired."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import durable
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.processes import started_ticks_of
from ansible_collections.openfleet.gpu.plugins.module_utils.plan import transaction


def refused(folder):
    with pytest.raises(ApplyError) as error, transaction.locked(str(folder), 0):
        pass
    return str(error.value)


def test_ended_run_is_not_named(tmp_path):
    """The file still has the name of the ended run until the new owner writes its own."""
    ended = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    start = started_ticks_of(ended.pid)
    run = {"pid": ended.pid, "command": "gpu-layout apply", "since": 0, "start": start}
    (tmp_path / "lock").write_text(json.dumps(run))
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "pid %d (gpu-layout apply) since 1970-01-01" % ended.pid in refused(tmp_path)
        ended.communicate()
        said = refused(tmp_path)
    assert "pid %d" % ended.pid not in said
    assert "an unknown process (see: fuser %s)" % (tmp_path / "lock") in said


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"start": 1}', '{"pid": "x", "start": 1}'])
def test_lock_of_another_user_is_an_error(tmp_path, text):
    (tmp_path / "lock").write_text(text)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "an unknown process" in refused(tmp_path)


def test_module_is_named_as_a_run_of_ansible(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ansible.module_utils.basic", object())
    with transaction.locked(str(tmp_path), 0):
        said = refused(tmp_path)
    assert "another run is changing the layout: pid %d (a run of Ansible, such as site.yml) since" % os.getpid() in said


def test_command_is_named_by_its_arguments(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "ansible.module_utils.basic", raising=False)
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/gpu-layout", "apply"])
    with transaction.locked(str(tmp_path), 0):
        assert "(/usr/local/bin/gpu-layout apply) since" in refused(tmp_path)


def test_file_instead_of_a_directory_has_another_fix_than_root(tmp_path):
    (tmp_path / "state").write_text("")
    said = refused(tmp_path / "state")
    assert "the lock cannot be taken" in said and "Run as root" not in said


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "mount it for writing"),
        (errno.ENOSPC, "make room"),
        (errno.EACCES, "Run as root"),
        (errno.EPERM, "is immutable: see lsattr, and chattr -i"),
        (errno.EIO, "Check that path"),
    ],
)
def test_fix_matches_the_error(number, words):
    cure = durable.cure_of(OSError(number, os.strerror(number)))
    assert words in cure
    assert ("root" in cure) == (number in (errno.EACCES, errno.EPERM))
    assert "gpu_layout_state_directory" not in cure


@pytest.mark.parametrize(
    ("place", "advised"),
    [
        ("etc/openfleet-gpu/layout.json", False),
        ("usr/local/bin/gpu-layout", False),
        ("var/lib/openfleet-gpu/j.json", True),
    ],
)
def test_another_state_directory_is_advised_only_for_its_files(tmp_path, monkeypatch, place, advised):
    def refuse(*_arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ApplyError, match="read-only: mount it for writing") as caught:
        durable.write_text(tmp_path / place, "")
    assert ("gpu_layout_state_directory" in caught.value.cure) == advised
