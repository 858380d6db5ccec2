# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A proposal as one page that needs nothing else: no script, no font, no image from elsewhere."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jinja2

from ..audit.report_html import _hours, _when
from ..audit.write_line import money
from .model import RISKS, HostChange, Outcome, Proposal
from .sums import line, summary

_TEMPLATES = Path(__file__).parent / "templates"
#: Rows of a table: more than that nobody reads, and the JSON has all.
_TOP = 200


def to_text(proposal: Proposal) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(when=_when, hours=_hours, words=lambda word: word.replace("_", " "))
    changing = [one for one in proposal.workloads if one.change in ("moved", "resized")]
    changing.sort(key=lambda one: (-RISKS.index(one.risk), one.host, one.gpu_index, one.name))
    return environment.get_template("rightsize.html.j2").render(
        proposal=proposal,
        line=line(proposal),
        sums=summary(proposal),
        changing=changing[:_TOP],
        changing_count=len(changing),
        left=[one for one in proposal.workloads if one.change == "left"],
        staying=[one for one in proposal.workloads if one.change == "stays"],
        hosts=[_host(number, change, proposal) for number, change in enumerate(proposal.hosts)],
        money=lambda amount: money(amount, proposal.currency),
        top=_TOP,
    )


def _host(number: int, change: HostChange, proposal: Proposal) -> dict[str, Any]:
    """A host's GPUs before and after, each as the workloads that are on it."""
    before = _by_gpu([(one.gpu_index, one.today, one) for one in proposal.workloads if one.host == change.host])
    after = _by_gpu(
        [(one.then_gpu_index or 0, one.then, one) for one in proposal.workloads if one.then_host == change.host]
    )
    indices = sorted({*before, *after, *change.freed_gpus})
    return {
        "id": "host-%d" % number,
        "change": change,
        "gpus": [{"index": index, "before": before.get(index, []), "after": after.get(index, [])} for index in indices],
    }


def _by_gpu(rows: list[tuple[int, str, Outcome]]) -> dict[int, list[tuple[str, Outcome]]]:
    ordered = sorted(rows, key=lambda row: (row[0], row[1], row[2].name))
    return {
        index: [(text, one) for _index, text, one in found]
        for index, found in itertools.groupby(ordered, key=lambda row: row[0])
    }
