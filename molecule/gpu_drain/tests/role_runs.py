# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the role on the host of this scenario with the real ansible-playbook."""

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
#: Time limit of a run. No run takes this long.
TIMEOUT_SECONDS = 600


def _descendants(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return children + [further for child in children for further in _descendants(child)]


class RoleRun:
    """A run of a playbook, which starts when the object is created.

    `variables` become extra variables.
    """

    def __init__(self, folder: Path, host: str, playbook: str, arguments: tuple, variables: dict) -> None:
        self._log = folder / f"{playbook}-{time.monotonic_ns()}.log"
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), "--limit", host, *arguments]
        command += [str(SCENARIO / f"{playbook}.yml")]
        # Poll once a second, because the jobs of the tests take only seconds.
        command += ["-e", json.dumps({"gpu_drain_poll": 1, "gpu_drain_timeout": 240, **variables})]
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    # The tests read the output while the playbook runs, but ansible-playbook itself never flushes it.
                    "PYTHONUNBUFFERED": "1",
                    "ANSIBLE_FORCE_COLOR": "0",
                    "ANSIBLE_NOCOLOR": "1",
                    "ANSIBLE_GATHERING": "explicit",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def told(self) -> str:
        """Return all output so far, and join the lines that YAML has folded."""
        return " ".join(self._log.read_text().split())

    def end(self) -> RoleRun:
        try:
            self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run did not end within {TIMEOUT_SECONDS} s: {self.told[-3000:]}") from None
        return self

    def kill(self) -> None:
        """Kill the controller with all its processes at once, like a loss of power."""
        if self.process.poll() is None:
            # Ansible's workers have their own sessions, so they are not in one process group.
            for pid in [self.process.pid, *_descendants(self.process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def changed(self) -> int:
        """Check that the run succeeded, and return how many tasks changed something."""
        assert self.end().process.returncode == 0, self._log.read_text()[-3000:]
        return int(re.findall(r"changed=(\d+)", self.told)[-1])

    def executions(self) -> int:
        """Return how many tasks ran on the host, including checks of the controller."""
        self.changed()
        tasks = re.split(r"^(?=TASK \[)", self._log.read_text(), flags=re.MULTILINE)
        on_host = [task for task in tasks if "inject_facts_as_vars is off" not in task.partition("\n")[0]]
        return len(re.findall(r"^(?:ok|changed): \[", "".join(on_host), re.MULTILINE))

    def failed(self) -> str:
        """Check that the run failed, and return its output."""
        assert self.end().process.returncode != 0, self._log.read_text()[-3000:]
        return self.told

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.told:
            assert self.process.poll() is None, f"ended without {text!r}: {self._log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"never said {text!r}: {self._log.read_text()[-3000:]}"
            time.sleep(0.05)
