# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an adopted host's layout into the inventory.

The file is host_vars/HOST/gpu_layout.yml. Ansible trusts the file, but its layout comes from the host. So the layout is
only written if the parser of `gpu_layout` accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

import yaml

from ..module_utils.durable import replacing
from ..module_utils.errors import FleetError, LayoutError
from ..module_utils.layout.yaml_text import layout_yaml
from ..module_utils.techniques.forms import layout_to_data, parse_layout
from .host_values import text
from .plain import plain

_HEAD = "# As openfleet.gpu.export found it.%s\n---\n"
_MOST_SENTENCES = 100


@dataclass(frozen=True)
class FilePlan:
    """A planned change of the file.

    `text` is the new content. `former` is the current content, or None without a file. `left_out` has sentences about
    parts of the host's state that the layout does not contain.
    """

    host: str
    path: Path
    layout: list[dict[str, Any]]
    left_out: list[str]
    text: str
    former: str | None


@dataclass(frozen=True)
class Written:
    """The result of writing the file, or of a dry run."""

    changed: bool
    text: str


def checked(host: str, result: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Check a host's result, and return (canonical layout, parts left out).

    These parts are printable sentences. Raises FleetError if the layout is invalid or selects GPUs with a glob.
    """
    try:
        parsed = parse_layout(plain(result["gpu_layout"]))
    except LayoutError as error:
        raise FleetError(
            "%s: %s" % (host, text(error.where)),
            "the host sent an invalid layout: %s" % text(error.problem),
            "Find out who changed the programs that root runs on this host.",
        ) from None
    if any(selector.kind == "model" for entry in parsed.entries for selector in entry.selectors):
        raise FleetError(
            "%s: gpu_layout" % host,
            "the host sent a glob for its GPUs",
            "Find out who changed the programs that root runs on this host.",
        )
    sentences = result.get("left_out")
    return layout_to_data(parsed), [
        text(sentence) for sentence in (sentences if isinstance(sentences, list) else [])[:_MOST_SENTENCES]
    ]


def plan(host: str, directory: str, layout: list[dict[str, Any]], left_out: list[str]) -> FilePlan:
    """Return the plan for the host's file.

    Raises FleetError if the host's name is not a valid directory name, and OSError if the existing file cannot be read.
    """
    if "/" in host or "\0" in host or host.startswith("."):
        raise FleetError(host, "a directory cannot have the name of this host", "Write its gpu_layout by hand.")
    path = Path(directory).expanduser().absolute() / "host_vars" / host / "gpu_layout.yml"
    former = path.read_text(encoding="utf-8") if path.exists() else None
    notes = "".join("\n# Left out: %s" % _one_line(sentence) for sentence in left_out)
    new = _HEAD % notes + layout_yaml(layout)
    if not _holds(new, layout):
        raise FleetError(
            host,
            "its gpu_layout would change when written as YAML and read again",
            "Find out who changed the programs that root runs on this host, and write its gpu_layout by hand.",
        )
    return FilePlan(host, path, layout, left_out, new, former)


def _one_line(sentence: str) -> str:
    """Return a host's sentence as one line of printable ASCII.

    A line break could end the comment in which the sentence is written.
    """
    return text(sentence).encode("ascii", "backslashreplace").decode()


def _holds(new: str, layout: list[dict[str, Any]]) -> bool:
    """Return whether the text contains this layout and nothing else.

    Besides comments and the start of a document, it may only have YAML that is read as the layout.
    """
    head, begin, _body = new.partition("\n---\n")
    try:
        return (
            bool(begin)
            and all(line.startswith("# ") for line in head.splitlines())
            and yaml.safe_load(new) == {"gpu_layout": layout}
        )
    except yaml.YAMLError:
        return False


def write(plan: FilePlan, known: Any, overwrite: bool, dry: bool) -> Written:
    """Write the file, unless the file or the inventory already has this layout.

    `known` is the host's `gpu_layout` in the inventory, or None. Raises FleetError if the file or the inventory has
    another layout and `overwrite` is false.
    """
    former = _layout_of(plan)
    if former == plan.layout or (plan.former is None and _canonical(known) == plan.layout):
        return Written(False, "%s: the inventory has this layout already" % plan.host)
    if not overwrite and (plan.former is not None or known is not None):
        what = str(plan.path) if plan.former is not None else "the inventory"
        raise FleetError(
            plan.host,
            "%s has another gpu_layout than the host" % what,
            "To see the difference, run with -e gpu_export_overwrite=true --check --diff. "
            "To replace it, run that without --check. To keep it and change the host, run site.yml.",
        )
    if not dry:
        plan.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(plan.path) as file:
            file.write(plan.text.encode())
    verb = "would write" if dry else "wrote"
    count = len(plan.layout)
    left = "; left out: %s" % "; ".join(plan.left_out) if plan.left_out else ""
    return Written(
        True, "%s: %s %s (%d entr%s)%s" % (plan.host, verb, plan.path, count, "y" if count == 1 else "ies", left)
    )


def _layout_of(plan: FilePlan) -> list[dict[str, Any]] | None:
    """Return the existing file's layout in canonical form.

    Returns None without a file, or if it has any other content.
    """
    try:
        data = yaml.safe_load(plan.former or "")
    except yaml.YAMLError:
        # A file with a vaulted value or invalid YAML does not have the new layout.
        return None
    return _canonical(data.get("gpu_layout")) if isinstance(data, dict) and set(data) == {"gpu_layout"} else None


def _canonical(layout: Any) -> list[dict[str, Any]] | None:
    try:
        return None if layout is None else layout_to_data(parse_layout(layout))
    except LayoutError:
        return None
