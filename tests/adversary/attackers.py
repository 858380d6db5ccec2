# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate attackers: two users, a tenant in a container, a compromised host.

The users have no privileges.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Host, Mig

ROOT = Path(__file__).resolve().parents[2]
#: User ids that belong to no account on this machine.
ALICE, BOB = 61001, 61002
#: A Python that every user can run, because the tests' own Python may be in a private folder.
PYTHON = Path(shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable).resolve()
#: Opens files, prints `open`, and exits when its standard input ends.
HOLD = "import sys\nf = [open(n) for n in sys.argv[1:] if n[:1] == '/']\nprint('open', flush=True)\nsys.stdin.read()"


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """Create a folder that every user can read.

    Only their owner can read pytest's own folders.
    """
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def host(*gpus: Gpu) -> Host:
    return Host("580.65.06", "13.580.65.06", "13.0", True, gpus)


def gpu(index: int, processes=()) -> Gpu:
    address = "0000:%02x:00.0" % (index + 1)
    return Gpu(index, "GPU-%d" % index, "NVIDIA H100", address, 80 << 30, Mig(), processes=tuple(processes))


@contextlib.contextmanager
def process(*command: object, user: int, says: str = "open", **variables: str) -> Iterator[subprocess.Popen]:
    """Start a process of a user, and wait until it prints the word `says`.

    The process is killed at the end of the block.
    """
    command = [word if isinstance(word, bytes) else str(word) for word in command]
    identity = {"user": user, "group": user, "extra_groups": []}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd="/", env={"PATH": os.environ["PATH"], **variables}, **identity, **pipes) as made:
        try:
            assert made.stdout.readline() == says.encode() + b"\n"
            yield made
        finally:
            made.kill()


def holding(*files: object, user: int, program: Path = PYTHON, within: Sequence[str] = (), **variables: str):
    """Start a process of a user that has the files open.

    Arguments that are not paths are not opened, but appear in the process's command line.
    """
    return process(*within, program, "-c", HOLD, *files, user=user, **variables)


def named(folder: Path, name: str) -> Path:
    """Copy Python to a program with this name that any user can run."""
    return Path(shutil.copy(PYTHON, folder / name))


class Window:
    """A folder that represents /proc of a host with a driver, and has real processes.

    This machine needs no driver.
    """

    def __init__(self, folder: Path, *processes: subprocess.Popen, pids: Sequence[int] = ()) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("self", "stat", *(str(one.pid) for one in processes), *map(str, pids)):
            (folder / name).symlink_to("/proc/" + name)
        (folder / "devices").write_text("Character devices:\n195 nvidia-frontend\n511 nvidia-caps\n")


class HostileHost:
    """A host that returns the same text for every module.

    Tasks on it change nothing.
    """

    def __init__(self, folder: Path, answer: object) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.asked = folder / "asked"
        (folder / "answer").write_text(answer if isinstance(answer, str) else json.dumps(answer))
        self.interpreter = folder / "python3"
        script = "#!/bin/sh\ncat >/dev/null </dev/stdin\necho asked >>%s\ncat %s\n"
        self.interpreter.write_text(script % (self.asked, folder / "answer"))
        self.interpreter.chmod(0o755)

    @property
    def variables(self) -> dict[str, object]:
        return {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": str(self.interpreter),
        }


def play(
    folder: Path, playbook: Path, inventory: dict, *arguments: str, **environment: str
) -> subprocess.CompletedProcess:
    """Run ansible-playbook from the checkout."""
    # Import here, because the attacking processes import this file but cannot read warm_playbook.
    from tests.lab import warm_playbook

    (folder / "inventory.json").write_text(json.dumps(inventory))
    settings = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_NOCOLOR": "1",
    }
    return subprocess.run(
        [*warm_playbook.COMMAND, "-i", str(folder / "inventory.json"), str(playbook), *arguments],
        env={**os.environ, **settings, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def said(done: subprocess.CompletedProcess) -> str:
    """Return the output as one line, so that line breaks do not matter."""
    return " ".join((done.stdout + done.stderr).split())
