# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand lease.

It runs a program with a leased part of a GPU, and manages leases.

The command runs as the calling user and decides nothing. The service moves this process into the lease's systemd unit.
The process then executes the program. The program therefore has the caller's terminal, environment, folder and limits,
and nothing has to forward its signals and exit status.
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from argparse import Namespace
from typing import Any, Iterator, Mapping, Sequence

from ..keep.keeps import duration
from ..keep.notices import utc
from ..keep.server import MOST_LINE_BYTES
from ..lease_service.request import COMMAND
from ..lease_service.server import WORK_SECONDS
from ..leases.model import LeaseError, RetryLaterError
from ..leases.schedule import duration as duration_text
from ..printable import printable
from ..processes.command import program
from ..sizes import SizeError, parse_size_bytes
from .request_client import Answers, check, connect, is_busy

#: Exit statuses if the program does not start, as in env(1).
EXIT_REFUSED, EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 125, 126, 127
#: Seconds until the command gives up, except while it waits for a lease.
_SECONDS = 2 * WORK_SECONDS
#: First and longest delay in seconds before a rejected request is sent again.
_FIRST_DELAY, _MOST_DELAY = 0.1, 2.0
#: This variable also loads the caller's own libraries into the program (ld.so(8)).
_PRELOAD = "LD_PRELOAD"
_USAGE = (
    "Write `gpu-layout lease --memory 18GiB --sm 30 -- PROGRAM`, `gpu-layout lease --profile 1g.10gb -- PROGRAM`, or "
    "`gpu-layout lease list`, `end NUMBER`, `extend NUMBER 4h`, `resize NUMBER --memory 20GiB --sm 40`."
)


def lease(options: Namespace) -> int:
    """Run a program with a lease, or run a subcommand."""
    words = options.words
    if options.program is not None:
        options.exit_error = EXIT_REFUSED
        if words or not options.program:
            raise LeaseError(COMMAND, "the program is missing, or other words precede it", _USAGE)
        return _run(options)
    if words == ["list"]:
        answer = ask(options.socket, {"op": "list"})
    elif words[:1] == ["end"] and len(words) == 2:
        answer = ask(options.socket, {"op": "end", "number": _number(words[1])})
    elif words[:1] == ["extend"] and len(words) == 3:
        request = {"op": "extend", "number": _number(words[1]), "seconds": duration(words[2])}
        answer = ask(options.socket, request)
    elif words[:1] == ["resize"] and len(words) == 2:
        answer = ask(options.socket, {"op": "resize", "number": _number(words[1]), "shape": _shape(options)})
    else:
        raise LeaseError(COMMAND, "a program or a subcommand is missing", _USAGE)
    print(json.dumps(answer) if options.json else "\n".join(_lines(answer)))
    return 0


# -- Run a program -----------------------------------------------------------------------------------------------------


def _run(options: Namespace) -> int:
    """Take a lease, and become the program. Returns only if the program cannot be run."""
    words = options.program
    path = program(words[0])
    if path is None:
        print("gpu-layout: %s is not an executable program" % printable(words[0]), file=sys.stderr)
        return EXIT_NOT_FOUND
    request = {
        "op": "take",
        "shape": _shape(options),
        "gpus": options.gpus,
        "seconds": duration(options.duration) if options.duration else None,
        "wait": options.wait,
        "number": None,
    }
    answer = _take(options.socket, request, _print_json if options.json else _print)
    environment = {str(name): str(value) for name, value in answer["environment"].items()}
    if _PRELOAD in environment and os.environ.get(_PRELOAD):
        environment[_PRELOAD] += ":" + os.environ[_PRELOAD]
    environment["OPENFLEET_LEASE"] = str(answer["lease"]["number"])
    environment["OPENFLEET_LEASE_CDI"] = " ".join(map(str, answer["cdi"]))
    # Python ignores these signals. Restore their default action for the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.flush()
    try:
        os.execve(path, words, {**os.environ, **environment})
    except OSError as error:
        print("gpu-layout: %s cannot be run: %s" % (printable(path), error.strerror), file=sys.stderr)
    return EXIT_CANNOT_RUN


def _take(path: str, request: dict[str, Any], report: Any) -> Mapping[str, Any]:
    """Send a request for a lease, and return its answer.

    Reports the request's place in the queue while it waits. The request keeps its place if the service restarts.
    """
    answer: Mapping[str, Any] | None = None
    while answer is None:
        with contextlib.closing(_Exchange(path, request, repeats="number" in request)) as exchange:
            answer = check(exchange.first, LeaseError)
            if "waiting" in answer:
                report(answer)
                request["number"] = answer["waiting"]["number"]
                answer = exchange.wait()
        if answer is None:
            # The service has restarted.
            time.sleep(random.uniform(_FIRST_DELAY, _MOST_DELAY))
    report(check(answer, LeaseError))
    return answer


