# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a workload could share a GPU of its model. Pure: the same arguments always give the same answer.

The order of the rules is that of what cannot be mended afterwards: what the inventory says; that too large a workload
shares nothing; isolation; only then latency. docs/rightsize.md has the table.
"""

from __future__ import annotations

import math

from ...module_utils.techniques.mps.rules import limits_bind
from ..packing.geometry import Geometry, geometry
from ..packing.model import WHOLE, Shape, mig, share
from .model import Decision, Need, RightsizeError, Wish

_MIB = 1 << 20
#: Quotas are rounded up to these, so that a hundred workloads have a handful of sizes.
_MEMORY_STEP_MIB, _PERCENT_STEP = 256, 5


def decide(wish: Wish, need: Need | None, model: str) -> Decision:
    """The mode and what it takes of a GPU of the model (a key of the catalogue).

    `need` is None only where `wish` names all that it would be asked for. Raises RightsizeError where the inventory asks
    for what the model cannot do, CatalogueError for an unknown model.
    """
    rules = geometry(model)
    if wish.profile:
        return _profile(wish, rules)
    if wish.mode == "exclusive":
        return Decision("exclusive", WHOLE, "The inventory says so (%s)." % wish.where)
    if need is None:
        raise RightsizeError(wish.where, "how much it needs is not known", "Give memory and sm_percent, or a profile.")
    if wish.mode != "auto":
        return _forced(wish, need, rules)
    return _chosen(wish, need, rules)


def _profile(wish: Wish, rules: Geometry) -> Decision:
    if wish.profile not in rules.capacity.profiles:
        known = ", ".join(rules.capacity.profiles) or "none: it has no MIG"
        raise RightsizeError(
            wish.where, "%s has no MIG profile %s" % (rules.key, wish.profile), "Its profiles are %s." % known
        )
    return Decision("mig", mig(wish.profile), "The inventory says so (%s)." % wish.where)


def _forced(wish: Wish, need: Need, rules: Geometry) -> Decision:
    if wish.mode == "mig":
        if not rules.capacity.profiles:
            raise RightsizeError(wish.where, "%s has no MIG" % rules.key, "Choose another mode for it.")
        shape = _smallest(need, rules, whole=True)
    else:
        shape = _quota(wish.mode, need, rules)
    if shape is None:
        raise RightsizeError(
            wish.where,
            "%s asks for %s, and a %s cannot give that by %s" % (wish.match, _told(need), rules.key, wish.mode),
            "Choose exclusive, or give memory and sm_percent.",
        )
    return Decision(wish.mode, shape, "The inventory says so (%s): %s." % (wish.where, _told(need)))


def _chosen(wish: Wish, need: Need, rules: Geometry) -> Decision:
    if wish.isolation == "hardware" or (wish.latency == "low" and wish.isolation == "quota"):
        why = (
            "only the hardware may isolate it"
            if wish.isolation == "hardware"
            else "tenants with quotas take turns, which it cannot wait for"
        )
        if not rules.capacity.profiles:
            return _exclusive("%s, and %s has no MIG" % (why, rules.key))
        shape = _smallest(need, rules)
        if shape is None:
            return _exclusive("%s; %s is more than any part of a %s" % (why, _told(need), rules.key))
        return Decision("mig", shape, "It needs %s, and %s: the smallest instance that holds it." % (_told(need), why))
    if wish.isolation == "quota":
        mode, why = "vgpu", "a quota will do for it"
    elif wish.latency == "batch":
        mode, why = "time_slicing", "it trusts its neighbours and can wait for its turn"
    elif limits_bind(rules.gpu.compute_capability):
        mode, why = "mps", "it trusts its neighbours and cannot wait for its turn"
    else:
        return _exclusive("it cannot wait for its turn, and MPS does not enforce shares on a %s" % rules.key)
    shape = _quota(mode, need, rules)
    if shape is None:
        return _exclusive("%s is more than can be shared of a %s" % (_told(need), rules.key))
    return Decision(mode, shape, "It needs %s, and %s." % (_told(need), why))


def _exclusive(why: str) -> Decision:
    return Decision("exclusive", WHOLE, "Whole: %s." % why)


def _smallest(need: Need, rules: Geometry, whole: bool = False) -> Shape | None:
    """The smallest instance that holds it, of the profiles without further engines; a part of the GPU unless `whole`."""
    slices = rules.capacity.compute_slices
    found = [
        mig(name)
        for name, profile in rules.capacity.profiles.items()
        if "+" not in name
        and not name.endswith("-me")
        and profile.memory_mib * _MIB >= need.memory_bytes
        and 100 * profile.compute_slices >= need.compute_percent * slices
        and (whole or profile.compute_slices < slices)
    ]
    return min(found, key=lambda shape: (rules.load(shape), shape), default=None)


def _quota(kind: str, need: Need, rules: Geometry) -> Shape | None:
    memory = math.ceil(need.memory_bytes / _MIB / _MEMORY_STEP_MIB) * _MEMORY_STEP_MIB
    percent = math.ceil(max(need.compute_percent, 1) / _PERCENT_STEP) * _PERCENT_STEP
    shape = share(kind, max(memory, _MEMORY_STEP_MIB), min(percent, 100))
    return shape if rules.knows(shape) else None


def _told(need: Need) -> str:
    return "%.1f GiB and %.0f %% of the compute" % (need.memory_bytes / 2**30, need.compute_percent)
