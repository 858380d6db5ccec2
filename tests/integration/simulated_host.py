# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a GPU host without a container.

Its library, tool and state file are in one folder.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from tests.documented import check_documented
from tests.integration.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[2]
SIMULATOR = ROOT / "roles" / "gpu_simulator" / "files"
#: Modules that write records. Each host passes its own state directory to them.
STATEFUL = ("layout", "layout_export", "mig", "mps", "reclaim", "time_slicing", "vgpu_quota")
MODELS = ROOT / "plugins" / "module_utils" / "models"


@functools.cache
def module_path() -> str:
    """Return the PYTHONPATH for collection modules that run outside Ansible's archive.

    From the test environment, the path has only the packages that a host may have. The other packages do not always
    support the host's version of Python.
    """
    import ansible
    import pynvml
    import yaml

    folders = {"ansible": ansible, "yaml": yaml}
    found = {name: Path(package.__file__).parent for name, package in folders.items()}
    found["pynvml.py"] = Path(pynvml.__file__)
    told = hashlib.sha256("\0".join(map(str, found.values())).encode()).hexdigest()[:16]
    folder = _kept() / "host-packages" / told
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in found.items():
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(path)
    return "%s:%s" % (ROOT / "collections", folder)


def _kept() -> Path:
    """Return the folder for files that tests build once.

    root and other users have separate folders, because the Makefile sets the cache directory per user.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or ROOT / ".cache")


def copy_library(folder: Path) -> None:
    """Copy the simulated library to a folder.

    Build the library first if no test of this checkout has built it from the current sources.
    """
    source = SIMULATOR / "src"
    told = hashlib.sha256(subprocess.check_output(["cc", "--version"]))
    for path in sorted(path for path in source.iterdir() if path.is_file()):
        told.update(path.name.encode() + b"\0" + path.read_bytes())
    kept = _kept() / "gpusim" / told.hexdigest()[:16]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            made = kept.with_suffix(".new")
            subprocess.run(["make", "-s", "-C", str(source), f"BUILD={made}"], check=True)
            made.rename(kept)
    shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.o"))


class SimulatedHost:
    """Run commands and modules as processes that see a folder's simulated GPUs."""

    _interpreters: ClassVar[dict[tuple[str, Path], WarmPython]] = {}
    #: True if the modules are the collection's own, whose documentation lists their return values.
    documented: ClassVar[bool] = True

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.library = folder, library
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        tool = self.bin / "gpusim"
        tool.write_text('#!/bin/sh\nPYTHONPATH="%s" exec "%s" -m gpusim "$@"\n' % (SIMULATOR, sys.executable))
        tool.chmod(0o755)
        # Modules run with a Python version that hosts may have. The controller's Ansible code is in PYTHONPATH.
        self.python = os.environ.get("OPENFLEET_HOST_PYTHON") or sys.executable

    @classmethod
    def build(cls, folder: Path) -> SimulatedHost:
        """Build the library with this machine's compiler."""
        library = folder / "lib"
        copy_library(library)
        return cls(folder, library)

    @property
    def environment(self) -> dict[str, str]:
        return dict(
            os.environ,
            PATH=f"{self.bin}:{os.environ['PATH']}",
            LD_LIBRARY_PATH=str(self.library),
            GPUSIM_STATE=str(self.folder / "state"),
            GPUSIM_LIBRARY=str(self.library / "libnvidia-ml.so.1"),
            PYTHONPATH=module_path(),
            LC_ALL="C.UTF-8",
        )

    def create(self, gpus: list[dict], **settings) -> SimulatedHost:
        """Create the host's simulated GPUs, as the role does."""
        configuration = self.folder / "gpus.json"
        configuration.write_text(json.dumps(dict(settings, gpus=gpus)))
        self.gpusim("init", "--config", str(configuration), "--models", str(MODELS))
        return self

    def gpusim(self, *arguments: str) -> str:
        """Run the simulator's tool, and return its output."""
        environment = self.environment
        environment["PYTHONPATH"] = f"{SIMULATOR}:{environment['PYTHONPATH']}"
        return self._checked(self._warm(sys.executable).run("gpusim", arguments, environment)).stdout

    def run(self, command: list[str], check: bool = True, **options) -> subprocess.CompletedProcess:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, **options)
        return self._checked(done) if check else done

    @staticmethod
    def _checked(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
        if done.returncode != 0:
            raise AssertionError("%s: exit %d\n%s%s" % (done.args, done.returncode, done.stdout, done.stderr))
        return done

    def _warm(self, python: str) -> WarmPython:
        """Return this library's preloaded interpreter.

        Each test process has one interpreter per library.
        """
        key = (python, self.library)
        if key not in self._interpreters:
            self._interpreters[key] = WarmPython(python, self.environment)
            atexit.register(self._interpreters[key].close)
        return self._interpreters[key]

    def end_interpreter(self) -> None:
        """End the preloaded interpreters and remove their folder.

        This must happen before the test process ends.
        """
        for key in [key for key in self._interpreters if key[0] == self.python]:
            self._interpreters.pop(key).close()

    def popen(self, command: list[str], **options) -> subprocess.Popen:
        return subprocess.Popen(command, env=self.environment, **options)

    def module(self, name: str, check: bool = False, user: int | None = None, **arguments) -> dict:
        """Run one of the collection's modules as Ansible does, without a connection.

        Return the module's result.
        """
        arguments.update(_ansible_check_mode=check, _ansible_diff=True)
        if name in STATEFUL:
            arguments.setdefault("state_directory", str(self.folder / "state.d"))
        module = f"ansible_collections.openfleet.gpu.plugins.modules.{name}"
        given = json.dumps({"ANSIBLE_MODULE_ARGS": arguments})
        if user is None:
            done = self._warm(self.python).run(module, [], self.environment, given)
        else:
            # The interpreter may be in a folder that another user cannot read, such as root's home. So import first,
            # and then change the user.
            become = f"import os, pynvml, {module} as m; os.setgid({user}); os.setuid({user}); m.main()"
            done = self.run([self.python, "-c", become], check=False, input=given)
        try:
            result = json.loads(done.stdout)
        except ValueError:
            raise AssertionError("%s: exit %d\n%s%s" % (name, done.returncode, done.stdout, done.stderr)) from None
        if self.documented:
            check_documented(name, result)
        return result

    def seen(self) -> dict[int, list[tuple[str, int]]]:
        """Return the instances that NVML reports: {index: [(profile name, start)]}.

        The process that reads them shares no code with the modules.
        """
        script = Path(__file__).with_name("read_nvml.py")
        return {
            int(k): [tuple(i) for i in v] for k, v in json.loads(self.run([sys.executable, str(script)]).stdout).items()
        }
