# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a role on a host of this scenario, and read the host's state between runs."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

import role_plays
from role_plays import Ask

__all__ = ["Ask"]

INVENTORY = Path(__file__).resolve().parents[1] / "inventory"


def script(path: str, text: str) -> str:
    """Return a shell command that writes an executable file. The text can have quotes."""
    return f"echo {base64.b64encode(text.encode()).decode()} | base64 -d >{path}; chmod 755 {path}; "


#: Kills its parents up to PID 1, the outermost first, as a power failure would: package manager, module and connection.
KILL = r"""pids= pid=$PPID
while [ "$pid" -gt 1 ]; do
    pids="$pid $pids"
    pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
done
kill -KILL $pids
"""


def kill_in(name: str, version: str, kind: str) -> str:
    """Return a shell command: the scriptlet `kind` of a package kills the run, once."""
    test = f'#!/bin/sh\n[ "$*" = "{name} {version} {kind}" ] || exit 0\nrm /run/scriptlet\n'
    return script("/run/scriptlet", test + KILL)


#: Holds DNF's lock for some seconds, as an administrator's DNF would.
HOLD_THE_LOCK = (
    script(
        "/run/hold.py",
        """import time, dnf, dnf.lock
with dnf.lock.build_rpmdb_lock(dnf.Base().conf.persistdir, True):
    print("held", flush=True)
    time.sleep(6)
""",
    )
    + "systemd-run --quiet --collect --unit=hold python3 /run/hold.py; "
    + "until journalctl -u hold | grep -q held; do sleep 0.1; done; "
)


@dataclass(frozen=True)
class Played:
    """How a run of the role nvidia_driver went on one host."""

    failed: str
    changed: bool
    #: Steps of the plan, and those that were done.
    planned: tuple[str, ...]
    done: tuple[str, ...]
    executions: int
    #: Output of Ask.then.
    seen: str


def play(host: str, *asks: Ask) -> list[Played]:
    """Run the role nvidia_driver once for each of `asks`, in order, by one ansible-playbook."""
    played = []
    for run in role_plays.run_role(INVENTORY, "nvidia_driver", host, list(asks)):
        planned, done = (
            tuple(run.results.get(name, {}).get("steps", ())) for name in ("Plan the driver", "Apply the plan")
        )
        played.append(Played(run.failed, run.changed, planned, done, run.executions, run.seen))
    return played


# In one execution. The locks and the files of the role, the loaded module, the services and the client's process.
LOOK = r"""rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\n' | grep -v ^gpg-pubkey; echo ---
grep -v '^#' /etc/dnf/plugins/versionlock.list | grep . | sort || true; echo ---
cd /etc; find yum.repos.d modprobe.d dracut.conf.d modules-load.d pki/rpm-gpg -type f -exec sha256sum {} + | sort; echo ---
cat /sys/module/nvidia/version 2>/dev/null || true; echo ---
systemctl is-active nvidia-persistenced nvidia-fabricmanager client | xargs; echo ---
dnf -q check || true; echo --- end"""


@dataclass(frozen=True)
class State:
    """All that a change of the driver may touch, as LOOK prints it."""

    packages: dict[str, str]
    locks: tuple[str, ...]
    configuration: str
    loaded: str
    active: str
    broken: str

    @classmethod
    def read(cls, text: str) -> State:
        parts = [part.strip() for part in re.split("^---.*$", text, flags=re.MULTILINE)]
        packages = dict(line.split() for line in parts[0].splitlines())
        return cls(packages, tuple(parts[1].split()), *parts[2:6])


RUNNING = "active active active"
EL = ".el9"
PARTS = {
    "kmod-nvidia-open-dkms", "libnvidia-ml", "nvidia-driver-cuda", "nvidia-driver-cuda-libs", "nvidia-fabricmanager",
    "nvidia-kmod-common", "nvidia-persistenced",
}  # fmt: skip


def is_whole(state: State, version: str) -> None:
    """Assert one version in all parts, loaded, locked to it alone, and nothing half done."""
    full = "%s-1%s" % (version, EL)
    assert {state.packages.get(name) for name in PARTS} == {full}
    assert state.loaded == version
    assert {lock for lock in state.locks if "nvidia" in lock} == {"%s-3:%s.*" % (name, full) for name in PARTS}
    assert state.broken == ""
    assert state.active == RUNNING


def foretold(steps) -> dict[str, str | None]:
    """Return the packages that a plan changes, by name: the new version, None for a removal."""
    found: dict[str, str | None] = {}
    for step in steps:
        words = step.split()
        if words[0] == "install" and len(words) == 3:
            found[words[1]] = words[2]
        elif words[0] in ("upgrade", "downgrade"):
            found[words[1]] = words[4]
        elif words[0] == "remove":
            found[words[1]] = None
    return found


def differences(before: State, after: State) -> dict[str, str | None]:
    """Return the packages that two states differ in."""
    names = before.packages.keys() | after.packages.keys()
    return {name: after.packages.get(name) for name in names if before.packages.get(name) != after.packages.get(name)}
