# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check an inventory's variables against the collection's specs. Pure.

The check takes place before a run changes anything.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Iterable, Sequence

from ...module_utils.errors import Problem
from ...module_utils.layout.reader import Key, Node, is_integer
from . import known
from .rules import RULES, Refused, bounds_of

_MOST_RATIO = 1e9
#: Minimum similarity to a known name: for a name without a prefix of the collection, and for the rest of a name after
#: such a prefix.
_NAME_RATIO, _REST_RATIO = 0.9, 0.66
#: Minimum similarity between a name and a required variable that a host does not have.
_MISSING_RATIO = 0.85
#: Minimum lengths of a name and of a word for which one wrong letter is a typing error. A shorter name is too often
#: another variable.
_LEAST_NAME, _LEAST_WORD = 15, 5
#: Beginnings of names without a prefix of the collection that are checked.
_WORDS = ("gpu", "nvidia", "dcgm", "container_t")
# Minimum number of words in a name that is an error if a word is missing, or if a word is wrong. A shorter name is too
# often another role's variable.
_LEAST_WORDS_LEFT, _LEAST_WORDS_WITH_WRONG_ONE = 3, 4
# A role's first word that other products use, too. So a name of two words that lacks a third one is an error only with
# another role's first word (gpu_waves, but not driver_version or container_version).
COMMON_WORD = "container"
# First words of names for other NVIDIA products, for which inventories have variables that are no errors.
_OTHER_PRODUCTS = (("gpu", "operator"), ("gpu", "feature"), ("nvidia", "docker"), ("nvidia", "device"))
# Maximum number of variables in a warning's suggestion.
_MOST_RESEMBLED = 3
_SECRETS = (
    "password",
    "token",
    "secret",
    "basic_auth",
    "prometheus",
    "notify",
    "tell",
    "web_config",
    "receivers",
    "jupyter",
)
_TRUTHS = ("yes", "on", "1", "true", "t", "y", "no", "off", "0", "false", "f", "n")
_EXAMPLES = {
    "int": "60",
    "bool": "true",
    "list": "[one, two]",
    "dict": "{key: value}",
    "path": "/srv/file",
    "str": "text",
}
#: Examples for variables whose default does not show the format.
_EXAMPLES_OF = {
    "gpu_layout_expected_gpus": "[H100-80GB, H100-80GB]",
    "nvidia_driver_version": "580",
    "vgpu_limiter_services": "{train.service: notebook-a}",
}
_MISSING = {
    "gpu_layout": (
        "Write `gpu_layout: []` to keep the host's GPUs as they are, run openfleet.gpu.export to adopt its current layout, or "
        "remove the host from gpu_hosts."
    )
}
_SET_IT = "Set it in the inventory."
#: Text that replaces secret values in messages.
_HIDDEN = "(hidden)"


@dataclass(frozen=True)
class Unknown:
    """An unknown variable with a name that is similar to a known one.

    `nearest` is the known name. `error` is true if the name is almost certainly a misspelling. `by_words` is true if it
    is an error only because of a missing or wrong word. It is then no error if another variable of the inventory uses
    it.
    """

    name: str
    nearest: str
    error: bool
    by_words: bool = False

    def __str__(self) -> str:
        meant = "Did you mean %s? " % self.nearest if self.nearest else ""
        cure = meant + "If it is yours, list it in gpu_site_own_variables."
        return str(Problem(self.name, "unknown variable" if self.error else "unknown variable, ignored", cure))


def unknown(names: Iterable[str], own: Sequence[str] = ()) -> list[Unknown]:
    """Return the unknown names that are similar to the collection's variables.

    `own` has globs for names to ignore.
    """
    variables, unknown_names = known.variables(), []
    for name in sorted(names):
        if name in variables or known.is_internal(name) or any(fnmatchcase(name, pattern) for pattern in own):
            continue
        prefix = next((each for each in known.prefixes() if name.startswith(each)), "")
        typed = "" if prefix else typing_error(name)
        resembled, certain = _word_error(name)
        if not (prefix or typed or resembled or name.startswith(_WORDS)):
            continue
        near = typed or _nearest(name, prefix, variables)
        if prefix or near or resembled:
            error = bool(typed or (prefix and near) or certain)
            by_words = certain and not (typed or (prefix and near))
            # Prefer matching words, which are better evidence than similar letters.
            nearest = (typed or resembled or near) if certain and not prefix else near or resembled
            unknown_names.append(Unknown(name, nearest, error, by_words))
    return unknown_names


