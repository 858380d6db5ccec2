# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which files gpu-layout loads and reads at its start.

Loading these files takes most of the time of a run.
"""

from __future__ import annotations

import json
import subprocess
import zipfile

import pytest

from tests.integration.command_host import PYTHON

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
# Runs a command. Prints its argument parsers, how often Python decodes each module except the main file, and whether
# the command exits without cleanup.
PROGRAM = """
import argparse, collections, json, os, runpy, sys

reads, parsers, ends, make = collections.Counter(), [], [], argparse.ArgumentParser.__init__

def make_and_note(parser, *arguments, **options):
    make(parser, *arguments, **options)
    parsers.append(parser.prog)

def end(status):
    ends.append(status)
    sys.exit(status)

argparse.ArgumentParser.__init__, os._exit = make_and_note, end
sys.addaudithook(lambda event, arguments: reads.update(arguments) if event == "marshal.loads" else None)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    modules = [count for code, count in reads.items() if b"Importer" not in code]
    print(json.dumps([parsers, modules, ends]), file=sys.stderr)
"""


def noted(command, *arguments: str) -> tuple[list[str], list[int], list[int]]:
    """Return the argument parsers, each module's reads, and the exit statuses.

    The last list has only the statuses of exits without cleanup.
    """
    words = [PYTHON, "-I", "-c", PROGRAM, str(command), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return tuple(json.loads(done.stderr.splitlines()[-1]))


def loaded(*words: str, **options) -> set[str]:
    """Return the modules that a Python run imports."""
    done = subprocess.run(
        [PYTHON, "-X", "importtime", *words], capture_output=True, text=True, check=False, timeout=120, **options
    )
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("changes", [False, True], ids=["no change", "change"])
def test_a_run_loads_neither_pynvml_nor_libraries_of_help(host, changes):
    """Count imports in the parent process only.

    The child process loads pynvml, and its imports do not count.
    """
    host.simulated.create([{"model": "H100-80GB", "count": 2}])
    layout = host.layout(LAYOUT)
    if not changes:
        host("apply", "--layout", layout)
    names = loaded(*host.words("apply", "--layout", layout)[1:], env=host.simulated.environment)
    assert "openfleet_gpu.change.converge" in names
    # Old releases of argparse import shutil themselves.
    assert {"pynvml", "shutil", "lzma"} & names <= loaded("-c", "import argparse")
    assert host.seen()[0] == [("3g.40gb", 0), ("3g.40gb", 4)]


def test_a_run_makes_the_parser_of_its_own_subcommand_alone(command):
    assert noted(command, "fits", "H100-80GB", "7g.80gb")[0] == ["gpu-layout", "gpu-layout fits"]
    assert "gpu-layout apply" in noted(command, "--help")[0]


def test_each_module_is_read_once(command):
    modules = noted(command, "fits", "H100-80GB", "7g.80gb")[1]
    assert len(modules) > 10
    assert set(modules) == {1}


def test_a_run_does_not_destroy_its_objects_at_its_end(command):
    assert noted(command, "fits", "H100-80GB", "7g.80gb")[2] == [0]


@pytest.mark.parametrize("subcommand", ["plan", "apply", "export"])
def test_a_missing_pynvml_is_reported(host, subcommand):
    host.simulated.create([{"model": "H100-80GB", "count": 2}])
    copy = host.folder / "gpu-layout"
    with zipfile.ZipFile(host.command) as archive, zipfile.ZipFile(copy, "w") as other:
        for member in archive.infolist():
            if not member.filename.startswith("pynvml."):
                other.writestr(member, archive.read(member))
    layout = [] if subcommand == "export" else ["--layout", host.layout(LAYOUT)]
    # The option -S excludes the interpreter's own packages.
    words = [PYTHON, "-I", "-S", str(copy), subcommand, *layout]
    if layout:
        words += ["--state-directory", str(host.folder / "state.d")]
    done = host.simulated.run(words, check=False)
    assert done.returncode == 1, done.stderr
    assert "the Python module pynvml (package nvidia-ml-py) is not installed" in done.stderr
    assert "Traceback" not in done.stderr
    assert host.seen() == {0: [], 1: []}


def test_output_to_a_closed_pipe_ends_quietly(command):
    words = [PYTHON, str(command), "fits", "A30-24GB", "4x1g.6gb"]
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait(timeout=60)
        done = subprocess.run(words, stdout=reader.stdin, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
