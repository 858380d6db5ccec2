# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that controllers without NumPy can import the plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COLLECTIONS = Path(__file__).parents[3] / "collections"
CODE = """
import importlib, sys
from pathlib import Path
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
_AnsibleCollectionFinder([sys.argv[1]])._install()
sys.modules["numpy"] = None
for path in Path(sys.argv[1]).glob("ansible_collections/openfleet/gpu/plugins/plugin_utils/**/*.py"):
    name = ".".join(path.relative_to(sys.argv[1]).with_suffix("").parts)
    importlib.import_module(name)
    if path.name == "colocations.py":
        print("loaded", name.split(".")[-2])
from ansible_collections.openfleet.gpu.plugins.plugin_utils.numerics import require
try:
    require()
except ImportError as error:
    print(error.name)
"""


@pytest.mark.slow
def test_all_plugins_load_without_numpy_and_say_that_it_is_missing():
    pytest.importorskip("ansible")
    done = subprocess.run([sys.executable, "-c", CODE, str(COLLECTIONS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loaded", "rightsize", "numpy"]
