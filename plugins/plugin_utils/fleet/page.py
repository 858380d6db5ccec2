# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of a run of site.yml as an HTML page.

Each GPU has a bar that shows its instances. Values from hosts become text and numbers only, so that they cannot add
scripts or markup.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping

from ..audit.report_html import environment

_TEMPLATES = Path(__file__).parent / "templates"
#: Where lines may break in profile names: after "g.", before "+" or "-", and before the "." of a suffix.
_BREAK = re.compile(r"(g\.|(?=[+-])|(?<=[a-z])(?=\.))")
#: Number of compute slices in a profile name, which selects the colour.
_SLICES = re.compile(r"([1-7])g\.")


def to_text(report: Mapping[str, Any], planned: bool = False, made_at: str = "") -> str:
    """Return the HTML page for a result of the filter fleet_report.

    `made_at` is the page's date. Raises ValueError if a value that must be a number is not.
    """
    hosts = [_host(host) for host in report["hosts"]]
    return (
        environment(_TEMPLATES)
        .get_template("report.html.j2")
        .render(summary=report["summary"], hosts=hosts, planned=planned, made_at=made_at)
    )


def _host(host: Mapping[str, Any]) -> dict[str, Any]:
    gpus = [_gpu(gpu) for gpu in host["gpus"]]
    models = sorted({gpu["model"] for gpu in gpus})
    return {
        "name": host["name"],
        "note": host["note"],
        "warnings": [*(host.get("warnings") or ()), *(host.get("unmanaged") or ())],
        "gpus": gpus,
        "models": models,
    }


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": int(gpu["index"]),
        "model": gpu["name"],
        "asked": gpu["asked"],
        "before": gpu["before"],
        "after": gpu["after"],
        "changed": bool(gpu["changed"]),
        "units": int(gpu.get("placement_units") or 1),
        "instances": [_instance(instance) for instance in gpu["instances"]],
    }


def _instance(instance: Mapping[str, Any]) -> dict[str, Any]:
    slices = _SLICES.match(str(instance["profile"]))
    return {
        "profile": _BREAK.sub("\\1\u200b", str(instance["profile"])),
        "colour": int(slices.group(1)) if slices else 0,
        "column": int(instance["placement"]["start"]) + 1,
        "span": int(instance["placement"]["size"]),
    }
