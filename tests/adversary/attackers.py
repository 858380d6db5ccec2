# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The attackers: two unprivileged users, a tenant in its own container, and a compromised host."""

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
#: User ids that no account of this machine has.
ALICE, BOB = 61001, 61002
#: Any user can run it, wherever the tests' own Python is.
PYTHON = Path(shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable).resolve()
#: Has files open and says so; ends with its standard input.
HOLD = "import sys\nf = [open(n) for n in sys.argv[1:] if n[:1] == '/']\nprint('open', flush=True)\nsys.stdin.read()"


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that every user reaches; pytest's own are for their owner alone."""
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
    """A process of a user, once it has said its word; it ends with the block."""
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
    """A process of a user that has the files open; other arguments only show in its command line."""
    return process(*within, program, "-c", HOLD, *files, user=user, **variables)


def named(folder: Path, name: str) -> Path:
    """A program of that name that any user may run."""
    return Path(shutil.copy(PYTHON, folder / name))


class Window:
    """A /proc that shows some real processes, on a host that has a driver; this machine need not have one."""

    def __init__(self, folder: Path, *processes: subprocess.Popen, pids: Sequence[int] = ()) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("self", "stat", *(str(one.pid) for one in processes), *map(str, pids)):
            (folder / name).symlink_to("/proc/" + name)
        (folder / "devices").write_text("Character devices:\n195 nvidia-frontend\n511 nvidia-caps\n")


class HostileHost:
    """A host of an inventory that answers to every module with the same text, and whose tasks change nothing anywhere."""

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
    # Processes that attack have this file, and not what it runs.
    import warm_playbook

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
    """All of its output in one line: where the terminal wraps it is none of the tests' business."""
    return " ".join((done.stdout + done.stderr).split())
