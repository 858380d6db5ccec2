# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report containers that would lose access to their GPUs in a systemd reload."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

from .. import systemd_reload
from ..model import Holder
from ..plan.disturbance import Disturbance
from ..processes.command import Run

# Maximum number of missing links in a message.
_NAMED = 3


def look(root: Path, holders: Iterable[Holder], run: Run | None = None) -> list[Disturbance]:
    """Return the containers that would lose their GPUs in a systemd reload."""
    scopes: dict[str, dict[str, Holder]] = {}
    for holder in holders:
        scope = systemd_reload.scope_of(systemd_reload.cgroup_of(root, holder.pid)) if holder.pid is not None else ""
        if scope:
            scopes.setdefault(scope, {})[str(holder)] = holder
    if not scopes:
        return []
    missing = systemd_reload.missing_links(root)
    at_risk = systemd_reload.detached(scopes, missing, run)
    who = {name: holder for scope in at_risk for name, holder in scopes[scope].items()}
    if not who:
        return []
    more = ["%d more" % (len(missing) - _NAMED)] if len(missing) > _NAMED else []
    links = "/dev/char lacks the links %s" % ", ".join([*missing[:_NAMED], *more])
    reason = links if missing else "DeviceAllow= of their scopes lacks NVIDIA's devices"
    what = "a GPU that containers would lose when systemd reloads its units, as %s (%s)," % (
        reason,
        systemd_reload.CURE,
    )
    return [Disturbance(what, tuple(who[name] for name in sorted(who)))]
