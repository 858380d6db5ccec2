# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test commands before and after the runs of a role on lab hosts."""

from __future__ import annotations

import subprocess

import pytest

from tests.lab.role_plays import Ask, fail_if


@pytest.mark.parametrize("text", ["! ls file", "ls a; ! ls file", "set -e\n! ls file; ls", "ls a && ! ls file"])
def test_checks_that_cannot_fail_are_refused(text):
    with pytest.raises(ValueError, match="use fail_if"):
        Ask(then=text)
    with pytest.raises(ValueError, match="use fail_if"):
        Ask(first=text)


@pytest.mark.parametrize(("command", "status"), [("echo found | grep found", 1), ("true | grep found", 0)])
def test_an_unexpected_success_ends_the_commands(command, status):
    text = "set -e\n%secho end" % Ask(then=fail_if(command)).then
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "" if status else "end\n")
