# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the saved and the current instances of a GPU. Pure functions."""

from __future__ import annotations

from typing import Any, Iterable, Mapping


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return (differences of the MIG mode, differences of the instances) as texts."""
    modes = [
        "%s was %s and is %s" % (name, *("on" if m[mode] else "off" for m in (then, now)))
        for mode, name in (("mig_enabled", "MIG mode"), ("mig_pending", "the pending MIG mode"))
        if then[mode] != now[mode]
    ]
    return modes, list(_of_instances(then, now))


def _of_instances(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    old, new = ({(i["profile"], i["start"]): i for i in m["instances"]} for m in (then, now))
    for place in sorted({*old, *new}, key=lambda place: (place[1], place[0])):
        name = "%s@%d" % place
        if place not in new:
            yield "%s is gone" % name
        elif place not in old:
            yield "%s appeared" % name
        elif old[place]["id"] != new[place]["id"]:
            yield "%s was recreated (instance %d then, %d now)" % (name, old[place]["id"], new[place]["id"])
        elif old[place] != new[place]:
            yield "the compute instances of %s were %s and are %s" % (name, _compute(old[place]), _compute(new[place]))


def _compute(instance: Mapping[str, Any]) -> str:
    return ", ".join("%(compute_slices)dc@%(start)d" % c for c in instance["compute_instances"]) or "none"
