# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repack a package from its installed files, and compare it with the original."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.driver.repack import repack

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no dpkg on this machine")


def told(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# bash has configuration files and maintainer scripts, libtinfo6 has links, and base-files has only data.
@pytest.mark.parametrize("name", ["bash", "libtinfo6", "base-files"])
def test_repacked_package_is_identical(tmp_path, name):
    assert repack(name, tmp_path) == ""
    path = str(tmp_path / (name + ".deb"))
    for field in ("Package", "Version", "Architecture", "Depends"):
        asked = told("dpkg-query", "--show", "--showformat", "${%s}" % field, name)
        assert told("dpkg-deb", "--field", path, field).strip() == asked
    assert told("dpkg-deb", "--field", path, "Status").strip() == ""
    there = {
        line.split(None, 5)[5].split(" -> ")[0].lstrip(".").rstrip("/")
        for line in told("dpkg-deb", "-c", path).splitlines()
    }
    listed = {
        line for line in told("dpkg-query", "--listfiles", name).splitlines() if line.startswith("/") and line != "/."
    }
    missing = listed - there - {""}
    # Some machines are configured to omit documentation, so its files may be missing.
    assert {path for path in missing if not path.startswith("/usr/share/")} == set()
    assert list(tmp_path.iterdir()) == [tmp_path / (name + ".deb")]


def test_missing_package_is_an_error(tmp_path):
    assert repack("no-such-package", tmp_path) == "no-such-package is not installed"
