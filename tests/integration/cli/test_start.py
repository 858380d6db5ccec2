# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The overhead of a run of gpu-layout: imports, parsers and garbage collection."""

from __future__ import annotations

import json
import subprocess

from command_host import PYTHON

#: Runs the command like Python, and prints what the garbage collector excludes at its end.
PROGRAM = """
import argparse, atexit, gc, json, runpy, sys
made, make = [], argparse.ArgumentParser.__init__
def make_and_note(parser, *arguments, **options):
    make(parser, *arguments, **options)
    made.append(parser.prog)
argparse.ArgumentParser.__init__ = make_and_note
atexit.register(lambda: print(json.dumps([made, gc.isenabled(), gc.get_freeze_count()]), file=sys.stderr))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def end_of(command, *arguments: str) -> tuple[list[str], bool, int]:
    """Return the parsers that a run made, whether garbage is collected at its end, and how many objects that leaves out."""
    words = [PYTHON, "-I", "-c", PROGRAM, str(command), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stderr.splitlines()[-1]))


def test_run_builds_only_the_parser_of_its_subcommand(command):
    assert end_of(command, "fits", "H100-80GB", "7g.80gb")[0] == ["gpu-layout", "gpu-layout fits"]
    assert "gpu-layout apply" in end_of(command, "--help")[0]


def test_end_of_a_run_collects_no_garbage(command):
    _parsers, enabled, spared = end_of(command, "fits", "H100-80GB", "7g.80gb")
    assert enabled and spared > 0
