# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of systemd here: the properties of units, and whether the host still starts (systemctl(1))."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Sequence

from .command import FAILURES, Run, ask

#: The unit by which the role gpu_layout restores the layout at boot; this very process may be it.
BOOT = "gpu-layout.service"


class NoAnswerError(Exception):
    """systemctl failed; the text says how."""


def booted(root: Path) -> bool:
    """Whether systemd is the init system (sd_booted(3))."""
    return (root / "run/systemd/system").is_dir()


def show(run: Run, names: Sequence[str], properties: Sequence[str], **options: float) -> list[dict[str, str]]:
    """Return the properties of each unit, in the order of the names, empty where a unit has no such property.

    A unit that is not there has the LoadState not-found. Raises NoAnswerError, and FileNotFoundError where there is no systemctl.
    """
    text = tell(run, ["systemctl", "show", "--property=%s" % ",".join(properties), "--", *names], **options)
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.strip().split("\n\n")]
    if len(blocks) != len(names):
        raise NoAnswerError("systemctl show answered for %d units of %d" % (len(blocks), len(names)))
    return [{key: said.get(key, "") for key in properties} for said in blocks]


def reset_failed(run: Run, names: Sequence[str]) -> None:
    """Forget that units failed, and how often they were started. Call it before a start that must not be refused.

    systemd refuses starts beyond a unit's StartLimitBurst= (systemd.unit(5); Docker's is 3 a minute): a restart then stops the
    unit and leaves it so. `reset-failed` resets that count (systemctl(1)). It fails for a unit that never ran, and that is well.
    """
    with contextlib.suppress(*FAILURES):
        run(["systemctl", "reset-failed", "--", *names])


def loaded(run: Run, names: Sequence[str], properties: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the properties of the units that are there, by Id; none where systemd does not answer."""
    try:
        units = show(run, names, ("Id", "LoadState", *properties))
    except (NoAnswerError, FileNotFoundError):
        return {}
    return {said["Id"]: said for said in units if said["LoadState"] == "loaded"}


def starting(run: Run, boot_active_state: str) -> bool:
    """Whether the host still starts, so that a unit which is waited for might wait for this process.

    For units of any kind: they may be ordered behind any target or service of the boot, by which this process may have been
    started, and clients of GPUs behind BOOT, whose ActiveState is given: it may be this process, or wait for the lock that
    this process holds. Raises as `show`.
    """
    state = tell(run, ["systemctl", "show", "--property=SystemState"]).strip()
    return state in ("SystemState=initializing", "SystemState=starting") or boot_active_state == "activating"


def awaits_boot_unit(run: Run) -> bool:
    """Whether a unit that comes after BOOT, and after nothing else but basic.target, may wait for this process.

    Narrower than `starting`: a boot that hangs long in some other unit does not concern it. Raises as `show`.
    """
    boot, basic = show(run, [BOOT, "basic.target"], ("ActiveState",))
    return boot["ActiveState"] == "activating" or basic["ActiveState"] != "active"


def tell(run: Run, command: list[str], **options: float) -> str:
    """What it prints. Raises NoAnswerError, and FileNotFoundError where there is no such command."""
    text, problem = ask(run, command, **options)
    if text is None:
        raise NoAnswerError(problem)
    return text
