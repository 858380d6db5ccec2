# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide how a workload can share a GPU of its model. Pure.

The rules are applied in this order: the inventory's settings, size, isolation, latency. The rules whose mistakes are
hardest to correct come first. docs/rightsize.md has a table of the rules.
"""

from __future__ import annotations

import math

from ..packing.geometry import Geometry, geometry
from ..packing.model import WHOLE, Shape, mig, share
from ..techniques.registry import PROPOSED
from .model import Decision, Need, RightsizeError, Wish

_MIB = 1 << 20
#: Quotas are rounded up to multiples of these steps, to limit the number of different sizes.
_MEMORY_STEP_MIB, _PERCENT_STEP = 256, 5


def decide(wish: Wish, need: Need | None, model: str) -> Decision:
    """Return the sharing mode and the share of a GPU.

    `model` is a key of the catalogue. `need` may be None if `wish` sets a profile or the mode "exclusive". Raises
    RightsizeError if the model does not support one of the inventory's settings. Raises CatalogueError if the model is
    unknown.
    """
    rules = geometry(model)
    if wish.profile:
        return _profile(wish, rules)
    if wish.mode == "exclusive":
        return Decision("exclusive", WHOLE, "Set in the inventory (%s)." % wish.where)
    if need is None:
        raise RightsizeError(wish.where, "its need is unknown", "Set memory and sm_percent, or a profile.")
    if wish.mode != "auto":
        return _forced(wish, need, rules)
    return _chosen(wish, need, rules)


def shrink(kind: str, need: Need, model: str) -> Decision:
    """Return the quota of a tenant that keeps its sharing mode.

    `kind` is the mode, `model` a key of the catalogue. Raises CatalogueError if the model is unknown.
    """
    return _shared(kind, "a quota is enough for it", need, geometry(model))


def _profile(wish: Wish, rules: Geometry) -> Decision:
    if wish.profile not in rules.capacity.profiles:
        known = ", ".join(rules.capacity.profiles) or "none, as it has no MIG"
        raise RightsizeError(
            wish.where, "%s has no MIG profile %s" % (rules.key, wish.profile), "Its profiles are %s." % known
        )
    return Decision("mig", mig(wish.profile), "Set in the inventory (%s)." % wish.where)


def _forced(wish: Wish, need: Need, rules: Geometry) -> Decision:
    if wish.mode == "mig":
        if not rules.capacity.profiles:
            raise RightsizeError(wish.where, "%s has no MIG" % rules.key, "Set another mode.")
        shape = _smallest(need, rules, whole=True)
    else:
        shape = _quota(wish.mode, need, rules)
    if shape is None:
        raise RightsizeError(
            wish.where,
            "%s needs %s, and a %s cannot provide that by %s" % (wish.match, _text(need), rules.key, wish.mode),
            "Set the mode exclusive, or memory and sm_percent.",
        )
    return Decision(wish.mode, shape, "Set in the inventory (%s): %s." % (wish.where, _text(need)))


def _chosen(wish: Wish, need: Need, rules: Geometry) -> Decision:
    if wish.isolation == "hardware" or (wish.latency == "low" and wish.isolation == "quota"):
        why = (
            "it requires isolation by hardware"
            if wish.isolation == "hardware"
            else "it cannot wait while other tenants have their turn"
        )
        if not rules.capacity.profiles:
            return _exclusive("%s, and %s has no MIG" % (why, rules.key))
        shape = _smallest(need, rules)
        if shape is None:
            return _exclusive("%s; %s is more than any part of a %s" % (why, _text(need), rules.key))
        return Decision("mig", shape, "It needs %s, and %s: the smallest instance that fits." % (_text(need), why))
    reasons = {each: each.suits(wish.isolation, wish.latency) for each in PROPOSED}
    unfit = []
    for technique in (each for each, why in reasons.items() if why):
        problem = technique.unfit(rules.gpu.compute_capability, rules.key)
        if not problem:
            return _shared(technique.key, reasons[technique], need, rules)
        unfit.append(problem)
    return _exclusive(unfit[0] if unfit else "no kind of sharing suits it")


def _shared(mode: str, why: str, need: Need, rules: Geometry) -> Decision:
    shape = _quota(mode, need, rules)
    if shape is None:
        return _exclusive("%s is too much for sharing a %s" % (_text(need), rules.key))
    return Decision(mode, shape, "It needs %s, and %s." % (_text(need), why))


def _exclusive(why: str) -> Decision:
    return Decision("exclusive", WHOLE, "A whole GPU: %s." % why)


def _smallest(need: Need, rules: Geometry, whole: bool = False) -> Shape | None:
    """Return the smallest MIG instance that fits, or None.

    Ignores profiles with extra engines. The instance may span the whole GPU only if `whole` is true.
    """
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
    return shape if rules.can_hold(shape) else None


def _text(need: Need) -> str:
    return "%.1f GiB and %.0f %% of the compute" % (need.memory_bytes / 2**30, need.compute_percent)
