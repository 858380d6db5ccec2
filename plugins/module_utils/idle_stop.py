# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stops units and containers that hold GPUs and use none, after another look right before each.

What was idle for days may have begun to work a minute ago. Whatever is not certain is spared, with the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Any, Callable, Mapping, Sequence, Tuple

from . import drain_units as units
from . import idle_jupyter
from .errors import FleetError
from .holders_model import DEVICE_HANDLE
from .model import Gpu, Holder, Host
from .peer import Owner, PeerError
from .peer_owner import ContainerOwner, UserOfUnitOwner

#: Gives the host with its telemetry, and all holders.
Look = Callable[[], Tuple[Host, Sequence[Holder]]]

RUNTIMES = ("docker", "podman")
#: Docker and Podman kill a container 10 s after they asked it to stop.
STOP_SECONDS = 60
_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ReclaimError(FleetError):
    """Something that was to be stopped did not stop."""


def reclaim(
    items: Sequence[Mapping[str, Any]],
    look: Look,
    stop: Callable[[Mapping[str, Any]], None] | None = None,
    closure: Callable[..., Any] = units.closure,
    dry: bool = False,
    jupyter: Sequence[Mapping[str, Any]] = (),
    quiet_seconds: float = 0.0,
) -> dict[str, Any]:
    """Stop what is still idle; gives `stopped` and `spared`. What cannot be looked at or stopped is spared, and the others go on.

    What began less than `quiet_seconds` ago is spared: what was quiet for so long was something else. Of an item that is a
    Jupyter server by its `name`, with or without .service, only the kernels are shut down that were idle for `quiet_seconds`.
    """
    servers = {_plain(server["name"]): server for server in jupyter}
    stop = stop or (lambda item: _stop(item, closure))
    told: dict[str, list[dict[str, Any]]] = {"stopped": [], "spared": []}
    for item in items:
        row: dict[str, Any] = {"kind": item["kind"], "name": item["name"]}
        server = servers.get(_plain(item["name"]))
        try:
            host, holders = look()
            mine = [holder for holder in holders if _is(item, holder)]
            using = _using(mine)
            # A server works on while single kernels go, and what its GPU does just now may be another kernel's.
            why = spared(item, host, holders, using, server is not None)
            if not why and server is None:
                why = _young(using, quiet_seconds) or (_along(item, closure) if item["kind"] == "unit" else "")
            if not why and server is not None:
                row["kernels"] = idle_jupyter.shut_down(_jupyter(item, server), quiet_seconds, dry=dry)
                why = "" if row["kernels"] else "none of its kernels was idle for so long, with nobody connected"
            elif not why and not dry:
                stop(item)
        except FleetError as error:
            why = str(error)
        if why:
            told["spared"].append({"kind": item["kind"], "name": item["name"], "why": why})
        else:
            told["stopped"].append(dict(row, gpus=list(item["gpus"]), holders=sorted({str(one) for one in mine})))
    return told


def _jupyter(item: Mapping[str, Any], server: Mapping[str, Any]) -> idle_jupyter.Server:
    """Raises ReclaimError where no process is known to be its own."""
    try:
        owner: Owner = (
            UserOfUnitOwner(item["name"]) if item["kind"] == "unit" else ContainerOwner(_runtime(item), item["name"])
        )
    except PeerError as error:
        raise ReclaimError(
            "the Jupyter server of %s %s" % (item["kind"], item["name"]),
            "%s, so what it does is not known" % error,
            "Start it, or take it out of gpu_rightsize_jupyter.",
        ) from None
    return idle_jupyter.Server(str(server["url"]), owner, str(server.get("token") or ""))


def _plain(name: str) -> str:
    return name[: -len(".service")] if name.endswith(".service") else name


def _is(item: Mapping[str, Any], holder: Holder) -> bool:
    name = item["name"]
    if item["kind"] == "container":
        name = ("%s container %s" % (item.get("runtime") or "", name)).strip()
    return holder.unit_or_container == name


def _using(holders: Sequence[Holder]) -> list[Holder]:
    """The holders without bare handles, or all where they have nothing else: docs/holders.md, "Bare handles".

    A process that has no context on a GPU has no memory there and runs nothing. Where users run programs in a unit, any of them
    may start one, and it spares nobody.
    """
    return [holder for holder in holders if holder.kind != DEVICE_HANDLE] or list(holders)


