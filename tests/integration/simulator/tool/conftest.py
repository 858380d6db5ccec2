# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated host in a temporary directory, installed like the role does."""

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
from install_module import HOST_PYTHON, result, run_module

REPOSITORY = Path(__file__).resolve().parents[4]
FILES = REPOSITORY / "roles" / "gpu_simulator" / "files"


@functools.lru_cache(maxsize=None)
def _texts(pattern: str) -> dict[str, str]:
    # Read once: a file that is edited while the tests run must not look like a change of the host.
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
    """A directory as root of a host. Nothing of it is seen by other hosts, or by the machine's own clients."""

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
            # The compiler's time is most of what these tests take.
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
        """What gpusim says on standard error when it fails; it says nothing else then."""
        done = self.try_gpusim(*arguments)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        assert done.stdout == "" and "Traceback" not in done.stderr
        return done.stderr

    def state(self) -> dict:
        return json.loads(self.gpusim("show", "--json"))

    def start(self, *arguments) -> subprocess.Popen:
        """`gpusim run`, left running."""
        command = [HOST_PYTHON, str(self.root / "usr/local/bin/gpusim"), "run", *map(str, arguments)]
        child = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        self.children.append(child)
        return child

    def nvml(self, code: str):
        """Return `result` after `code` ran in a separate process, with pynvml as N and GPU 0 as gpu."""
        return json.loads(self.try_nvml(code, check=True).stdout)

    def create_instance(self, profile: int, start: int) -> int:
        """An instance of GPU 0 that is one compute instance, in MIG mode, by profile id and first slice; its id."""
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
    """A function from GPUs, and fields to be different, to arguments of the module and the sources of its action plugin."""
    return make_bundle


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A root with everything installed, to be copied: the library is built once for all tests."""
    if not shutil.which("cc") or not shutil.which("make"):
        pytest.fail("the simulated NVML is built with cc and make: install gcc, libc6-dev and make")
    host = Host(tmp_path_factory.mktemp("built"))
    host.installed(make_bundle({"model": "T4-16GB"}))
    return host.root


@pytest.fixture
def installed_host(built, tmp_path):
    """A Host with a T4 that was installed as the role does it, all its own."""
    root = tmp_path / "host"
    shutil.copytree(built, root, symlinks=True)
    host = Host(root)
    yield host
    host.close()


@pytest.fixture
def make_host(built, tmp_path):
    """A function from GPUs (as {"model": …, "count": …}) to a Host that has them; library and tool are shared."""
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
    """A Host on which nothing is installed yet."""
    return Host(tmp_path / "root")


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        pytest.skip("NVML's setters are root's alone: run the tests as root")
