# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that cached code equals the code that its source compiles to."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
#: This program imports `made` from an archive, and compiles `own.py` as the archive on a host would.
PROGRAM = """
import sys
sys.path[:0] = [%r, sys.argv[1]]
from tests.integration import compiled_code
if sys.argv[3]:
    compiled_code.keep(sys.argv[3])
import importlib.machinery, py_compile
import made
own, scope = sys.argv[2], {}
py_compile.compile(own, cfile=own + "c", dfile="named/own.py", doraise=True)
code = importlib.machinery.SourcelessFileLoader("own", own + "c").get_code("own")
exec(code, scope)
print(made.said(), made.said.__code__.co_filename, made.inner()().co_filename, scope["WORD"], code.co_filename)
""" % str(TESTS.parent)
MADE = """
import sys
def said(): return %r
def inner():
    def innermost(): return sys._getframe().f_code
    return innermost
"""


@pytest.fixture
def run(tmp_path):
    def run(word, folder, name="made.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("made.py", MADE % word)
        (tmp_path / "own.py").write_text("WORD = %r\n" % word)
        command = [sys.executable, "-I", "-c", PROGRAM, str(tmp_path / name), str(tmp_path / "own.py"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    return run


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def test_code_is_equal_with_and_without_the_cache(run, kept):
    without = run("word", "")
    assert without.split()[::3] == ["word", "word"] and without.split()[-1] == "named/own.py"
    assert run("word", kept) == without
    made = {file.name: file.stat().st_mtime_ns for file in kept.iterdir()}
    assert len(made) == 2
    assert run("word", kept) == without
    assert {file.name: file.stat().st_mtime_ns for file in kept.iterdir()} == made
    # Error messages print the path of the archive, so it must be the current path.
    assert run("word", kept, "other.zip") == run("word", "", "other.zip") != without


def test_changed_source_is_compiled_again(run, kept):
    run("word", kept)
    assert run("changed", kept) == run("changed", "")
    assert len(list(kept.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"\0\1", b"i\2\0\0\0"])
def test_damaged_file_or_missing_folder_only_costs_time(run, kept, damage):
    without = run("word", "")
    run("word", kept)
    for file in kept.iterdir():
        file.write_bytes(damage)
    assert run("word", kept) == without
    assert run("word", kept / "none") == without
