# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every file of the plugins can be imported: a name that moved is missed nowhere, in no subcommand either."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
FOLDERS = ("module_utils", "plugin_utils", "modules", "action", "filter", "callback", "lookup")
FILES = sorted(path.relative_to(PLUGINS) for folder in FOLDERS for path in (PLUGINS / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_can_be_imported(path):
    name = ".".join(path.with_suffix("").parts).replace(".__init__", "")
    importlib.import_module("ansible_collections.openfleet.gpu.plugins." + name)
