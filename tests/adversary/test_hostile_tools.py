# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test tools that hang, print without end, or leave children.

Scans must continue and clean up.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes.command import ask, run_tool

NEVER = "while :; do read _ </dev/tty 2>/dev/null || sleep 1000; done"


@pytest.fixture
def tool(tmp_path):
    """Return a function that writes a tool with this script.

    The tool writes its pid and the pids of its children into `pids`.
    """

    def make(script: str) -> list[str]:
        path = tmp_path / "tool"
        path.write_text("#!/bin/sh\necho $$ >>%s/pids\n%s\n" % (tmp_path, script))
        path.chmod(0o755)
        return [str(path)]

    return make


def nothing_is_left(folder: Path) -> None:
    """Wait until no process that wrote its pid is running."""
    deadline = time.monotonic() + 60
    for pid in (folder / "pids").read_text().split():
        while _runs(pid):
            assert time.monotonic() < deadline, "pid %s is left" % pid
            time.sleep(0.01)


def _runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    "script",
    [
        NEVER,
        "trap '' TERM INT HUP QUIT\n" + NEVER,
        # The tool exits, but its child still has the output open.
        "sh -c 'echo $$ >>${0%%/*}/pids; exec sleep 1000' $0 &\nexit 0",
        "sh -c 'trap \"\" TERM; echo $$ >>${0%%/*}/pids; sleep 1000; :' $0 &\n" + NEVER,
    ],
    ids=["never ends", "ignores signals", "leaves a child", "leaves a child that ignores signals"],
)
def test_hanging_tool_is_killed_with_its_children(tool, tmp_path, script):
    command = tool(script.replace("${0%%/*}", str(tmp_path)))
    # A busy machine may need more time to start the tool.
    for seconds in (1, 10, 60):
        with pytest.raises(subprocess.TimeoutExpired):
            run_tool(command, timeout_seconds=seconds)
        if (tmp_path / "pids").exists():
            break
    nothing_is_left(tmp_path)


@pytest.mark.parametrize("where", ["", ">&2"])
def test_tool_with_endless_output_is_killed(tool, tmp_path, where):
    """Kill a tool with endless output long before its timeout.

    The output would not fit into memory.
    """
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool(tool("exec yes " + where), timeout_seconds=3600)
    assert time.monotonic() - began < 600
    nothing_is_left(tmp_path)


def test_tool_output_is_a_short_line_in_messages(tool):
    text, problem = ask(run_tool, tool("yes 'controller down' | head -c 100000 >&2; exit 1"))
    assert text is None and len(problem) < 500 and "controller down" in problem


def test_output_of_a_successful_tool_is_complete(tool):
    done = run_tool(
        tool("read line; echo got $line $KEY; head -c 3000000 /dev/zero; echo err >&2; exit 3"), "word\n", {"KEY": "v"}
    )
    assert (done.returncode, done.stderr, done.stdout[:11], len(done.stdout)) == (3, "err\n", "got word v\n", 3000011)


def test_tool_that_reads_no_input_is_no_error(tool):
    assert run_tool(tool("exit 0"), "word\n" * 1000).returncode == 0
