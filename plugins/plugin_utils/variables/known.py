# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read all of the collection's variables from the specs of roles and playbooks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping

import yaml

_ROOT = Path(__file__).resolve().parents[3]
PLAYBOOKS = "playbooks"
#: Use libyaml if possible: it is ten times as fast, and the specs are read once per host.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Variable:
    """One variable.

    `owners` are the roles (``gpu_layout``) and playbooks (``site.yml``) that read it.
    """

    name: str
    option: Mapping[str, Any]
    owners: tuple[str, ...]

    @property
    def by_role(self) -> bool:
        return any(not owner.endswith(".yml") for owner in self.owners)


@lru_cache(maxsize=None)
def variables() -> dict[str, Variable]:
    """Return all variables by name. Variables of roles come first."""
    found: dict[str, Variable] = {}
    for owner, options in _specs():
        for name, option in options.items():
            former = found.get(name)
            owners = former.owners if former else ()
            # Prefer the role's longer description for a variable that a playbook shares.
            kept = former.option if former else option
            found[name] = Variable(name, kept, owners if owner in owners else (*owners, owner))
    return found


def of_owner(owner: str) -> dict[str, Mapping[str, Any]]:
    """Return a role's or playbook's options by variable.

    The options are in the order of the argument spec.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for each, options in _specs():
        if each == owner:
            found.update(options)
    return found


def owners() -> list[str]:
    """Return the roles and playbooks that have variables."""
    return list(dict.fromkeys(owner for owner, _options in _specs()))


@lru_cache(maxsize=None)
def prefixes() -> tuple[str, ...]:
    """Return the prefixes of the collection's variables, longest first."""
    starts = {owner + "_" for owner in owners() if not owner.endswith(".yml")}
    starts |= {
        "_".join(variable.name.split("_")[:2]) + "_" for variable in variables().values() if not variable.by_role
    }
    return tuple(sorted(starts, key=len, reverse=True))


@lru_cache(maxsize=None)
def first_words() -> tuple[str, ...]:
    """Return the first words of the roles' names, sorted."""
    return tuple(sorted({owner.split("_")[0] for owner in owners() if not owner.endswith(".yml")}))


@lru_cache(maxsize=None)
def by_words_around() -> dict[tuple[str | None, ...], list[str]]:
    """Return variables' names by pattern.

    A pattern is a name in which None replaces one word.
    """
    found: dict[tuple[str | None, ...], list[str]] = {}
    for name in variables():
        words = name.split("_")
        for place in range(len(words)):
            found.setdefault((*words[:place], None, *words[place + 1 :]), []).append(name)
    return found


@lru_cache(maxsize=None)
def by_missing_word() -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return variables' names by their words without one of them."""
    shortened: dict[tuple[str, ...], tuple[str, ...]] = {}
    for pattern, names in by_words_around().items():
        words = tuple(word for word in pattern if word is not None)
        shortened[words] = tuple(sorted({*shortened.get(words, ()), *names}))
    return shortened


def is_internal(name: str) -> bool:
    """Return whether the collection's own tasks set the variable.

    Inventories do not set it.
    """
    return "__" in name or name in _set_by_tasks()


@lru_cache(maxsize=None)
def _set_by_tasks() -> frozenset[str]:
    files = [*_ROOT.glob("roles/*/tasks/*.yml"), *_ROOT.glob("roles/*/vars/*.yml"), *_ROOT.glob("playbooks/**/*.yml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path.name != "argument_specs.yml")
    return frozenset(re.findall(r"^ *(?:- )?(\w+):", text, re.MULTILINE) + re.findall(r"register: (\w+)", text))


@lru_cache(maxsize=None)
def _specs() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    found = []
    for path in sorted(_ROOT.glob("roles/*/meta/argument_specs.yml")):
        for entry in _read(path).values():
            found.append((path.parents[1].name, entry.get("options") or {}))
    for name, entry in _read(_ROOT / PLAYBOOKS / "vars" / "argument_specs.yml").items():
        found.append((name + ".yml", entry["options"]))
    return tuple(found)


def _read(path: Path) -> Mapping[str, Any]:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)["argument_specs"]
