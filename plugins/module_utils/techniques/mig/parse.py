# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write the part `mig` of an entry in `gpu_layout`.

Other techniques may share the instances.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from ...layout.fields import PartContext
from ...layout.form import Form
from ...layout.profile_name import ProfileName, ProfileNameError, parse_profile_name
from ...layout.reader import Fields, Key, Node, quoted
from ...layout.types import MOST_INSTANCES, MigInstance

KEYS = {
    "profile": Key("profile: 3g.40gb", required=True),
    "count": Key("count: 2"),
    "placement": Key("placement: 4"),
    "compute_instances": Key("compute_instances: [1c.3g.40gb, 2c.3g.40gb]"),
}


def parse(node: Node, context: PartContext, inside: Sequence[Form]) -> tuple[MigInstance, ...] | None:
    """Return the part, or None after reporting an error.

    `inside` lists the forms of the techniques that can share an instance.
    """
    nodes = node.items(0, MOST_INSTANCES)
    return None if nodes is None else tuple(_instance(each, context, inside) for each in nodes)


def to_data(part: Sequence[MigInstance], inside: Sequence[Form]) -> list[dict[str, Any]]:
    """Return the part in its canonical form."""
    return [_instance_to_data(instance, inside) for instance in part]


def _instance_to_data(instance: MigInstance, inside: Sequence[Form]) -> dict[str, Any]:
    data: dict[str, Any] = {"profile": instance.profile}
    if instance.count != 1:
        data["count"] = instance.count
    if instance.placement is not None:
        data["placement"] = instance.placement
    if instance.compute_instances:
        data["compute_instances"] = list(instance.compute_instances)
    return {**data, **{form.key: form.to_data(instance.part) for form in inside if form.key == instance.sharing}}


def _instance(node: Node, context: PartContext, inside: Sequence[Form]) -> MigInstance | None:
    fields = node.fields({**KEYS, **{form.key: form.example for form in inside}})
    if fields is None:
        return None
    profile = fields.read("profile", _gpu_instance_profile)
    count = fields.read("count", lambda field: field.integer(1, MOST_INSTANCES), 1)
    placement = fields.read("placement", lambda field: field.integer(0, MOST_INSTANCES - 1))
    if placement is not None and count is not None and count > 1:
        node.report(
            "%d instances cannot have the same placement" % count,
            "Write one element for each instance, each with its placement, or remove placement.",
        )
    split = fields.read("compute_instances", lambda field: _compute_instances(field, profile), ())
    sharing, part = _shared(fields, dataclasses.replace(context, selectors=(), inside_mig=True), inside)
    return MigInstance(str(profile), count, placement, split, sharing, part)


def _shared(fields: Fields, context: PartContext, inside: Sequence[Form]) -> tuple[str | None, Any]:
    """Return (key of the technique that shares an instance, its part)."""
    found: tuple[str | None, Any] = (None, None)
    for form in inside:
        if form.key in fields:
            found = form.key, form.parse(fields[form.key], context)
    return found


def _profile_name(node: Node) -> ProfileName | None:
    text = node.text()
    try:
        return None if text is None else parse_profile_name(text)
    except ProfileNameError as error:
        node.report(error.problem, error.cure)
        return None


def _gpu_instance_profile(node: Node) -> ProfileName | None:
    name = _profile_name(node)
    if name is not None and node.value != name.gpu_instance:
        node.report(
            "%s is a compute instance" % quoted(node.value),
            "Write profile: %s, and list compute instances in compute_instances." % name.gpu_instance,
        )
        return None
    return name


def _compute_instances(node: Node, profile: ProfileName | None) -> tuple[str, ...]:
    """Return the names of the compute instances that split a GPU instance.

    Returns an empty tuple if a single compute instance spans the whole GPU instance.
    """
    nodes = node.items(1, MOST_INSTANCES) or []
    names = [_profile_name(each) for each in nodes]
    if profile is None or None in names or not names:
        return ()
    for each, name in zip(nodes, names):
        if name.gpu_instance != profile.gpu_instance:
            each.report(
                "%s is not a part of a %s" % (name, profile),
                "Its parts have names like 1c.%s." % profile.gpu_instance,
            )
    slices = sum(name.compute_slices for name in names)
    if slices > profile.gpu_slices:
        node.report(
            "the compute instances need %d compute slices, but a %s has %d" % (slices, profile, profile.gpu_slices),
            "Remove parts, or choose smaller ones.",
        )
    return () if names == [profile] else tuple(str(name) for name in names)
