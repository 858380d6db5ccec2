# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one parser of `gpu_layout`: data as YAML gives it to typed values, and back.

Pure: knows neither Ansible nor NVML, so what it checks holds for any host. Whether a profile exists, a combination
fits or a selector matches is found out against the GPUs. It reads the whole contract, also parts that a given release
does not apply.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Callable, Hashable

from .errors import LayoutError, Problem
from .layout_fields import Names, PartContext, claim
from .layout_gpus import parse_selector
from .layout_reader import Fields, Key, Node, is_integer, number, quoted
from .layout_types import LAYOUT_VERSION, MOST_GPUS, MOST_INSTANCES, Entry, Layout, MigInstance, Selector
from .layout_writer import layout_to_data
from .profile_name import ProfileName, ProfileNameError, parse_profile_name
from .techniques.forms import FORMS, PARTS, SHARINGS

__all__ = [
    "LAYOUT_VERSION",
    "Entry",
    "Layout",
    "MigInstance",
    "Selector",
    "layout_to_data",
    "parse_layout",
]

_PARTS = {
    "mig": Key("mig: [{profile: 3g.40gb}]"),
    **{form.key: form.example for form in FORMS},
}
_ENTRY = {
    "gpus": Key("gpus: [0, 1]", required=True),
    "sharing": Key("sharing: mig", required=True),
    **{key: _PARTS[key] for key in PARTS},
}
_MIG_INSTANCE = {
    "profile": Key("profile: 3g.40gb", required=True),
    "count": Key("count: 2"),
    "placement": Key("placement: 4"),
    "compute_instances": Key("compute_instances: [1c.3g.40gb, 2c.3g.40gb]"),
    **{form.key: form.example for form in FORMS if form.inside_mig},
}


def parse_layout(data: Any) -> Layout:
    """The layout that `data` (lists, mappings and scalars) describes. Raises LayoutError with all problems found.

    An empty list is a layout: every GPU is left as it is.
    """
    problems: list[Problem] = []
    root = Node(data, "gpu_layout", problems, "gpu_layout: [{gpus: all, sharing: shared}]")
    entries = _Parser().entries(root)
    if problems:
        raise LayoutError(problems)
    return Layout(tuple(entries))


class _Parser:
    """Reads one layout. What a problem spoilt is None in the values built; they are dropped when any was found."""

    def __init__(self) -> None:
        self._gpus: dict[Hashable, str] = {}
        self._names = Names()

    def entries(self, root: Node) -> list[Entry]:
        nodes = root.items(0, MOST_GPUS) or []
        entries = [self._entry(node, index) for index, node in enumerate(nodes)]
        self._check_all_stands_alone(root)
        self._names.check_former()
        return entries

    def _entry(self, node: Node, index: int) -> Entry:
        fields = node.fields(_ENTRY)
        if fields is None:
            return Entry(index, (), "")
        selectors = fields.read("gpus", self._selectors, ())
        sharing = fields.read("sharing", lambda field: field.choice(SHARINGS))
        if sharing is not None:
            _check_parts(node, fields, sharing)
        context = PartContext(self._names, selectors)
        readers: dict[str, Callable[[Node], Any]] = {
            "mig": self._mig,
            **{form.key: functools.partial(form.parse, context=context) for form in FORMS},
        }
        # Each part is read, so that the problems of one that does not belong there are found too.
        parts = {key: fields.read(key, readers[key]) for key in PARTS}
        return Entry(index, selectors, sharing, parts.get(sharing))

    def _selectors(self, node: Node) -> tuple[Selector | None, ...]:
        # One string or mapping may stand alone; a number may not, for `gpus: 2` could as well mean two GPUs.
        if isinstance(node.value, (str, Mapping)):
            nodes = [node]
        elif is_integer(node.value):
            node.report(
                "a number alone could be an index or a count",
                "Write gpus: [%s] for the GPU of index %s." % (number(node.value), number(node.value)),
            )
            return ()
        else:
            nodes = node.items(1, MOST_GPUS) or []
        selectors = tuple(parse_selector(each) for each in nodes)
        for each, selector in zip(nodes, selectors):
            if selector is not None:
                claim(self._gpus, selector, each, str(selector), "Name each GPU once.")
        return selectors

    def _check_all_stands_alone(self, root: Node) -> None:
        place = self._gpus.get(Selector("all"))
        if place is not None and len(self._gpus) > 1:
            other = next(where for where in self._gpus.values() if where != place)
            problem = "all names every GPU, and %s names some of them again" % other
            root.problems.append(Problem(place, problem, "Keep all alone, or list the GPUs of each entry."))

    def _mig(self, node: Node) -> tuple[MigInstance, ...] | None:
        nodes = node.items(0, MOST_INSTANCES)
        return None if nodes is None else tuple(self._mig_instance(each) for each in nodes)

    def _mig_instance(self, node: Node) -> MigInstance | None:
        fields = node.fields(_MIG_INSTANCE)
        if fields is None:
            return None
        profile = fields.read("profile", _gpu_instance_profile)
        count = fields.read("count", lambda field: field.integer(1, MOST_INSTANCES), 1)
        placement = fields.read("placement", lambda field: field.integer(0, MOST_INSTANCES - 1))
        if placement is not None and count is not None and count > 1:
            node.report(
                "one placement cannot serve %d instances" % count,
                "Write one element for each instance, each with its placement, or take placement away.",
            )
        split = fields.read("compute_instances", lambda field: _compute_instances(field, profile), ())
        sharing, part = self._inside_mig(fields)
        return MigInstance(str(profile), count, placement, split, sharing, part)

    def _inside_mig(self, fields: Fields) -> tuple[str | None, Any]:
        """Return the technique that shares an instance, and its part."""
        found: tuple[str | None, Any] = (None, None)
        context = PartContext(self._names, inside_mig=True)
        for form in FORMS:
            if form.inside_mig and form.key in fields:
                found = form.key, form.parse(fields[form.key], context)
        return found


def _check_parts(node: Node, fields: Fields, sharing: str) -> None:
    if sharing in PARTS and sharing not in fields:
        node.report(
            "sharing: %s needs the key %s" % (sharing, sharing), "Add it, for example `%s`." % _ENTRY[sharing].example
        )
    for part in PARTS:
        if part != sharing and part in fields:
            fields[part].report(
                "the part %s does not belong to sharing: %s" % (part, sharing),
                "Take it away, or set sharing: %s." % part,
            )


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
            "%s names a compute instance" % quoted(node.value),
            "Write profile: %s, and list compute instances in compute_instances." % name.gpu_instance,
        )
        return None
    return name


def _compute_instances(node: Node, profile: ProfileName | None) -> tuple[str, ...]:
    """The names of the parts of a split; none where a single part spans the instance, which is what no split means."""
    nodes = node.items(1, MOST_INSTANCES) or []
    names = [_profile_name(each) for each in nodes]
    if profile is None or None in names or not names:
        return ()
    for each, name in zip(nodes, names):
        if name.gpu_instance != profile.gpu_instance:
            each.report(
                "%s is no part of a %s" % (name, profile),
                "Parts of it are named like 1c.%s." % profile.gpu_instance,
            )
    slices = sum(name.compute_slices for name in names)
    if slices > profile.gpu_slices:
        node.report(
            "the parts take %d compute slices, a %s has %d" % (slices, profile, profile.gpu_slices),
            "Take parts away, or choose smaller ones.",
        )
    return () if names == [profile] else tuple(str(name) for name in names)
