# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of clients in docs/simulator.md from tests/clients/clients.yml and accepted.yml."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "simulator.md"
BEGIN = "<!-- made by tools/clients_page.py -->"
END = "<!-- end -->"


def _read(name: str) -> list[dict]:
    return yaml.safe_load((ROOT / "tests" / "clients" / f"{name}.yml").read_text(encoding="utf-8"))[name]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def tables() -> str:
    """Return the clients with their versions, and what they may fail to show."""
    versions: dict[str, list[str]] = {}
    for client in _read("clients"):
        versions.setdefault(client["kind"], []).append(str(client["version"]))
    lines = ["| client | versions |", "|---|---|"]
    lines += [f"| {kind} | {', '.join(numbers)} |" for kind, numbers in versions.items()]
    lines += ["", "| what is missing | for | why | source |", "|---|---|---|---|"]
    for entry in _read("accepted"):
        where = ", ".join([*entry["clients"], *entry.get("models", [])])
        where += " in MIG mode" if entry.get("gpu") == "mig" else ""
        cells = (entry["title"], where, entry["why"], entry["source"])
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def page() -> str:
    """Return docs/simulator.md with the tables as of now."""
    text = PAGE.read_text(encoding="utf-8")
    made = f"{BEGIN}\n\n{tables()}\n\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
