# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of site.yml on the fleet of this scenario: how they end, and what they say to whoever reads their output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
#: No run of these tests has a reason to take as long, not on a busy machine either.
TIMEOUT_SECONDS = 600


def descendants(pid: int) -> list[int]:
    """Ansible's workers are sessions of their own, so that no process group holds them all."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


class SiteRun:
    """One run, begun when the object is made. `variables` become extra vars; `told` is all it has written so far."""

    def __init__(self, folder: Path, limit: str | None, variables: dict) -> None:
        folder = folder / f"run-{time.monotonic_ns()}"
        folder.mkdir()
        self._deadline = time.monotonic() + TIMEOUT_SECONDS
        self._log, self._report = folder / "output", folder / "report"
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), "site.yml"]
        command += ["--limit", limit] if limit else []
        # A report of its own: two runs may be going on at once.
        command += ["-e", json.dumps({"gpu_report_dir": str(self._report), **variables})]
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                # What it says is read while it runs, and ansible-playbook itself never flushes.
                env={**os.environ, "PYTHONUNBUFFERED": "1", "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def told(self) -> str:
        return self._log.read_text()

    @property
    def report(self) -> dict:
        return json.loads((self._report / "report.json").read_text())

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def goes_on(self) -> None:
        """To be asked again and again while something is waited for: raises where that will not come."""
        assert not self.ended, f"the run has ended:\n{self.told[-3000:]}"
        assert time.monotonic() < self._deadline, f"the run takes too long:\n{self.told[-3000:]}"
        time.sleep(0.05)

    def end(self) -> SiteRun:
        """Waits for its end."""
        while not self.ended:
            self.goes_on()
        return self

    def kill(self) -> None:
        """Ends the controller and all of its processes on this machine, at once."""
        for pid in [] if self.ended else [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def succeeded(self) -> SiteRun:
        assert self.end().process.returncode == 0, self.told[-3000:]
        return self

    def failed(self, *hosts: str) -> str:
        """What it said of these hosts and of no other, as one text; that it failed is asserted."""
        assert self.end().process.returncode != 0, self.told[-3000:]
        said = re.findall(r"^fatal: \[(\S+?)(?: -> \S+)?\]: (.*?)(?=^\S)", self.told + "\n.", re.MULTILINE | re.DOTALL)
        assert sorted({host for host, _ in said}) == sorted(hosts), self.told[-3000:]
        # The YAML of Ansible's output folds long lines.
        return " ".join(" ".join(text for _, text in said).split())

    def wait_for(self, text: str) -> None:
        """Waits until the run has said this, wherever the YAML of Ansible's output has folded it."""
        while text not in " ".join(self.told.split()):
            self.goes_on()
