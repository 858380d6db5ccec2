# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide simulated hosts in temporary directories.

The hosts are installed as the role installs them.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.install_module import HOST_PYTHON, result, run_module

REPOSITORY = Path(__file__).resolve().parents[4]
FILES = REPOSITORY / "roles" / "gpu_simulator" / "files"


@functools.lru_cache(maxsize=None)
def _texts(pattern: str) -> dict[str, str]:
    # Read the files once. Otherwise a file that is edited during the tests would look like a change.
    return {path.name: path.read_text() for path in sorted(REPOSITORY.glob(pattern)) if path.is_file()}


def texts(pattern: str, prefix: str) -> dict[str, str]:
    return {prefix + name: text for name, text in _texts(pattern).items()}


def make_bundle(*gpus: dict, **more) -> dict:
    return {
        "state": "present",
        "hide_real_gpus": False,
        "sources": {
            **texts("roles/gpu_simulator/files/src/*", "src/"),
            **texts("roles/gpu_simulator/files/gpusim/*.py", "gpusim/"),
            **texts("plugins/module_utils/models/*.json", "models/"),
        },
        "configuration": {"host": "h1", "driver_version": "580.105.08", "gpus": list(gpus)},
        **more,
    }


class Host:
    """A directory that represents a host's root.

    Other hosts, and this machine's own NVML clients, do not see the host's GPUs.
    """

    def __init__(self, root: Path, state: Path | None = None) -> None:
        self.root = root
        self.state_file = state or root / "var/lib/gpusim/state"
        self.library = root / "usr/local/lib/gpusim/libnvidia-ml.so.1"
        self.environment = {
            **os.environ,
            "GPUSIM_LIBRARY": str(self.library),
            "GPUSIM_STATE": str(self.state_file),
            "GPUSIM_MODELS": str(root / "usr/local/share/gpusim/models"),
            "LD_LIBRARY_PATH": str(self.library.parent),
            # Compiling takes most of the time of these tests, so compile without optimization.
            "CFLAGS": "-O0",
        }
        self.children: list[subprocess.Popen] = []

    def install(self, wanted: dict, *options: str, **more) -> subprocess.CompletedProcess:
        environment = more.get("env", self.environment)
        sources = {} if wanted["state"] == "absent" else wanted["sources"]
        arguments = {name: value for name, value in wanted.items() if name != "sources"}
        return run_module("gpu_simulator", self.root, arguments, sources, "--check" in options, environment)

    def installed(self, wanted: dict, *options: str) -> dict:
        return result(self.install(wanted, *options))

    def lay_out(self, *gpus: dict) -> None:
        configuration = json.dumps(make_bundle(*gpus)["configuration"])
        done = self.try_gpusim("init", "--config", "-", input=configuration)
        assert done.returncode == 0, done.stderr

    def try_gpusim(self, *arguments, **more) -> subprocess.CompletedProcess:
        return self._run([HOST_PYTHON, str(self.root / "usr/local/bin/gpusim"), *map(str, arguments)], **more)

    def gpusim(self, *arguments) -> str:
        done = self.try_gpusim(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments) -> str:
        """Return a failing gpusim command's standard error.

        The command must print nothing to standard output.
        """
        done = self.try_gpusim(*arguments)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        assert done.stdout == "" and "Traceback" not in done.stderr
        return done.stderr

    def state(self) -> dict:
        return json.loads(self.gpusim("show", "--json"))

    def start(self, *arguments) -> subprocess.Popen:
        """Start `gpusim run` without waiting for its end."""
        command = [HOST_PYTHON, str(self.root / "usr/local/bin/gpusim"), "run", *map(str, arguments)]
        child = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        self.children.append(child)
        return child

    def nvml(self, code: str):
        """Run `code` in a separate process, and return its variable `result`.

        In `code`, N is pynvml and `gpu` is GPU 0.
        """
        return json.loads(self.try_nvml(code, check=True).stdout)

    def create_instance(self, profile: int, start: int) -> int:
        """Create an instance with one compute instance on GPU 0, and return its id.

        The function enables MIG mode. `profile` is the profile id and `start` is the first slice.
        """
        code = """
            N.nvmlDeviceSetMigMode(gpu, 1)
            place = N.c_nvmlGpuInstancePlacement_t(START, {9: 4, 14: 2, 19: 1}[PROFILE])
            made = N.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, PROFILE, N.byref(place))
            N.nvmlGpuInstanceCreateComputeInstance(made, {9: 2, 14: 1, 19: 0}[PROFILE])
            result = N.nvmlGpuInstanceGetInfo(made).id
        """
        return self.nvml(code.replace("PROFILE", str(profile)).replace("START", str(start)))

    def try_nvml(self, code: str, check: bool = False) -> subprocess.CompletedProcess:
        program = (
            textwrap.dedent(
                """
            import json, pynvml as N
            N.nvmlInit()
            gpu = N.nvmlDeviceGetHandleByIndex(0)
            """
            )
            + textwrap.dedent(code)
            + "\nprint(json.dumps(result))\n"
        )
        done = self._run([sys.executable, "-c", program])
        assert not check or done.returncode == 0, done.stderr
        return done

    def _run(self, command, **more) -> subprocess.CompletedProcess:
        more.setdefault("env", self.environment)
        return subprocess.run(command, capture_output=True, text=True, check=False, **more)

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()


@pytest.fixture(scope="session")
def bundle():
    """Return a function that builds the module's arguments from GPUs.

    The function also takes fields to override. Its result includes the sources that the action plugin sends.
    """
    return make_bundle


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return a root directory with everything installed.

    Tests copy the directory, so that only one of them builds the library.
    """
    if not shutil.which("cc") or not shutil.which("make"):
        pytest.fail("the simulated NVML is built with cc and make: install gcc, libc6-dev and make")
    host = Host(tmp_path_factory.mktemp("built"))
    host.installed(make_bundle({"model": "T4-16GB"}))
    return host.root


@pytest.fixture
def installed_host(built, tmp_path):
    """Return a Host with a T4, installed as the role does, in its own directory."""
    root = tmp_path / "host"
    shutil.copytree(built, root, symlinks=True)
    host = Host(root)
    yield host
    host.close()


@pytest.fixture
def make_host(built, tmp_path):
    """Return a function that creates a Host from GPUs, {"model": …, "count": …} each.

    All these hosts share the library and the tool.
    """
    hosts = []

    def make(*gpus: dict) -> Host:
        host = Host(built, tmp_path / f"state{len(hosts)}")
        hosts.append(host)
        host.lay_out(*gpus)
        return host

    yield make
    for host in hosts:
        host.close()


@pytest.fixture
def h100(make_host):
    return make_host({"model": "H100-80GB", "count": 2})


@pytest.fixture
def a100(make_host):
    return make_host({"model": "A100-80GB", "count": 1})


@pytest.fixture
def empty_host(tmp_path):
    """Return a Host on which nothing is installed."""
    return Host(tmp_path / "root")


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("NVML's setters are root's alone: run the tests as root")
