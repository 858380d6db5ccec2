# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disable NVIDIA's MIG manager for systemd.

Otherwise it would repartition the GPUs at the next boot. Source:
https://github.com/NVIDIA/mig-parted/tree/main/deployments/systemd
"""

from __future__ import annotations

from pathlib import Path

from .. import systemd
from ..errors import FollowError, PlanError, Problem
from ..processes.command import Run, run_tool

UNIT = "nvidia-mig-manager.service"
REFUSE, DISABLE = POLICIES = ("refuse", "disable")


def plan(policy: str, run: Run = run_tool, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the step that disables the MIG manager, or none if it is not enabled.

    Raises PlanError if it is enabled and the policy is REFUSE.
    """
    if not systemd.booted(root):
        return ()
    unit = systemd.loaded(run, [UNIT], ("UnitFileState",)).get(UNIT)
    if unit is None or not unit["UnitFileState"].startswith(("enabled", "linked")):
        return ()
    if policy == REFUSE:
        raise PlanError(
            UNIT,
            "it is enabled, and would repartition the GPUs at the next boot after gpu-layout.service",
            "Set gpu_layout_mig_manager: disable, or run `systemctl disable %s`." % UNIT,
        )
    return ("disable %s" % UNIT,)


def disable(run: Run = run_tool) -> None:
    """Disable the MIG manager from the next boot on.

    Raises FollowError on failure, because the layout was already applied.
    """
    try:
        systemd.tell(run, ["systemctl", "disable", "--no-reload", "--quiet", UNIT])
    except (systemd.NoAnswerError, FileNotFoundError) as error:
        cure = "Run `systemctl disable %s` on the host." % UNIT
        raise FollowError([Problem(UNIT, "it could not be disabled: %s" % error, cure)]) from error