def _print(answer: Mapping[str, Any]) -> None:
    """Print the state of a request to a stream that the program's output does not use."""
    row = answer.get("waiting") or answer["lease"]
    if "waiting" in answer:
        text = "request %d waits for %s behind %d other requests, and starts in %s at the latest" % (
            *(row["number"], _size(row), row["before"]),
            duration_text(max(0.0, row["begins"] - time.time())),
        )
    else:
        text = "lease %d has %s until %s" % (row["number"], _size(row), utc(row["ends"]))
    print("gpu-layout: " + text, file=sys.stderr, flush=True)


def _print_json(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=sys.stderr, flush=True)


# -- Requests ----------------------------------------------------------------------------------------------------------


def _shape(options: Namespace) -> dict[str, Any]:
    """Return the requested size of a lease.

    Raises LeaseError if the arguments cannot be combined.
    """
    quota = [options.memory is not None, options.sm is not None]
    if options.profile is not None and not any(quota):
        return {"profile": options.profile}
    if options.profile is not None or not all(quota):
        raise LeaseError(COMMAND, "the size is --memory and --sm, or --profile", _USAGE)
    try:
        return {"memory_bytes": parse_size_bytes(options.memory), "sm_percent": options.sm}
    except SizeError as error:
        raise LeaseError("--memory", error.problem, error.cure) from None


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise LeaseError(COMMAND, "%s is not the number of a lease" % printable(text[:40]), _USAGE)
    return int(text)


def ask(path: str, request: Mapping[str, Any], repeats: bool = False) -> Mapping[str, Any]:
    """Send a request, with retries, and return the answer.

    With `repeats`, the request is also sent again if the service ends without an answer. Raises LeaseError, or
    RetryLaterError if the same request can succeed later.
    """
    with contextlib.closing(_Exchange(path, request, repeats)) as exchange:
        return check(exchange.first, RetryLaterError if exchange.first.get("later") else LeaseError)


class _Exchange:
    """A request to the service, and its first answer.

    If the service is busy, the request is sent again. With `repeats`, it is also sent again if the service ends without
    an answer. Raises LeaseError if there is no answer.
    """

    def __init__(self, path: str, request: Mapping[str, Any], repeats: bool = False) -> None:
        line = json.dumps(request).encode() + b"\n"
        if len(line) > MOST_LINE_BYTES:
            raise LeaseError(COMMAND, "the request is too long", _USAGE)
        deadline, delay = time.monotonic() + _SECONDS, _FIRST_DELAY
        while True:
            first = self._send(path, line, deadline)
            late = time.monotonic() + delay > deadline
            if first is None and (late or not repeats):
                cure = "Try again, or see `journalctl -u gpu-layout-lease`."
                raise RetryLaterError("this host", "its service for leases did not answer", cure)
            if first is not None and (late or not is_busy(first)):
                self.first = first
                return
            self.close()
            # Spread the retries of users whose requests were rejected at the same time.
            time.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _MOST_DELAY)

    def _send(self, path: str, line: bytes, deadline: float) -> Mapping[str, Any] | None:
        """Return the first answer, or None if the service has ended."""
        cure = "Ask an administrator to add `leases` to an entry of gpu_layout."
        absent = RetryLaterError("this host", "it offers no leases: no service listens on %s" % path, cure)
        # A child process would inherit the socket. A program that this process executes does not (PEP 446).
        self._socket = socket.socket(socket.AF_UNIX)
        connect(self._socket, path, deadline, _SECONDS, absent)
        self._socket.settimeout(max(0.1, deadline - time.monotonic()))
        # If the server has already refused this client, sending fails. Its reply with the reason can still be read.
        with contextlib.suppress(OSError):
            self._socket.sendall(line)
        self._answers = Answers(self._socket)
        return self._answers.read()

    def wait(self) -> Mapping[str, Any] | None:
        """Return the next answer, or None if the service has ended."""
        self._socket.settimeout(None)
        return self._answers.read()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


# -- Answers -----------------------------------------------------------------------------------------------------------


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if "ended" in answer:
        row = answer["ended"]
        if answer["state"] == "ended":
            yield "Lease %d has ended." % row["number"]
        else:
            yield "Lease %d ends: its programs got SIGTERM, and get SIGKILL after 30 s." % row["number"]
    if "changed" in answer:
        row = answer["changed"]
        yield "Lease %d has %s until %s." % (row["number"], _size(row), utc(row["ends"]))
    if "leases" in answer:
        yield from _table(answer["leases"])


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "No leases on this host."
        return
    table = [("LEASE", "ACCOUNT", "SIZE", "ENTRY", "STATE", "UNTIL")]
    for row in rows:
        kind = str(row["account"]).partition(":")[0]
        ends = "its %s ends" % kind if row["ends"] is None else utc(row["ends"])
        until = ends if row["state"] != "waiting" else "starts by " + utc(row["begins"])
        texts = (row["number"], row["account"], _size(row), row["where"], row["state"], until)
        table.append(tuple(printable(str(text)) for text in texts))  # type: ignore[arg-type]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip()


def _size(row: Mapping[str, Any]) -> str:
    count = "1 GPU" if row["gpus"] == 1 else "%d GPUs" % row["gpus"]
    return "%s on %s" % (printable(str(row["size"])), count)
