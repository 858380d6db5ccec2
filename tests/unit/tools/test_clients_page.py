# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the tables of tests/clients/README.md with tests/clients."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "clients_page.py"))


def test_page_is_up_to_date(tool):
    assert tool["page"]() == (ROOT / "tests" / "clients" / "README.md").read_text(encoding="utf-8"), (
        "run tools/clients_page.py"
    )


def test_every_client_and_entry_is_on_the_page(tool):
    """Compare the tables with accepted.yml, except entries with `boards: same`."""
    tables = tool["tables"]()
    assert "| nvidia-smi | 340.108, 390.157, " in tables
    assert "| Voltage | differs, private function; " in tables
    assert "; VBIOS, part numbers and InfoROM versions; Video clocks; " in tables
    entries = yaml.safe_load((ROOT / "tests" / "clients" / "accepted.yml").read_text(encoding="utf-8"))["accepted"]
    listed = {
        entry["title"] for entry in entries if re.search(rf"(\| |; ){re.escape(entry['title'])}(;| \(| \|)", tables)
    }
    assert listed == {entry["title"] for entry in entries if entry.get("boards") != "same"}
    assert {entry.get("boards") for entry in entries} == {None, "same"}
