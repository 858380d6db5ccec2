# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a proposal as an inventory overlay and as reports in YAML, JSON and HTML.

The overlay `DIRECTORY/proposal/` is not applied. It is an inventory source with `hosts.yml`, and
`host_vars/HOST/gpu_layout.yml` for each changed host. The reports are outside it, because Ansible reads every file in
an inventory directory.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Iterator

import yaml

from .. import private
from ..audit.report_html import when
from . import report_html
from .model import HostChange, Proposal, RightsizeError
from .pools import to_change
from .sums import summary

JSON, YAML, HTML, OVERLAY = "rightsize.json", "rightsize.yml", "rightsize.html", "proposal"
LAYOUT = "gpu_layout.yml"
#: Start of the first line of generated files. A new proposal removes old files with it.
_MARK = "# A proposal of openfleet.gpu.rightsize"


def all_of(proposal: Proposal, directory: Path) -> list[Path]:
    """Write all files, each of them atomically.

    Returns their paths. Raises RightsizeError.
    """
    texts = dict(files(proposal))
    try:
        private.make_folder(directory)
        for old in directory.glob("%s/host_vars/*/%s" % (OVERLAY, LAYOUT)):
            if str(old.relative_to(directory)) not in texts and old.read_text(encoding="utf-8").startswith(_MARK):
                old.unlink()
                if not any(old.parent.iterdir()):
                    old.parent.rmdir()
        for name, text in texts.items():
            path = directory / name
            private.make_folder(path.parent)
            private.write(path, text)
    except OSError as error:
        raise RightsizeError(
            str(directory), "the proposal cannot be written: %s" % error, "Name another directory."
        ) from None
    return [directory / name for name in texts]


def files(proposal: Proposal) -> Iterator[tuple[str, str]]:
    """Yield (path within the directory, text) for each file."""
    yield JSON, json.dumps(to_data(proposal), indent=1, sort_keys=True, allow_nan=False) + "\n"
    yield (
        YAML,
        "%s of %s: changes and reasons. Not applied.\n---\n%s"
        % (_MARK, when(proposal.made_at_seconds), _yaml(_reviewed(proposal))),
    )
    yield HTML, report_html.to_text(proposal)
    changes = [change for change in proposal.hosts if change.changes_layout]
    hosts: dict[str, Any] = {change.host: {} for change in changes}
    yield (
        "%s/hosts.yml" % OVERLAY,
        "%s. Use it after your inventory: -i INVENTORY -i %s\n---\n%s"
        % (_MARK, OVERLAY, _yaml({"all": {"hosts": hosts}})),
    )
    for change in changes:
        if change.host in (".", "..") or "/" in change.host:
            raise RightsizeError(repr(change.host), "this name of a host cannot be a directory", "Rename the host.")
        yield "%s/host_vars/%s/%s" % (OVERLAY, change.host, LAYOUT), layout_text(change)


def layout_text(change: HostChange) -> str:
    """Return the content of a host's variables file, for a pull request.

    Ansible trusts this file, so it has no text from hosts or users. The plan and the current users are in
    rightsize.yml, which Ansible does not read. Raises RightsizeError if the file would have more than plain data, for
    example a template.
    """
    layout = [dict(entry) for entry in change.layout]
    heading = "%s. It replaces the host's gpu_layout. Plan and current users: %s" % (_MARK, YAML)
    text = "%s\n---\n%s" % (heading, _yaml({"gpu_layout": layout}))
    problem = _not_plain(layout)
    if problem or yaml.safe_load(text) != {"gpu_layout": layout}:
        raise RightsizeError(
            change.host,
            "its proposed layout has a value that is not plain text: %r" % (problem,),
            "Check what the host reports about its GPUs (openfleet.gpu.gpu_info).",
        )
    return text


def _not_plain(value: Any) -> str | None:
    """Return the first string that is not plain text, or None.

    Plain text is printable, and Ansible does not evaluate it as a template.
    """
    if isinstance(value, str):
        return value if not value.isprintable() or re.search("{[{%#]", value) else None
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((found for found in map(_not_plain, parts) if found is not None), None)


def to_data(proposal: Proposal) -> dict[str, Any]:
    """Return the proposal as dictionaries, lists and scalars."""
    data = dataclasses.asdict(proposal)
    data["summary"] = summary(proposal)
    return data


def _reviewed(proposal: Proposal) -> dict[str, Any]:
    """Return the data that reviewers need, in order of importance."""
    return {
        "summary": summary(proposal),
        "promise": proposal.promise,
        "hosts": {
            change.host: {
                "gpu_layout": [dict(entry) for entry in change.layout],
                "plan": list(change.plan),
                "in_use_today": ["%s: %s" % (found["what"], "; ".join(found["who"])) for found in change.disturbs],
                "gpus_freed": list(change.freed_gpus),
                "saved_per_month": change.saved_per_month,
            }
            for change in proposal.hosts
        },
        "workloads": [
            {
                "name": one.name,
                "today": "%s gpu %d: %s" % (one.host, one.gpu_index, one.today),
                "then": "%s gpu %d: %s" % (one.then_host, one.then_gpu_index, one.then),
                "change": one.change,
                "mode": one.mode,
                "reason": one.reason,
                "risk": one.risk,
                "risks": list(one.risks),
            }
            for one in proposal.workloads
            if one.change in ("moved", "resized")
        ],
        "colocations": [
            {
                "host": one.host,
                "online": one.online,
                "offline": list(one.offline),
                "frees": list(one.freed),
                "entry": one.entry,
                "reason": one.reason,
            }
            for one in proposal.colocations
        ],
        "lease_pools": [
            {"entry": "%s %s" % (pool.host, pool.entry), "change": to_change(pool), "reason": pool.reason}
            for pool in proposal.lease_pools
        ],
        "left_as_they_are": {one.name: one.reason for one in proposal.workloads if one.change == "left"},
        "notes": list(proposal.notes),
    }


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as yamllint and ansible-lint require."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        """Write each item of a list with a long text on its own line."""
        long = any(isinstance(each, str) and len(each) > 20 for each in sequence)
        return super().represent_sequence(tag, sequence, False if long else flow_style)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=140)
