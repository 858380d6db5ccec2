# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""roles/dcgm_exporter/files/install.py as the role runs it, and what it may be asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
ROLE = REPOSITORY / "roles" / "dcgm_exporter"
FILES, UTILS = ROLE / "files", REPOSITORY / "plugins" / "module_utils"
INSTALL = FILES / "install.py"
SHARED = [UTILS / name for name in yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["dcgm_exporter__shared"]]
#: As the role sends it.
PROGRAM = {path.stem: path.read_text() for path in [*(FILES / "exporter_install").glob("*.py"), *SHARED]}
PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
ETC, LIB = "etc/openfleet-gpu/exporter", "usr/local/lib/openfleet-gpu-exporter"
UNIT = "etc/systemd/system/dcgm-exporter.service"

# In a test's own process it is imported from the checkout, where the shared modules are elsewhere.
sys.path.insert(0, str(FILES))
import exporter_install

exporter_install.__path__.append(str(UTILS))
from exporter_install import peer, scrape  # noqa: F401 for tests, which get them from here

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
    """Runs it below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, bundle, *options, status=0):
        """What it says of its run; of one that fails, its errors."""
        command = [PYTHON, str(INSTALL), "--root", str(self.root), *options]
        given = json.dumps({"program": PROGRAM, **bundle})
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def archive(tmp_path):
    """Python packages, as make_archive.py brings them."""
    file = tmp_path / "packages.zip"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("some_package/__init__.py", "answer = 42\n")
    return {"source": "controller", "stamp": "one", "requirements": "", "index_url": "", "archive": str(file)}
