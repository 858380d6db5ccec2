# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand keep, with which owners keep their idle workloads on GPUs.

The command runs as the calling user and decides nothing. The service gets the caller's identity from the kernel.
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from argparse import Namespace
from typing import Any, Iterator, Mapping

from ..keep import server as keep_server
from ..keep.keeps import KeepError, duration
from ..keep.notices import utc
from ..printable import printable
from .request_client import Answers, check, connect, is_busy

#: Seconds until the command gives up. The service needs less time for one answer, but it may first serve two requests
#: of another user.
_SECONDS = 3 * keep_server.ANSWER_SECONDS
#: First and longest delay in seconds before a rejected request is sent again.
_FIRST_DELAY, _MOST_DELAY = 0.1, 2.0


def keep(options: Namespace) -> int:
    """Send a request to the service on this host, and print the answer."""
    reply = check(_ask(options.socket, _request(options)), KeepError)
    if options.json:
        print(json.dumps({name: value for name, value in reply.items() if name != "log"}))
    else:
        print("\n".join(_lines(reply)))
    return 0


def _request(options: Namespace) -> Mapping[str, Any]:
    """Return the request.

    Raises KeepError if the arguments cannot be combined.
    """
    given = [options.list, options.end is not None, options.name is not None]
    if sum(given) != 1 or (options.name is None) != (options.duration is None):
        cure = "Write `gpu-layout keep NAME 3d`, `gpu-layout keep --list` or `gpu-layout keep --end NAME`."
        raise KeepError("gpu-layout keep", "it needs a name and a length of time, --list or --end NAME", cure)
    if options.list:
        return {"op": "list"}
    if options.end is not None:
        return {"op": "end", "name": options.end}
    return {"op": "keep", "name": options.name, "seconds": duration(options.duration)}


def _ask(path: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send a request, with retries, and return the answer.

    Raises KeepError if there is no answer.
    """
    line = json.dumps(request).encode() + b"\n"
    if len(line) > keep_server.MOST_LINE_BYTES:
        raise KeepError("gpu-layout keep", "the name is too long", "Write the name of a service, a container or a pid.")
    deadline, delay = time.monotonic() + _SECONDS, _FIRST_DELAY
    while True:
        reply = _ask_once(path, line, deadline)
        if not is_busy(reply) or time.monotonic() + delay > deadline:
            return reply
        # Spread the retries of users whose requests were rejected at the same time.
        time.sleep(delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, _MOST_DELAY)


def _ask_once(path: str, line: bytes, deadline: float) -> Mapping[str, Any]:
    """Send a request once and return the answer.

    Raises KeepError if there is no answer.
    """
    cure = "Ask an administrator to keep it, or to set gpu_layout_keep: true for this host."
    absent = KeepError("this host", "nothing can be kept on this host: no service listens on %s" % path, cure)
    with socket.socket(socket.AF_UNIX) as connection:
        connect(connection, path, deadline, _SECONDS, absent)
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        # If the server has already refused this client, sending fails. Its reply with the reason can still be read.
        with contextlib.suppress(OSError):
            connection.sendall(line)
        reply = Answers(connection).read()
    if reply is None:
        raise KeepError(
            "this host", "its service for keeps did not answer", "Try again, or see `journalctl -u gpu-layout-keep`."
        )
    return reply


def _lines(reply: Mapping[str, Any]) -> Iterator[str]:
    if "kept" in reply:
        row = reply["kept"]
        yield "%s is kept until %s: it is not stopped for being idle before that." % (_name(row), utc(row["until"]))
        yield "To end it sooner: gpu-layout keep --end %s" % _name(row).rpartition(" ")[2]
    for row in reply.get("ended", ()):
        yield "%s is no longer kept." % _name(row)
    if "keeps" in reply:
        for row in reply["keeps"]:
            yield "%s  until %s  by %s" % (_name(row), utc(row["until"]), printable(str(row["user"])))
        if not reply["keeps"]:
            yield "Nothing of yours is kept on this host."


def _name(row: Mapping[str, Any]) -> str:
    return printable(str(row["name"]))
