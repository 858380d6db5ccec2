# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the versions of the limiter's library that processes have mapped."""

from __future__ import annotations

import os

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.install import vgpu_limiter
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import file_worker

OLD, OLDER = vgpu_limiter.LIBRARY + ".1", vgpu_limiter.LIBRARY + ".0"


@pytest.fixture
def proc(tmp_path):
    for pid in (1, 7, 8):
        (tmp_path / str(pid)).mkdir()
    (tmp_path / "7/maps").write_text(
        "7f00-7f01 r-xp 0 8:1 9 /x\r7f02 r-xp 0 8:1 9 /opt/%s\x0b\n7f02-7f03 r-xp 0 8:1 9 /opt/%s (deleted)\n"
        % (OLDER, OLD)
    )
    return tmp_path


def test_mapped_library_is_in_use(proc):
    assert vgpu_limiter._mapped([OLD, OLDER], str(proc)) == {OLD}


def test_unresponsive_process_may_use_all_versions(proc, monkeypatch):
    """Assume that a process that hangs may use any version.

    The maps of a process cannot be read while it executes a program. This program may be on a file system that hangs.
    """
    monkeypatch.setattr(file_worker, "_SECONDS", 0.01)
    os.mkfifo(proc / "8/maps")
    assert vgpu_limiter._mapped([OLD, OLDER], str(proc)) == {OLD, OLDER}


def test_timeout_means_that_all_versions_may_be_in_use(proc, monkeypatch):
    monkeypatch.setattr(vgpu_limiter, "_LOOK_SECONDS", -1.0)
    assert vgpu_limiter._mapped([OLD, OLDER], str(proc)) == {OLD, OLDER}
