# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse `gpu_layout` from YAML data into typed values, with pure functions.

The module uses neither Ansible nor NVML, so its checks are the same for every host. Profiles, combinations and
selectors are later compared with the host's GPUs. The techniques' forms (techniques/forms.py) read their parts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Callable, Hashable, Sequence

from ..errors import LayoutError, Problem
from .fields import Names, PartContext, claim
from .form import Form
from .reader import Fields, Key, Node, is_integer, number
from .selectors import parse_selector
from .types import MOST_GPUS, WITHOUT_PART, Entry, Layout, Selector


def entry_keys(forms: Sequence[Form]) -> dict[str, Key]:
    """Return the keys of an entry. The techniques' keys are in alphabetical order."""
    return {
        "gpus": Key("gpus: [0, 1]", required=True),
        "sharing": Key("sharing: mig", required=True),
        **{form.key: form.example for form in sorted(forms, key=lambda form: form.key)},
        "leases": Key("leases: {by: host, groups: [researchers], profiles: [1g.10gb]}"),
    }


def parse(data: Any, forms: Sequence[Form]) -> Layout:
    """Return the layout in `data`, which has lists, mappings and scalars.

    An empty list is a layout that changes no GPU. Raises LayoutError with all problems.
    """
    problems: list[Problem] = []
    root = Node(data, "gpu_layout", problems, "gpu_layout: [{gpus: all, sharing: shared}]")
    entries = _Parser(forms).entries(root)
    if problems:
        raise LayoutError(problems)
    return Layout(tuple(entries))


def _has_online(fields: Fields) -> bool:
    leases = fields["leases"].value if "leases" in fields else None
    return isinstance(leases, Mapping) and "online" in leases


class _Parser:
    """Reads one layout.

    An invalid value becomes None. After any problem, the result is discarded.
    """

    def __init__(self, forms: Sequence[Form]) -> None:
        self._forms = forms
        self._keys = entry_keys(forms)
        self._parts = sorted(form.key for form in forms)
        self._gpus: dict[Hashable, str] = {}
        self._names = Names()

    def entries(self, root: Node) -> list[Entry]:
        nodes = root.items(0, MOST_GPUS) or []
        entries = [self._entry(node, index) for index, node in enumerate(nodes)]
        self._check_all_stands_alone(root)
        self._names.check_former()
        return entries

    def _entry(self, node: Node, index: int) -> Entry:
        fields = node.fields(self._keys)
        if fields is None:
            return Entry(index, (), "")
        selectors = fields.read("gpus", self._selectors, ())
        sharing = fields.read("sharing", lambda field: field.choice((*WITHOUT_PART, *self._parts)))
        if sharing is not None:
            self._check_parts(node, fields, sharing)
        context = PartContext(self._names, selectors, False, "leases" in fields, _has_online(fields))
        readers: dict[str, Callable[[Node], Any]] = {
            form.key: functools.partial(form.parse, context=context) for form in self._forms
        }
        # Read every part, to report problems in unexpected parts too.
        parts = {key: fields.read(key, readers[key]) for key in self._parts}
        return Entry(index, selectors, sharing, parts.get(sharing), self._leases(fields, sharing))

    def _leases(self, fields: Fields, sharing: str | None) -> Any:
        if "leases" not in fields:
            return None
        from .leases import parse

        limits = {form.key: form.lease_limit for form in self._forms if form.lease_limit is not None}
        return parse(fields["leases"], sharing, limits)

    def _check_parts(self, node: Node, fields: Fields, sharing: str) -> None:
        if sharing in self._parts and sharing not in fields:
            node.report(
                "sharing: %s needs the key %s" % (sharing, sharing),
                "Add it, for example `%s`." % self._keys[sharing].example,
            )
        for part in self._parts:
            if part != sharing and part in fields:
                fields[part].report(
                    "the part %s does not belong to sharing: %s" % (part, sharing),
                    "Remove it, or set sharing: %s." % part,
                )

    def _selectors(self, node: Node) -> tuple[Selector | None, ...]:
        # A single string or mapping is accepted. A single number is not, because `gpus: 2` could mean two GPUs.
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
            problem = "all selects every GPU, and %s selects some of them again" % other
            root.problems.append(Problem(place, problem, "Keep all alone, or list the GPUs of each entry."))
