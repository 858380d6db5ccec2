# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-test's sanity tests on the collection as Galaxy installs it.

The leg `sanity` runs them with the usual, the newest and the oldest supported ansible-core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Virtual environments, separated by spaces.
ENVIRONMENTS = os.environ.get("OPENFLEET_CORES", sys.prefix).split()
#: If its cache lacks this script, ansible-test loads it from a server of Ansible's CI. The script installs pip into the
#: tests' virtual environments. This one takes pip from the package index, like all other requirements.
BOOTSTRAP = """
import runpy, sys
wheel = {wheel!r}
sys.path.insert(0, wheel)
sys.argv = ["pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", wheel]
runpy.run_module("pip", run_name="__main__")
"""
PIP_VERSION = """
from types import SimpleNamespace
from ansible_test._internal.python_requirements import get_venv_packages
print(get_venv_packages(SimpleNamespace(version="{python}"))["pip"])
"""


def run(*command: str, folder: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def output(*command: str, folder: Path, **environment: str) -> str:
    rc, text = run(*command, folder=folder, **environment)
    assert rc == 0, text
    return text


@pytest.mark.thorough
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_sanity_tests_find_nothing(environment, tmp_path):
    programs = (ROOT / environment).absolute() / "bin"
    python = output(
        str(programs / "python"), "-c", "import sys; print('%d.%d' % sys.version_info[:2])", folder=tmp_path
    ).strip()
    # None of this checkout's variables, such as ANSIBLE_CONFIG, may change the result.
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        os.environ.pop(name)
    home = {"HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1"}
    output(str(programs / "ansible-galaxy"), "collection", "build", "--output-path", str(tmp_path), folder=ROOT, **home)
    (tarball,) = tmp_path.glob("*.tar.gz")
    output(
        str(programs / "ansible-galaxy"),
        "collection", "install", "--no-deps", "--collections-path", str(tmp_path / "installed"), str(tarball),
        folder=tmp_path,
        **home,
    )  # fmt: skip
    pip = output(str(programs / "python"), "-c", PIP_VERSION.format(python=python), folder=tmp_path, **home).split()[-1]
    wheels = tmp_path / "pip"
    output(
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(wheels),
        f"pip=={pip}",
        folder=ROOT,
    )
    (wheel,) = wheels.glob("pip-*.whl")
    cache = tmp_path / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True)
    (cache / f"get_pip_{pip.replace('.', '_')}.py").write_text(BOOTSTRAP.format(wheel=str(wheel)))
    installed = tmp_path / "installed" / "ansible_collections" / "openfleet" / "gpu"
    # Otherwise ansible-test checks its own virtual environment below tests/output too.
    output("git", "init", "--quiet", folder=installed)
    (installed / ".git" / "info" / "exclude").write_text("/tests/output/\n")
    rc, text = run(
        str(programs / "ansible-test"),
        "sanity", "--venv", "--python", python, "--color", "no",
        folder=installed,
        **home,
    )  # fmt: skip
    assert rc == 0, "\n".join(line for line in text.splitlines() if line.startswith(("ERROR", "FATAL")))
