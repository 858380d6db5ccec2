# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the requirements of execution environments (ansible-builder)."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
#: These files have the versions that the tests use.
SOURCES = (
    "requirements-rightsize.txt",
    "requirements-bundle.txt",
    "roles/gpu_layout/files/nvml-requirements.txt",
    "pyproject.toml",
)


def pins(name: str) -> dict[str, str]:
    """Return the pinned versions by package."""
    return dict(re.findall(r'^\s*"?([A-Za-z0-9_.-]+)==([0-9][0-9A-Za-z.]*)', (ROOT / name).read_text(), re.MULTILINE))


def test_files_of_the_execution_environment_exist():
    environment = yaml.safe_load((ROOT / "meta/execution-environment.yml").read_text())
    assert environment["version"] == 1
    for name in environment["dependencies"].values():
        assert (ROOT / name).is_file()


def test_execution_environment_has_the_versions_that_the_tests_use():
    known = {package: version for name in SOURCES for package, version in pins(name).items()}
    wanted = pins("meta/execution-environment-python.txt")
    assert {"nvidia-ml-py", "numpy", "ortools", "kubernetes"} <= set(wanted)
    assert wanted == {package: known.get(package) for package in wanted}
