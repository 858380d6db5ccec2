# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand holders.

The subcommand is for accounts that may list GPU holders as root and do nothing else. It takes no path, name or number,
and ignores the caller's environment, folder, standard input and signals. It prints the part of gpu_info's result that
the audit reads (plugins/plugin_utils/audit/answers.py).
"""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from ..errors import DriverAbsentError, FleetError
from ..holders.find import find_holders, gpus
from ..model import LostGpu, to_data
from ..plan.transaction import DIRECTORY, looking
from ..processes.bounded import bounded
from ..techniques.service_views import SERVICE_VIEWS
from ..vendors.nvidia.nvml.bounded_session import BoundedSession

#: The role writes this file if an account may run this command. Only root can open the file, so no other user can hold
#: the lock on it.
READERS = "/etc/openfleet-gpu/readers.json"
#: Time limit in seconds. A read takes milliseconds, or half a minute if tools of schedulers or MPS daemons do not
#: answer.
SECONDS = 60.0
MOST_BYTES = 4 * 1024 * 1024
#: Maximum number of holders and processes of a GPU or instance, and maximum length of a name.
_MOST_HOLDERS, _MOST_PROCESSES, _MOST_LETTERS = 256, 1024, 500
#: The fields of a holder to print.
_FIELDS = (
    "kind", "who", "user", "unit_or_container", "job", "pid", "watches", "started_seconds", "listens", "clients",
)  # fmt: skip
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_THIS_HOST = "this host"
#: The only service whose state is printed. MPS daemons are not read, because the list of holders already has their
#: clients.
_TENANTS = "vgpu_tenants"
_POLL_SECONDS = 0.1


def holders(options: Namespace) -> int:
    """Print the holders of each GPU and MIG instance."""
    _leave_the_caller()
    # The child process takes no lock. It may hang in the driver, and keeps running if it cannot be killed.
    with _alone() as directory:
        text = bounded(lambda: json.dumps(look(directory, options.json)), _THIS_HOST, SECONDS, MOST_BYTES)
    if options.json:
        print(text)
    else:
        print("\n".join(_lines(json.loads(text))))
    return 0


def _leave_the_caller() -> None:
    """Drop the settings that the caller could use to affect tools and libraries."""
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    os.umask(0o077)
    os.chdir("/")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # If SIGCHLD were ignored, a failed tool would seem to have succeeded.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def look(directory: str = DIRECTORY, sockets: bool = False) -> dict[str, Any]:
    """Return the result that the command prints.

    If `sockets` is true, it includes which processes serve clients. Raises FleetError if the host cannot be read or is
    being changed.
    """
    try:
        # Keep this block short, because a run that resets GPUs waits until no process has them open.
        with _unchanged(directory), BoundedSession() as session:
            host = session.observe()
            (tenants,) = (each.report(session.private) for each in SERVICE_VIEWS if each.name == _TENANTS)
    except DriverAbsentError as error:
        absent = {"driver_present": False, "driver_absent_reason": str(error)}
        return dict(absent, gpus=[], lost_gpus=[], **{_TENANTS: []})
    seen = find_holders(host, sockets=sockets)
    with _unchanged(directory):
        pass
    return {
        "driver_present": True,
        "gpus": [_gpu(gpu) for gpu in gpus(host, seen)],
        "lost_gpus": to_data(host.lost),
        _TENANTS: [_tenant(tenant) for tenant in tenants],
    }


@contextlib.contextmanager
def _alone() -> Iterator[str]:
    """Wait for earlier runs of this command, and yield the state directory.

    Without this limit, concurrent runs could block a change of the layout forever.
    """
    with contextlib.ExitStack() as held:
        try:
            file = held.enter_context(Path(READERS).open(encoding="utf-8"))
        except FileNotFoundError:
            # If the file is missing, no account may run this command, and root needs no limit.
            yield DIRECTORY
            return
        _lock(file)
        try:
            directory = json.load(file)["state_directory"]
        except (ValueError, KeyError, TypeError):
            raise FleetError(READERS, "it is not what the role wrote", "Run the role gpu_layout again.") from None
        yield directory


def _lock(file: Any) -> None:
    deadline = time.monotonic() + SECONDS / 2
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                raise FleetError(
                    _THIS_HOST, "another query of the holders does not end", "Run it again later."
                ) from None
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _unchanged(directory: str) -> Iterator[None]:
    with looking(directory) as busy:
        if busy is not None:
            raise busy
        yield


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: gpu[name] for name in ("index", "uuid", "name", "memory_total_bytes")},
        **_held(gpu),
        "mig": {
            "instances": [
                {**{name: one[name] for name in ("id", "profile", "placement")}, **_held(one)}
                for one in gpu["mig"]["instances"]
            ]
        },
    }


def _held(place: Mapping[str, Any]) -> dict[str, Any]:
    processes = [{"pid": one["pid"], "kind": one["kind"]} for one in place["processes"][:_MOST_PROCESSES]]
    return {"processes": processes, "holders": _holders(place["holders"])}


def _holders(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = [
        {**{name: one[name] for name in _FIELDS}, "who": one["who"][:_MOST_LETTERS]} for one in found[:_MOST_HOLDERS]
    ]
    if len(found) > _MOST_HOLDERS:
        more = {"kind": "unknown", "who": "%d more" % (len(found) - _MOST_HOLDERS), "watches": False}
        rows.append({**dict.fromkeys(_FIELDS), **more})
    return rows


def _tenant(tenant: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": tenant["name"],
        "memory_bytes": tenant["memory_bytes"],
        "gpus": [{"uuid": place["uuid"]} for place in tenant["gpus"]],
    }


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if not answer["driver_present"]:
        yield answer["driver_absent_reason"]
    for lost in answer["lost_gpus"]:
        yield str(LostGpu(**lost))
    for gpu in answer["gpus"]:
        label = "gpu %d  %s  %s" % (gpu["index"], gpu["name"], gpu["uuid"])
        yield from _of_place(label, gpu["holders"])
        for one in gpu["mig"]["instances"]:
            yield from _of_place("  instance %d  %s" % (one["id"], one["profile"]), one["holders"])


def _of_place(label: str, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "%s  %s" % (label, "held by:" if found else "no holders")
    for one in found:
        yield "      %s: %s" % (one["kind"], one["who"])