def _word_error(name: str) -> tuple[str, bool]:
    """Return (similar variables, whether the name is an error).

    A similar variable differs by one missing or wrong word (docs/variables.md). The text is "" without one, and "a or
    b" with several.
    """
    words = tuple(name.split("_"))
    if len(words) < 2 or "" in words:
        return "", False
    patterns = ((*words[:place], None, *words[place + 1 :]) for place in range(len(words)))
    lacking = set(known.by_missing_word().get(words, ()))
    wrong = {variable for pattern in patterns for variable in known.by_words_around().get(pattern, ())}
    # If several variables differ in the same place, similarity proves nothing: gpu_busy_timeout is similar to every
    # timeout.
    wrong = wrong if len(words) >= _LEAST_WORDS_WITH_WRONG_ONE - 1 and len(wrong) == 1 else set()
    resembled = [*sorted(lacking), *sorted(wrong - lacking)]
    if not resembled:
        return "", False
    certain = (len(lacking) == 1 or len(resembled) == 1) and _is_certain(words, bool(lacking))
    if (
        certain
        or name.startswith(_WORDS)
        or (len(resembled) == 1 and lacking and known.variables()[resembled[0]].by_role)
    ):
        return (" or ".join(resembled) if len(resembled) <= _MOST_RESEMBLED else ""), certain
    return "", False


def _is_certain(words: tuple[str, ...], lacks_word: bool) -> bool:
    common = words[0] == COMMON_WORD
    ours = words[0] in known.first_words() and not common and words[:2] not in _OTHER_PRODUCTS
    if lacks_word:
        return ours or len(words) >= _LEAST_WORDS_LEFT
    return (ours or common) and len(words) >= _LEAST_WORDS_WITH_WRONG_ONE


def typing_error(name: str) -> str:
    """Return the variable that the name misspells by one typing error in one word.

    Returns "" unless there is exactly one. docs/variables.md lists the typing errors. Other differences do not count,
    because inventories have similar names (gpu_layouts, gpu_train_timeout).
    """
    words, found = name.split("_"), set()
    for place, word in enumerate(words):
        for each in known.by_words_around().get((*words[:place], None, *words[place + 1 :]), ()):
            meant = each.split("_")[place]
            if _exchanged(word, meant) or (len(each) >= _LEAST_NAME and _one_letter_off(word, meant)):
                found.add(each)
    return found.pop() if len(found) == 1 else ""


def _exchanged(word: str, meant: str) -> bool:
    """Return whether the words differ only in the order of two neighbouring letters."""
    places = [place for place, pair in enumerate(zip(word, meant)) if pair[0] != pair[1]]
    if len(word) != len(meant) or len(places) != 2 or places[1] != places[0] + 1:
        return False
    return word[places[0] : places[1] + 1] == meant[places[1]] + meant[places[0]]


def _one_letter_off(word: str, meant: str) -> bool:
    """Return whether one letter of a word is missing, wrong or extra.

    The first and last letters must be equal.
    """
    if len(meant) < _LEAST_WORD or abs(len(word) - len(meant)) > 1 or word[:1] != meant[0] or word[-1:] != meant[-1]:
        return False
    same = next(
        (place for place, pair in enumerate(zip(word, meant)) if pair[0] != pair[1]), min(len(word), len(meant))
    )
    longest = max(len(word), len(meant))
    # The words' rest after the first difference must be equal.
    return word[same + (len(word) == longest) :] == meant[same + (len(meant) == longest) :]


def _nearest(name: str, prefix: str, there: Iterable[str]) -> str:
    """Return the most similar known name, or "".

    Names of a role share a prefix. With a prefix, only the rest of the name is compared.
    """
    if prefix:
        rests = {each[len(prefix) :]: each for each in there if each.startswith(prefix)}
        near = difflib.get_close_matches(name[len(prefix) :], rests, 1, _REST_RATIO)
        return rests[near[0]] if near else ""
    near = difflib.get_close_matches(name, list(there), 1, _NAME_RATIO)
    return near[0] if near else ""


def missing(name: str, misspelt: str | None = None) -> Problem:
    """Return the problem that a host does not have a required variable.

    `misspelt` is one of its variables that may be a misspelling of the name, or None.
    """
    cure = _MISSING.get(name, _SET_IT)
    if misspelt is not None:
        cure = "It has %s: did you mean %s? Otherwise %s%s" % (misspelt, name, cure[0].lower(), cure[1:])
    return Problem(name, "the host has no %s" % name, cure)


def empty(name: str) -> Problem:
    """Return the problem that a required variable is null."""
    return Problem(name, "the value is empty (null)", _MISSING.get(name, _SET_IT))


