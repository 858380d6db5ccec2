# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query systemd for unit properties and the state of the boot (systemctl(1))."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Sequence

from .processes.command import FAILURES, Run, ask

#: The unit of the role gpu_layout that applies the layout at boot. This process may belong to it.
BOOT = "gpu-layout.service"


class NoAnswerError(Exception):
    """systemctl failed. The text has the reason."""


def booted(root: Path) -> bool:
    """Return whether systemd is the init system (sd_booted(3))."""
    return (root / "run/systemd/system").is_dir()


def show(run: Run, names: Sequence[str], properties: Sequence[str], **options: float) -> list[dict[str, str]]:
    """Return the properties of each unit, in the order of the names.

    A missing property is "". A missing unit has the LoadState "not-found". Raises NoAnswerError, or FileNotFoundError
    if systemctl is not installed.
    """
    text = tell(run, ["systemctl", "show", "--property=%s" % ",".join(properties), "--", *names], **options)
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.strip().split("\n\n")]
    if len(blocks) != len(names):
        raise NoAnswerError("systemctl show answered for %d units of %d" % (len(blocks), len(names)))
    return [{key: values.get(key, "") for key in properties} for values in blocks]


def reset_failed(run: Run, names: Sequence[str]) -> None:
    """Reset the start counters of units.

    Call this before a start that systemd must not refuse. systemd refuses to start a unit more often than its
    StartLimitBurst= (systemd.unit(5); 3 per minute for Docker). A restart would then stop the unit without starting it.
    `reset-failed` resets the counter (systemctl(1)). Its failure for a unit that never ran is ignored.
    """
    with contextlib.suppress(*FAILURES):
        run(["systemctl", "reset-failed", "--", *names])


def loaded(run: Run, names: Sequence[str], properties: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the properties of the loaded units by Id.

    Returns {} if systemd does not answer.
    """
    try:
        units = show(run, names, ("Id", "LoadState", *properties))
    except (NoAnswerError, FileNotFoundError):
        return {}
    return {values["Id"]: values for values in units if values["LoadState"] == "loaded"}


def starting(run: Run, boot_active_state: str) -> bool:
    """Return whether the host is still booting, so that waiting may deadlock.

    Any unit may be ordered after the target or service that started this process during the boot. The GPUs' clients may
    be ordered after BOOT. `boot_active_state` is BOOT's ActiveState. BOOT may be this process, or may wait for a lock
    that this process holds. Raises the same errors as `show`.
    """
    state = tell(run, ["systemctl", "show", "--property=SystemState"]).strip()
    return state in ("SystemState=initializing", "SystemState=starting") or boot_active_state == "activating"


def awaits_boot_unit(run: Run) -> bool:
    """Return whether a unit that is ordered after BOOT may wait for this process.

    Use this for units that are ordered only after BOOT and basic.target. Unlike `starting`, it ignores a boot that
    hangs in other units. Raises the same errors as `show`.
    """
    boot, basic = show(run, [BOOT, "basic.target"], ("ActiveState",))
    return boot["ActiveState"] == "activating" or basic["ActiveState"] != "active"


def tell(run: Run, command: list[str], **options: float) -> str:
    """Run a command and return its output.

    Raises NoAnswerError, or FileNotFoundError if the command is not installed.
    """
    text, problem = ask(run, command, **options)
    if text is None:
        raise NoAnswerError(problem)
    return text
