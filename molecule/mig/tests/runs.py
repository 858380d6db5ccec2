# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run changes of a layout with site.yml or gpu-layout, and read their output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.lab.lab_fixtures import container_name

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]
#: Time limit of a run. No run takes this long, even on a busy machine.
TIMEOUT_SECONDS = 600


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process.

    Ansible's workers have their own sessions, so they are not in one process group.
    """
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


class Run:
    """A command on this machine. It starts when the object is created.

    `told` is its output so far.
    """

    def __init__(self, folder: Path, command: list[str], given: str = "") -> None:
        self.folder = folder / f"run-{time.monotonic_ns()}"
        self.folder.mkdir()
        self._deadline = time.monotonic() + TIMEOUT_SECONDS
        self._log, given_file = self.folder / "output", self.folder / "input"
        given_file.write_text(given)
        with self._log.open("w") as output, given_file.open() as stdin:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                # The tests read the output while the command runs, but ansible-playbook itself never flushes it.
                env={**os.environ, "PYTHONUNBUFFERED": "1", "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"},
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def told(self) -> str:
        return self._log.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def goes_on(self) -> None:
        """Raise an error if the run has ended or takes too long.

        Callers that wait for an event call this method repeatedly.
        """
        assert not self.ended, f"the run has ended:\n{self.told[-3000:]}"
        assert time.monotonic() < self._deadline, f"the run takes too long:\n{self.told[-3000:]}"
        time.sleep(0.05)

    def end(self) -> Run:
        """Wait for the run's end."""
        while not self.ended:
            self.goes_on()
        return self

    def kill(self) -> None:
        """Kill the command and all its processes on this machine at once."""
        for pid in [] if self.ended else [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def succeeded(self) -> Run:
        assert self.end().process.returncode == 0, self.told[-3000:]
        return self

    def wait_for(self, text: str) -> None:
        """Wait until the run has printed the text, even if YAML has folded its lines."""
        while text not in " ".join(self.told.split()):
            self.goes_on()


class SiteRun(Run):
    """A run of site.yml. `variables` become extra variables."""

    def __init__(self, folder: Path, limit: str | None, variables: dict) -> None:
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), "site.yml"]
        command += ["--limit", limit] if limit else []
        # The converge step has installed pynvml.
        super().__init__(folder, [*command, "-e", json.dumps({"gpu_layout_nvml_source": "none", **variables})])

    def failed(self, *hosts: str) -> str:
        """Check that the run failed for exactly these hosts. Return their messages."""
        assert self.end().process.returncode != 0, self.told[-3000:]
        said = re.findall(r"^fatal: \[(\S+?)(?: -> \S+)?\]: (.*?)(?=^\S)", self.told + "\n.", re.MULTILINE | re.DOTALL)
        assert sorted({host for host, _ in said}) == sorted(hosts), self.told[-3000:]
        # Ansible's YAML output folds long lines.
        return " ".join(" ".join(text for _, text in said).split())


class CommandRun(Run):
    """A run of `gpu-layout apply` on a host.

    `options` are its options, with underscores.
    """

    def __init__(self, folder: Path, host: str, layout: list[dict], options: dict) -> None:
        command = ["podman", "exec", "-i", container_name(host), "gpu-layout", "apply", "--layout", "-"]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        super().__init__(folder, command, json.dumps(layout))

    def failed(self) -> str:
        """Check that the command failed with its own error message, and return the output."""
        assert self.end().process.returncode == 1, self.told[-3000:]
        assert "Traceback" not in self.told, self.told[-3000:]
        return self.told
