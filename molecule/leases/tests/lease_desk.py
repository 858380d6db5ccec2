# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control a lab host with leases, as several of its users."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any, Callable

PATIENCE_SECONDS = 180
MIG = "--profile 1g.10gb"
QUOTA = "--memory 18GiB --sm 30"
#: A program that runs until it is ended.
STAY = "sleep 3600"


class Desk:
    def __init__(self, host: Any) -> None:
        self.host = host
        self.count = 0

    def ask(self, command: str) -> str:
        """Run a command as root, which must succeed, and return its output."""
        return self.host.check_output(command)

    def run(self, user: str, command: str) -> Any:
        """Run a shell command as a user in the user's home.

        Returns the status and output.
        """
        return self.host.run(f"cd /home/{user} && runuser -u {user} -- sh -c {shlex.quote(command)}")

    def lease(self, user: str, size: str, program: str) -> Any:
        """Run a program with a lease, and return its status and output."""
        return self.run(user, f"gpu-layout lease {size} -- {program}")

    def start(self, user: str, size: str, program: str = STAY) -> Background:
        """Start a program with a lease in the background."""
        self.count += 1
        return Background(self, user, f"/tmp/lease-{self.count}", f"gpu-layout lease --json {size} -- {program}")

    def taken(self, user: str, size: str, program: str = STAY) -> Background:
        """Start a program in the background, and wait until its lease has started."""
        started = self.start(user, size, program)
        self.wait_for(lambda: started.answer("lease") or started.has_ended(), f"a lease of {user}")
        assert started.answer("lease"), self.ask(f"cat {started.file}.err")
        return started

    def rows(self) -> list[dict]:
        """Return all leases.

        root sends the request, because other users have a limit of requests per minute.
        """
        return json.loads(self.ask("gpu-layout lease list --json"))["leases"]

    def numbers(self, state: str = "active") -> list[int]:
        return [row["number"] for row in self.rows() if row["state"] == state]

    def parts(self) -> str:
        """Return the leases' instances and tenants from the host's records."""
        records = json.loads(self.ask("cat /var/lib/openfleet-gpu/leased.json"))
        tenants = self.ask("vgpu-run --list | grep -o '^lease-[0-9]*' || true").split()
        return json.dumps(sorted([each for each in map(str, _leases(records)) if each != "None"] + tenants))

    def end_all(self) -> None:
        self.wait_for(self._ended, "the end of all leases")

    def _ended(self) -> bool:
        rows = self.rows()
        for row in rows:
            self.host.run(f"gpu-layout lease end {row['number']}")
        return not rows

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (result := condition()):
            assert time.monotonic() < deadline, f"{what}: {self.journal()}"
            time.sleep(0.3)
        return result

    def journal(self) -> str:
        return self.host.run("journalctl --output=cat --unit=gpu-layout-lease | tail -n 20").stdout

    def show(self, number: int, *properties: str) -> dict[str, str]:
        """Return properties of a lease's unit."""
        text = self.ask(f"systemctl show openfleet-gpu-lease-{number}.scope --property={','.join(properties)}")
        values: dict[str, str] = {}
        for line in text.splitlines():
            name, _equals, value = line.partition("=")
            values[name] = f"{values[name]}\n{value}" if name in values else value
        return values


class Background:
    """A program in the background, and what `gpu-layout lease` prints about its lease."""

    def __init__(self, desk: Desk, user: str, file: str, command: str) -> None:
        self.desk, self.user, self.file = desk, user, file
        script = f"echo $$ >{file}.pid; exec {command}"
        status = f"runuser -u {user} -- sh -c {shlex.quote(script)}; echo $? >{file}.status"
        desk.ask(
            f"rm -f {file}.*; cd /home/{user}; touch {file}.pid; chown {user} {file}.pid; "
            # Reset the signals. Otherwise the program would ignore the signals that the tests' caller ignores, for
            # example with nohup.
            f"setsid env --default-signal=HUP,INT,QUIT sh -c {shlex.quote(status)} "
            f">{file}.out 2>{file}.err </dev/null &"
        )

    def answer(self, kind: str) -> dict | None:
        """Return the last message of this kind, or None."""
        lines = self.desk.host.run(f"cat {self.file}.err").stdout.splitlines()
        answers = [json.loads(line) for line in lines if line.startswith("{")]
        return next((each[kind] for each in reversed(answers) if kind in each), None)

    def has_ended(self) -> bool:
        return self.desk.host.run(f"test -s {self.file}.status").rc == 0

    @property
    def number(self) -> int:
        return (self.answer("lease") or self.answer("waiting"))["number"]

    @property
    def pid(self) -> int:
        return int(self.desk.ask(f"cat {self.file}.pid"))

    def kill(self, signal: str) -> None:
        self.desk.ask(f"kill -s {signal} {self.pid}")

    def status(self) -> int:
        """Wait for the end of the program, and return its exit status."""
        self.desk.wait_for(lambda: self.desk.host.run(f"test -s {self.file}.status").rc == 0, f"the end of {self.file}")
        return int(self.desk.ask(f"cat {self.file}.status"))


def _leases(data: Any) -> Any:
    """Yield the leases in leased.json."""
    if isinstance(data, dict):
        if "lease" in data:
            yield data["lease"]
        for value in data.values():
            yield from _leases(value)
    elif isinstance(data, list):
        for value in data:
            yield from _leases(value)
