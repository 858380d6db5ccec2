# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on a lab host as Ansible does, but without a playbook.

The host's Python runs them. A run of ansible-playbook takes seconds of CPU time, a module takes much less.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import ansible

from tests.documented import check_documented
from tests.lab.lab_fixtures import REPOSITORY, container_name

FOLDER = "/opt/openfleet-modules"
MODULES = "ansible_collections.openfleet.gpu.plugins.modules"


def install(host_name: str) -> None:
    """Copy this checkout's modules, and the Ansible code that they import, to a host."""
    archive = io.BytesIO()
    ours = Path(ansible.__file__).parent
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("__init__.py", "_vendor", "release.py", "module_utils"):
            tar.add(ours / name, f"ansible/{name}", filter=_source)
        for name in ("modules", "module_utils"):
            tar.add(REPOSITORY / "plugins" / name, f"ansible_collections/openfleet/gpu/plugins/{name}", filter=_source)
    unpack = f"rm -rf {FOLDER} && mkdir {FOLDER} && tar -x -C {FOLDER}"
    command = ["podman", "exec", "--interactive", container_name(host_name), "sh", "-c", unpack]
    subprocess.run(command, input=archive.getvalue(), check=True)


def _source(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member


def run_module(host_name: str, name: str, check: bool = False, **arguments: object) -> dict:
    """Run a module with these arguments. Return its result, also if the module failed."""
    arguments.update(_ansible_check_mode=check, _ansible_diff=True)
    command = ["podman", "exec", "--interactive", container_name(host_name)]
    done = subprocess.run(
        [*command, "env", f"PYTHONPATH={FOLDER}", "python3", "-m", f"{MODULES}.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        result = json.loads(done.stdout)
    except ValueError:
        raise AssertionError(f"{name}: exit {done.returncode}\n{done.stdout}{done.stderr}") from None
    check_documented(name, result)
    return result
