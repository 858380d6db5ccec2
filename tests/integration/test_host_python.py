# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile and import all code for hosts with a host's Python version.

OPENFLEET_HOST_PYTHON selects the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.simulated_host import module_path

pytestmark = pytest.mark.host_python

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
COLLECTION = "ansible_collections.openfleet.gpu.plugins"


def host_modules() -> list[str]:
    """Return the import paths of module_utils and of the modules that hosts run."""
    utils = [p for p in (ROOT / "plugins" / "module_utils").rglob("*.py") if p.name != "__init__.py"]
    # A module file without `main` is only documentation, because its action plugin runs on the controller.
    modules = [p for p in (ROOT / "plugins" / "modules").glob("*.py") if "\ndef main(" in p.read_text()]
    return sorted(
        ".".join([COLLECTION, *path.relative_to(ROOT / "plugins").with_suffix("").parts]) for path in [*utils, *modules]
    )


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [PYTHON, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_code_for_hosts_compiles(tmp_path):
    folders = [ROOT / "plugins" / "module_utils", ROOT / "plugins" / "modules", *ROOT.glob("roles/*/files")]
    run("-m", "compileall", "-qf", *map(str, folders), PYTHONPYCACHEPREFIX=str(tmp_path))


def test_code_for_hosts_can_be_imported():
    names = host_modules()
    assert len(names) > 60
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(len(sys.argv) - 1)"
    assert run("-c", script, *names, PYTHONPATH=module_path()).split() == [str(len(names))]
