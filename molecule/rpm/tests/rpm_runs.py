# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a role on a host of this scenario, and read the host's state between runs."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from tests.lab import role_plays
from tests.lab.role_plays import Ask, fail_if

__all__ = ["Ask", "fail_if"]

INVENTORY = Path(__file__).resolve().parents[1] / "inventory"


def script(path: str, text: str) -> str:
    """Return a shell command that writes an executable file.

    The text may contain quotes.
    """
    return f"echo {base64.b64encode(text.encode()).decode()} | base64 -d >{path}; chmod 755 {path}; "


#: A program that kills its parents up to PID 1, like a power failure. It kills the outermost parent first: the
#: connection, the module, and then the package manager.
KILL = r"""pids= pid=$PPID
while [ "$pid" -gt 1 ]; do
    pids="$pid $pids"
    pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
done
kill -KILL $pids
"""


def kill_in(name: str, version: str, kind: str) -> str:
    """Return a shell command that makes a scriptlet kill the run once.

    `kind` is the type of the scriptlet in the package.
    """
    test = f'#!/bin/sh\n[ "$*" = "{name} {version} {kind}" ] || exit 0\nrm /run/scriptlet\n'
    return script("/run/scriptlet", test + KILL)


#: A program that holds DNF's lock for some seconds, like an administrator's DNF.
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
    """The result of a run of the role nvidia_driver on one host."""

    failed: str
    changed: bool
    #: The planned steps and the completed steps.
    planned: tuple[str, ...]
    done: tuple[str, ...]
    executions: int
    #: The output of the command in Ask.then.
    seen: str


def play(host: str, *asks: Ask) -> list[Played]:
    """Run the role nvidia_driver once for each of `asks`, with one ansible-playbook."""
    played = []
    for run in role_plays.run_role(INVENTORY, "nvidia_driver", host, list(asks)):
        planned, done = (
            tuple(run.results.get(name, {}).get("steps", ())) for name in ("Plan the driver", "Apply the plan")
        )
        played.append(Played(run.failed, run.changed, planned, done, run.executions, run.seen))
    return played


# A command that prints the whole state: locks and files of the role, the loaded module, the services, and the client's
# process.
LOOK = r"""rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\n' | grep -v ^gpg-pubkey; echo ---
grep -v '^#' /etc/dnf/plugins/versionlock.list | grep . | sort || true; echo ---
cd /etc; find yum.repos.d modprobe.d dracut.conf.d modules-load.d pki/rpm-gpg -type f -exec sha256sum {} + | sort; echo ---
cat /sys/module/nvidia/version 2>/dev/null || true; echo ---
systemctl is-active nvidia-persistenced nvidia-fabricmanager client | xargs; echo ---
dnf -q check || true; echo --- end"""


@dataclass(frozen=True)
class State:
    """Everything that a change of the driver may affect, in the format of LOOK."""

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
    """Check that all parts have this version and only it is locked.

    The module must be loaded, and no change may be incomplete.
    """
    full = "%s-1%s" % (version, EL)
    assert {state.packages.get(name) for name in PARTS} == {full}
    assert state.loaded == version
    assert {lock for lock in state.locks if "nvidia" in lock} == {"%s-3:%s.*" % (name, full) for name in PARTS}
    assert state.broken == ""
    assert state.active == RUNNING


def foretold(steps) -> dict[str, str | None]:
    """Return the package changes in a plan, by name.

    The value is the new version, or None for a removal.
    """
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
    """Return the package changes between two states."""
    names = before.packages.keys() | after.packages.keys()
    return {name: after.packages.get(name) for name in names if before.packages.get(name) != after.packages.get(name)}
