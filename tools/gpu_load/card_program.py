# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that works on one GPU and prints JSON objects, one a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError

HERE = Path(__file__).resolve().parent
#: Kinds of memory, in the order of the report.
KINDS = ("linear", "rows", "managed", "pool", "physical", "array")
#: What is run where no other command is named: kernels by the CUDA driver API.
PROGRAM = (sys.executable, str(HERE / "program.py"))


class NotMeasuredError(Exception):
    """Something cannot be measured here; the text says why."""


def tried(work: Callable[[], Any]) -> Any:
    """Return what the work returns, or the text of why it could not be done."""
    try:
        return work()
    except (NotMeasuredError, FleetError, subprocess.SubprocessError, OSError) as error:
        return " ".join(str(error).split())


@dataclass(frozen=True)
class Card:
    """The GPU to load.

    `index` is NVML's; `device` is what program.py is told; `image` is for a tenant in a container.

    `without` are kinds of memory that are not allocated.
    """

    index: int
    device: str
    folder: Path
    timeout_seconds: float
    tell: Callable[[str], None]
    #: Of a container engine, with python3.
    image: str | None = None
    without: tuple[str, ...] = ()

    @cached_property
    def uuid(self) -> str:
        """The UUID that CUDA tells, which quotas name. Raises NotMeasuredError."""
        with program(self, "identify") as one:
            return one.line()["uuid"]


class Program:
    """A process with an environment, program.py by default.

    Its command is `run`, the device, the arguments.
    """

    def __init__(
        self,
        card: Card,
        *arguments: str,
        environment: dict[str, str] | None = None,
        run: Sequence[str] = PROGRAM,
    ) -> None:
        command = [*run, card.device, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, text=True, **pipes)
        self._timeout_seconds = card.timeout_seconds

    def line(self) -> dict[str, Any]:
        """Return the next line. Raises NotMeasuredError where the program failed."""
        text = self.process.stdout.readline()
        said = json.loads(text) if text else {"error": "the program ended with status %s" % self.process.wait()}
        if "error" in said:
            raise NotMeasuredError(said["error"])
        return said

    def go(self) -> None:
        """Write a line to its standard input: it waits for one before each piece of work."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """End its standard input and return its last line, {} where it has none.

        Raises NotMeasuredError.
        """
        try:
            output, _ = self.process.communicate("\n", timeout=self._timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise NotMeasuredError("the program does not end") from error
        lines = output.splitlines()
        said = json.loads(lines[-1]) if lines else {}
        if "error" in said:
            raise NotMeasuredError(said["error"])
        return said


@contextmanager
def program(card: Card, *arguments: str, **options: Any) -> Iterator[Program]:
    """Run a Program as long as the block; `options` are its own."""
    made = Program(card, *arguments, **options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
