# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that works on one GPU and prints one JSON object per line."""

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
#: Kinds of memory, in the order in which the report lists them.
KINDS = ("linear", "rows", "managed", "pool", "physical", "array")
#: The default command. It runs kernels through the CUDA driver API.
PROGRAM = (sys.executable, str(HERE / "program.py"))


class NotMeasuredError(Exception):
    """This machine cannot measure a value. The text is the reason."""


def tried(work: Callable[[], Any]) -> Any:
    """Call the function and return its result, or why it cannot be measured, as text."""
    try:
        return work()
    except (NotMeasuredError, FleetError, subprocess.SubprocessError, OSError) as error:
        return " ".join(str(error).split())


@dataclass(frozen=True)
class Card:
    """The GPU to load.

    `index` is NVML's index. `device` is the argument for program.py. `image` is an image with python3, for a tenant in
    a container. `without` lists kinds of memory that the programs do not allocate.
    """

    index: int
    device: str
    folder: Path
    timeout_seconds: float
    tell: Callable[[str], None]
    image: str | None = None
    without: tuple[str, ...] = ()

    @cached_property
    def uuid(self) -> str:
        """Return the UUID that CUDA reports. Quotas use it. Raises NotMeasuredError."""
        with program(self, "identify") as one:
            return one.line()["uuid"]


class Program:
    """A process that runs `run` with the device and the arguments.

    The default of `run` is program.py.
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
        """Return the object in the next line.

        Raises NotMeasuredError if the program failed.
        """
        text = self.process.stdout.readline()
        facts = json.loads(text) if text else {"error": "the program ended with status %s" % self.process.wait()}
        if "error" in facts:
            raise NotMeasuredError(facts["error"])
        return facts

    def go(self) -> None:
        """Start the next piece of work by writing a line to the process's standard input."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Close the process's standard input. Return the object in its last line, or {}.

        Raises NotMeasuredError if the program failed or does not end.
        """
        try:
            output, _ = self.process.communicate("\n", timeout=self._timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise NotMeasuredError("the program does not end") from error
        lines = output.splitlines()
        facts = json.loads(lines[-1]) if lines else {}
        if "error" in facts:
            raise NotMeasuredError(facts["error"])
        return facts


@contextmanager
def program(card: Card, *arguments: str, **options: Any) -> Iterator[Program]:
    """Run a Program until the block ends. `options` are passed to Program."""
    made = Program(card, *arguments, **options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
