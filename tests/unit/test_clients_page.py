# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/simulator-clients.md match tests/clients."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "clients_page.py"))


def test_page_is_up_to_date(tool):
    assert tool["page"]() == (ROOT / "docs" / "simulator-clients.md").read_text(encoding="utf-8"), (
        "run tools/clients_page.py"
    )


def test_every_client_and_entry_is_on_the_page(tool):
    made = tool["tables"]()
    assert "| nvidia-smi | 340.108, 390.157, " in made
    assert "| FRU part number, power object of the InfoROM | nvidia-smi | N/A on boards too |" in made
    assert "| Remapped rows of a GPU with instances | nvidia-smi, mig in MIG mode | " in made
