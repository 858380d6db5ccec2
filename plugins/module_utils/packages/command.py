# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of the host: where they are, and how they are run."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Callable, Sequence

#: Runs a command and gives its status, output and errors.
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Without questions and in English, so that what comes back can be read; 127 where there is no such command."""
    environment = dict(os.environ, LC_ALL="C", LANG="C", DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1")
    environment["PATH"] = _path()
    try:
        return subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(command), 127, "", "%s is not installed" % command[0])


def program(name: str) -> str | None:
    """Where a program is; root's own folders count, whoever calls."""
    return shutil.which(name, path=_path())


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
