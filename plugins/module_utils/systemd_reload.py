# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reload systemd's units, unless running containers would lose their GPUs.

With the systemd cgroup driver, runc lists a container's devices in DeviceAllow= of the container's scope, as
/dev/char/MAJOR:MINOR. It skips devices without such a link. At each daemon-reload, systemd applies DeviceAllow= again,
and the container loses the skipped devices: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import Callable, Collection, Iterable, Iterator, Mapping

from .errors import ApplyError, FleetError
from .processes.command import Run, ask

RELOAD = ["systemctl", "daemon-reload"]
# Values of gpu_layout_on_busy. Only a plan for the layout can drain clients.
FAIL, WAIT, DRAIN, FORCE = POLICIES = ("fail", "wait", "drain", "force")

# Folders in /dev with the NVIDIA driver's nodes, and the names of the nodes.
_FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels")
_NODE = re.compile(r"nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch.*|-cap\d+)$|channel\d+$")
_OPEN_NODE = re.compile(r"/dev/(?:nvidia(?:\d+|ctl)|nvidia-caps/nvidia-cap\d+)$")
# A container's scope with the systemd cgroup driver. With cgroupfs, the cgroup is a plain directory.
_SCOPE = re.compile(r"/((?:docker|libpod|crio|cri-containerd|nerdctl)-[0-9a-f]{64}\.scope)(?:/|$)", re.MULTILINE)
# DeviceAllow= entries for NVIDIA's devices: by number (the driver's major number is 195,
# Documentation/admin-guide/devices.txt), path or group.
_NVIDIA_ALLOWED = re.compile(r"/dev/char/195:|/dev/nvidia|char-nvidia|char-\*")
# Maximum number of links and containers in a message, maximum length of a container's name in it, and seconds between
# two checks.
_NAMED, _NAME_LETTERS, _LOOK_SECONDS = 3, 32, 5.0
# Maximum number of a process's open files to read. A process with more counts as a process with a GPU.
_OPEN_FILES = 65536

CURE = (
    'run "nvidia-ctk system create-dev-char-symlinks --create-all", install the udev rule of docs/container_toolkit.md and '
    "restart the containers"
)


def device_number(path: str) -> tuple[int, int] | None:
    """Return the major and minor number of a character device, or None."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


def missing_links(root: Path, number: Callable[[str], tuple[int, int] | None] = device_number) -> tuple[str, ...]:
    """Return the missing links in /dev/char for NVIDIA's device nodes.

    The links are named MAJOR:MINOR.
    """
    dev = root / "dev"
    missing: set[tuple[int, int]] = set()
    for folder in _FOLDERS:
        try:
            nodes = [node for node in (dev / folder).iterdir() if _NODE.match(node.name)]
        except OSError:
            continue
        numbers = [each for each in (number(str(node)) for node in nodes) if each]
        missing.update(each for each in numbers if not (dev / "char" / ("%d:%d" % each)).exists())
    return tuple("%d:%d" % each for each in sorted(missing))


def scope_of(cgroup: str) -> str:
    """Return the container's scope in a text of /proc/PID/cgroup, or ""."""
    match = _SCOPE.search(cgroup)
    return match.group(1) if match else ""


def cgroup_of(root: Path, pid: int) -> str:
    """Return the cgroup text of a process, or "" if the process has ended."""
    try:
        return (root / "proc" / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""


def detached(scopes: Collection[str], missing: Collection[str], run: Run | None) -> set[str]:
    """Return the scopes whose containers would lose their GPUs in a reload.

    `missing` has the missing links. Only these decide if `run` is None or systemd does not answer.
    """
    limits = _limits(run, scopes) if run and scopes else {}
    at_risk = set()
    for scope in scopes:
        if scope not in limits:
            lost = bool(missing)
        else:
            # A container without limits keeps all devices. A GPU that a hook gave to the container is not in the
            # scope's list.
            entries = limits[scope]
            lost = entries is not None and (bool(missing) or not any(map(_NVIDIA_ALLOWED.match, entries)))
        if lost:
            at_risk.add(scope)
    return at_risk


def _limits(run: Run, scopes: Iterable[str]) -> Mapping[str, list[str] | None]:
    """Return DeviceAllow= for each known scope, or None if it allows all devices."""
    properties = "Id,LoadState,DevicePolicy,DeviceAllow"
    try:
        text, _problem = ask(run, ["systemctl", "show", "--property=%s" % properties, "--", *sorted(scopes)])
    except (OSError, FleetError):
        return {}
    limits = {}
    for block in (text or "").strip().split("\n\n"):
        pairs = [line.partition("=")[::2] for line in block.splitlines()]
        values = dict(pairs)
        if values.get("LoadState") == "loaded":
            entries = [value for key, value in pairs if key == "DeviceAllow" and value]
            unlimited = not entries and values.get("DevicePolicy", "auto") == "auto"
            limits[values.get("Id", "")] = None if unlimited else entries
    return limits


def containers_at_risk(root: Path, run: Run | None = None) -> list[str]:
    """Return the containers that would lose a GPU that they have open. Needs root."""
    if not (root / "dev" / "nvidiactl").exists():
        return []
    pids: dict[str, int] = {}
    for pid in _processes(root):
        scope = scope_of(cgroup_of(root, pid))
        if scope and scope not in pids and _has_gpu(root, pid):
            pids[scope] = pid
    at_risk = detached(pids, missing_links(root), run) if pids else set()
    return ["%s (pid %d)" % (scope[:_NAME_LETTERS], pids[scope]) for scope in sorted(at_risk)]


def _processes(root: Path) -> Iterator[int]:
    return (int(folder.name) for folder in (root / "proc").glob("[0-9]*") if folder.name.isdigit())


def _has_gpu(root: Path, pid: int) -> bool:
    """Return whether the process has a GPU node open.

    Returns True if the process has too many files to read. Only names are read, because other calls can block on a
    user's file system.
    """
    try:
        with os.scandir(str(root / "proc" / str(pid) / "fd")) as entries:
            for number, entry in enumerate(entries):
                if number >= _OPEN_FILES or _OPEN_NODE.match(_link(entry.path)):
                    return True
    except OSError:
        pass
    return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def guard(root: Path, policy: str, timeout_seconds: float, check: bool, run: Run | None = None) -> None:
    """Return if systemd may reload its units. Call this before the first change.

    With the policy WAIT, waits until no container is at risk, except in check mode. FORCE always permits the reload.
    Otherwise, raises ApplyError with the containers at risk.
    """
    if policy == FORCE or (policy == WAIT and check):
        return
    deadline = time.monotonic() + timeout_seconds
    while True:
        containers = containers_at_risk(root, run)
        if not containers:
            return
        remaining = deadline - time.monotonic()
        if policy != WAIT or remaining <= 0:
            break
        time.sleep(min(_LOOK_SECONDS, remaining))
    more = ["%d more" % (len(containers) - _NAMED)] if len(containers) > _NAMED else []
    raise ApplyError(
        ", ".join([*containers[:_NAMED], *more]),
        "containers would lose their GPUs when systemd reloads its units, which this change requires",
        "To prevent it, %s. Or end them, or set gpu_layout_on_busy to wait or force. Nothing was changed." % CURE,
        outcome="old",
    )
