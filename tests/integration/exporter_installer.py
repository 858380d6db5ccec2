# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module dcgm_exporter with the options that the role can pass."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.install.exporter import scrape
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from tests.integration.install_module import run_module

__all__ = ["peer", "scrape"]

REPOSITORY = Path(__file__).resolve().parents[2]
ROLE = REPOSITORY / "roles" / "dcgm_exporter"
PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
ETC, LIB = "etc/openfleet-gpu/exporter", "usr/local/lib/openfleet-gpu-exporter"
UNIT = "etc/systemd/system/dcgm-exporter.service"

EMBEDDED = {
    "state": "present",
    "files": {
        UNIT: {"content": "[Service]\nExecStart=@python@ -m openfleet_exporter\n", "mode": "0644"},
        ETC + "/exporter.json": {"content": "{}\n", "mode": "0644"},
        ETC + "/tls.key": {"content": "k3y-m4terial\n", "mode": "0600"},
        LIB + "/openfleet_exporter/__init__.py": {"content": "", "mode": "0644"},
    },
    "web_config": {"tls_server_config": {"cert_file": "/c", "key_file": "/k"}},
    "users": {"prometheus": "correct horse", "ops": "größe"},
    "packages": [],
    "version": "",
    "repository": {"url": "", "key": "", "repo_gpgcheck": True},
    "masked": [],
    "embedded": None,
    "directories": ["srv/metrics"],
    "host_files": [],
    "address": "127.0.0.1",
    "health": None,
}
DOCKER = {
    **EMBEDDED,
    "files": {
        UNIT: {"content": "docker\n", "mode": "0644"},
        ETC + "/counters.csv": {"content": "#\n", "mode": "0644"},
    },
    "web_config": {},
    "users": {},
    "directories": [],
}


class Installer:
    """Run the module below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, bundle, *options, failed=False):
        """Return the module's result, or its errors if `failed` is true."""
        done = run_module("dcgm_exporter", self.root, bundle, {}, "--check" in options)
        said = json.loads(done.stdout)
        assert said.get("failed", False) == failed, said
        return said["msg"] if failed else {key: said[key] for key in ("changed", "done", "archive")}


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def archive(tmp_path):
    """Return an archive of Python packages, as make_archive.py writes it."""
    file = tmp_path / "packages.zip"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("some_package/__init__.py", "answer = 42\n")
    return {"source": "controller", "stamp": "one", "requirements": "", "index_url": "", "archive": str(file)}
