# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files of /proc completely or up to a limit, whatever they contain."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes.proc_files import read

LONG = "x" * 100_000


@pytest.fixture
def command_line():
    """Return the path of a command line so long that the kernel needs several reads."""
    words = [sys.executable, "-c", "print(flush=True); input()", LONG]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        yield "/proc/%d/cmdline" % child.pid
        child.kill()


def test_kernel_file_is_read_to_its_end_or_the_limit(command_line):
    whole = read(command_line)
    assert whole.endswith(LONG + "\0")
    assert read(command_line, 90_000) == whole[:90_000]
    assert read(command_line, 1 << 20) == whole


def test_invalid_bytes_are_replaced_and_line_ends_stay(tmp_path):
    (tmp_path / "comm").write_bytes(b"a\r\n\xff\xc3\xa9\x85\n")
    assert read(str(tmp_path / "comm")) == "a\r\n\ufffd\u00e9\ufffd\n"


def test_limit_is_in_bytes(tmp_path):
    (tmp_path / "comm").write_text("\u00e9\u00e9\u00e9", encoding="utf-8")
    assert read(str(tmp_path / "comm"), 4) == "\u00e9\u00e9"


def test_unreadable_file_is_empty(tmp_path):
    assert read(str(tmp_path / "none")) == ""
    assert read(str(tmp_path)) == ""
