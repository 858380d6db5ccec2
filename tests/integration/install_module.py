# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as its action plugin does.

The module first gets only the digest of the sources. If the host requests the sources, the module runs again with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping

from ansible_collections.openfleet.gpu.plugins.module_utils.install.sources import digest, pack
from tests.documented import check_documented
from tests.integration.simulated_host import module_path

#: The interpreter that represents a host's Python, because code for hosts must also run on old versions.
HOST_PYTHON = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable
MODULE = "ansible_collections.openfleet.gpu.plugins.modules.%s"


def run_module(
    name: str,
    root: Path,
    arguments: Mapping[str, Any],
    sources: Mapping[str, str],
    check: bool = False,
    environment: Mapping[str, str] = os.environ,
    send: bool = True,
) -> subprocess.CompletedProcess:
    """Run the module below `root`, and return its last process.

    The process's standard output is the module's result. If `send` is false, a host that requests the sources does not
    get them.
    """
    given = {"root": str(root), "sources_digest": digest(sources), **arguments, "_ansible_check_mode": check}
    done = _run(name, given, environment)
    if send and done.returncode == 0 and json.loads(done.stdout).get("sources_needed"):
        done = _run(name, {**given, "sources": pack(sources)}, environment)
    assert "Traceback" not in done.stderr, done.stderr
    if done.stdout:
        check_documented(name, json.loads(done.stdout))
    return done


def _run(name: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [HOST_PYTHON, "-m", MODULE % name],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        env={**environment, "PYTHONPATH": ":".join(filter(None, (environment.get("PYTHONPATH"), module_path())))},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def result(done: subprocess.CompletedProcess) -> dict[str, Any]:
    """Return the changes that the module reports."""
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    return {key: said[key] for key in ("changed", "done", "missing") if key in said}