def misspelling(name: str, names: Iterable[str], own: Sequence[str] = ()) -> str | None:
    """Return the inventory's name that is most likely a misspelling of `name`.

    Returns None if there is none. `own` has globs for names that are no misspellings.
    """
    others = {
        each.lower(): each
        for each in sorted(names)
        if not (each in known.variables() or known.is_internal(each) or any(fnmatchcase(each, glob) for glob in own))
    }
    near = difflib.get_close_matches(name, others, 1, _MISSING_RATIO)
    return others[near[0]] if near else None


def check(values: Mapping[str, Any]) -> list[Problem]:
    """Return the problems with these values. Unknown names are skipped."""
    problems: list[Problem] = []
    for name, value in values.items():
        variable = known.variables().get(name)
        if variable is not None:
            problems += _check(variable, value)
    return problems


def _check(variable: known.Variable, value: Any) -> list[Problem]:
    problems: list[Problem] = []
    secret = variable.option.get("no_log") or any(word in variable.name for word in _SECRETS)
    shown = _hidden(value) if secret else value
    kind = variable.option.get("type", "str")
    example = _EXAMPLES_OF.get(variable.name) or _example(variable.option)
    node = Node(shown, variable.name, problems, "%s: %s" % (variable.name, example))
    _READERS[kind](node, variable.option, variable)
    if not problems and variable.name in RULES:
        try:
            RULES[variable.name](value, variable.name)
        except Refused as refused:
            problems += refused.problems
    return problems


def _hidden(value: Any) -> Any:
    """Return the value for messages, with a placeholder in place of each text."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(item) for item in value]
    return _HIDDEN if isinstance(value, str) else value


def _example(option: Mapping[str, Any]) -> str:
    if option.get("choices"):
        first = str(option["choices"][0])
        return "[%s]" % first if option.get("type") == "list" else first
    default = option.get("default")
    if is_integer(default):
        unit = "  # seconds" if "econds" in str(option.get("description")) else ""
        return "%d%s" % (default, unit)
    if isinstance(default, (str, list)) and default and "{{" not in str(default):
        return default if isinstance(default, str) else json.dumps(default)
    return _EXAMPLES.get(option.get("type", "str"), "value")


def _text(node: Node, option: Mapping[str, Any], _variable: Any) -> None:
    if option.get("choices"):
        node.choice([str(choice) for choice in option["choices"]])
    elif isinstance(node.value, bool) or not isinstance(node.value, (str, int, float)):
        # Accept numbers, because YAML reads an unquoted version as a number.
        node.report_type("a string")


def _number(node: Node, _option: Mapping[str, Any], variable: known.Variable) -> None:
    if isinstance(node.value, str) and node.value.isascii() and node.value.isdigit() and len(node.value) < 20:
        # `-e name=60` passes the number as text.
        node.value = int(node.value)
    node.integer(*bounds_of(variable.name))


def _ratio(node: Node, _option: Mapping[str, Any], _variable: Any) -> None:
    node.ratio(0, _MOST_RATIO)


def _truth(node: Node, _option: Mapping[str, Any], _variable: Any) -> None:
    if not isinstance(node.value, bool) and str(node.value).lower() not in _TRUTHS:
        node.boolean()


def _list(node: Node, option: Mapping[str, Any], variable: known.Variable) -> None:
    if isinstance(node.value, str) and not variable.by_role and option.get("elements") == "str":
        # `-e name=one,two` passes the list as text. The module splits it.
        node.value = node.value.split(",")
    for each in node.items(at_least=0) or []:
        element = {key: option[key] for key in ("choices", "options") if key in option}
        _READERS[option.get("elements", "raw")](each, element, variable)


def _mapping(node: Node, option: Mapping[str, Any], variable: known.Variable) -> None:
    if not isinstance(node.value, Mapping):
        node.report_type("a mapping")
        return
    options = option.get("options")
    if options is None:
        return
    keys = {name: Key("%s: %s" % (name, _example(each)), bool(each.get("required"))) for name, each in options.items()}
    fields = node.fields(keys)
    for name, each in options.items():
        if fields is not None and name in fields:
            _READERS[each.get("type", "str")](fields[name], each, variable)


def _raw(_node: Node, _option: Mapping[str, Any], _variable: Any) -> None:
    """Do nothing, because the variable's rule or its reader checks the value."""


_READERS = {
    "str": _text,
    "path": _text,
    "int": _number,
    "bool": _truth,
    "list": _list,
    "dict": _mapping,
    "raw": _raw,
    "float": _ratio,
}