def spared(
    item: Mapping[str, Any], host: Host, holders: Sequence[Holder], mine: Sequence[Holder], parts: bool = False
) -> str:
    """Why it is not to be stopped just now; empty where it may be. Pure. `parts`: only idle parts of it are stopped."""
    wanted = {_place(text) for text in item["gpus"]}
    gpus = {gpu.uuid: gpu for gpu in host.gpus}
    if not mine:
        return "it holds no GPU any more"
    if any(holder.job for holder in mine):
        return "a scheduler has started it"
    held = {_of(holder, gpus[holder.gpu_uuid]) for holder in mine if holder.gpu_uuid in gpus}
    if held - wanted and not parts:
        return "it holds another GPU too: %s" % ", ".join(_text(place) for place in sorted(held - wanted, key=repr))
    for uuid, instance in sorted(held, key=repr):
        gpu = gpus[uuid]
        if any(one.kind == "unknown" and one.blocks(instance) for one in holders if one.gpu_uuid == uuid):
            return "who holds gpu %d is not known" % gpu.index
        # Of an instance NVML tells no utilisation: there the history alone counts.
        if instance is None and not parts:
            used = gpu.telemetry.gpu_utilization_percent if gpu.telemetry else None
            if used is None:
                return "whether gpu %d works just now is not known" % gpu.index
            if used > 0:
                return "gpu %d works just now (%d %%)" % (gpu.index, used)
    return ""


def _young(mine: Sequence[Holder], quiet_seconds: float) -> str:
    """Whether any of it began too late to be what was quiet all the time."""
    for holder in mine:
        if holder.pid is None:
            continue
        if holder.started_seconds is None:
            return "since when pid %d runs is not known" % holder.pid
        hours = (time.time() - holder.started_seconds) / 3600
        if hours < quiet_seconds / 3600:
            return "pid %d began %.1f hours ago, and the grace is %.0f" % (holder.pid, hours, quiet_seconds / 3600)
    return ""


def _place(text: str) -> tuple[str, int | None]:
    uuid, _blank, instance = text.partition(" ")
    return uuid, int(instance) if instance.isdigit() else None


def _of(holder: Holder, gpu: Gpu) -> tuple[str, int | None]:
    return holder.gpu_uuid, holder.gpu_instance_id if gpu.mig.enabled else None


def _text(place: tuple[str, int | None]) -> str:
    return place[0] if place[1] is None else "%s instance %d" % place


def _along(item: Mapping[str, Any], closure: Callable[..., Any]) -> str:
    """What else would stop with a unit: what would start it again may, others may not."""
    name = item["name"]
    if units.unit_name(name) != name or not name.endswith(".service"):
        return "it is no service"
    unit, found = closure(name)
    if not unit.runs:
        return "it does not run"
    others = [one.name for one in found if one.name not in (name, *units.triggers_of(found)) and one.runs]
    return "with it would stop %s" % ", ".join(others) if others else ""


def _stop(item: Mapping[str, Any], closure: Callable[..., Any]) -> None:
    """Raises FleetError where it does not stop."""
    name = item["name"]
    if item["kind"] == "unit":
        _unit, found = closure(name)
        for one in found:
            if one.runs:
                units.stop(one.name)
        (now,) = units.show([name])
        if not now.is_off:
            raise ReclaimError("unit %s" % name, "it is %s" % now.active, "See: systemctl status %s." % name)
        return
    where, runtime = "container %s" % name, _runtime(item)
    environment = dict(os.environ, LANG="C", LC_ALL="C")
    try:
        done = subprocess.run(
            [runtime, "stop", "--", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STOP_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReclaimError(where, "it cannot be stopped: %s" % error, "Try %s stop %s." % (runtime, name)) from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise ReclaimError(where, "it cannot be stopped: %s" % said, "Try %s stop %s." % (runtime, name))


def _runtime(item: Mapping[str, Any]) -> str:
    """The engine of a container. Raises ReclaimError where it is not one that root's commands reach."""
    runtime = item.get("runtime") or ""
    if runtime not in RUNTIMES or not _CONTAINER_NAME.fullmatch(item["name"]):
        where = "container %s" % item["name"]
        raise ReclaimError(where, "it is none of docker or podman", "Stop it where it was started.")
    return runtime
