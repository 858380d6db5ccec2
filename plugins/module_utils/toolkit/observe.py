# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read packages, files, units, engines and specifications of a host."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Mapping

from .. import systemd
from ..cdi import nvidia_ctk
from ..packages import keys
from ..packages.host_files import read_text, read_texts
from ..packages.registry import PackageManager
from ..processes.command import Run, program, run_tool
from ..processes.command import ask as ask_tool
from . import engines, files, rules
from .model import Host, Request, Unit

_UNIT_FIELDS = ("UnitFileState", "ActiveState", "InvocationID", "KillMode")
#: Pattern as in the condition of the toolkit's own unit (deployments/systemd/nvidia-cdi-refresh.service).
_MODULE = re.compile(r"/(nvidia|nvidia-current)\.ko")
_SECONDS = 120


def look(manager: PackageManager, request: Request, environment: Mapping[str, str], record: dict, call: Run) -> Host:
    """Return the current state of the host.

    `environment` has the service's settings for specifications.
    """
    wanted = [files.SOURCES[manager.manager], *files.UNITS]
    wanted += [path for engine in rules.ENGINES for path in (engine.config, engine.drop_in) if path]
    texts = read_texts(wanted)
    packages = manager.installed(rules.PACKAGES)
    version = rules.installed(packages)
    found = tuple(engine.name for engine in rules.ENGINES if is_installed(engine.binary))
    units = _units(call)
    host = Host(
        manager=manager.manager,
        architecture=platform.machine(),
        packages=packages,
        engines=found,
        kubelet=is_installed("kubelet"),
        units=units,
        files=texts,
        key_fingerprints=keys.of(files.KEYRINGS[manager.manager]),
        driver=_driver(),
        selinux_denies=_selinux_denies(call),
        record=record,
        **_specifications(bool(version), environment),
        # Query Docker only if it runs, because its socket would start it.
        **(_docker(call) if units.get("docker.service", Unit()).active else {}),
    )
    # Only nvidia-ctk in the requested version may compute an engine's files.
    if request.version and rules.is_version(version, request.version):
        for engine in rules.engines(host, request):
            if engine.config:
                host.configured[engine.name] = engines.ask(engine, version, request, texts, call)
    return host


def is_installed(name: str) -> bool:
    return program(name) is not None


def _units(call: Run) -> dict[str, Unit]:
    names = [engine.unit for engine in rules.ENGINES if engine.unit] + [rules.REFRESH_PATH, rules.REFRESH_SERVICE]
    return {
        name: Unit(
            enabled=fields["UnitFileState"].startswith("enabled"),
            active=fields["ActiveState"] in ("active", "reloading"),
            start=fields["InvocationID"],
            # CRI-O's containers run in their own scopes.
            children_stay=name == "crio.service" or fields["KillMode"] in ("process", "none"),
        )
        for name, fields in systemd.loaded(call, names, _UNIT_FIELDS).items()
    }


def _driver() -> bool:
    modules = read_text("/lib/modules/%s/modules.dep" % platform.release()) or ""
    return is_installed("nvidia-smi") and _MODULE.search(modules) is not None


def _docker(call: Run) -> dict[str, bool | None]:
    info = call(["docker", "info", "--format", "{{json .}}"])
    try:
        told = json.loads(info.stdout) if info.returncode == 0 else {}
    except ValueError:
        told = {}
    running = told.get("ContainersRunning")
    return {
        "docker_live_restore": told.get("LiveRestoreEnabled"),
        "docker_containers": None if running is None else running > 0,
    }


def _selinux_denies(call: Run) -> bool:
    if (read_text("/sys/fs/selinux/enforce") or "").strip() != "1":
        return False
    done = call(["getsebool", "container_use_devices"])
    return done.returncode == 0 and done.stdout.strip().endswith("off")


def _specifications(toolkit: bool, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return nvidia-ctk's specifications of GPUs.

    Compares the specification that the service writes with the service's settings.
    """
    passing = {str(spec.path) for spec in nvidia_ctk.find_specs(Path("/") / nvidia_ctk.PASSING)}
    found = [
        *nvidia_ctk.find_specs(Path("/") / nvidia_ctk.LASTING),
        *nvidia_ctk.find_specs(Path("/") / nvidia_ctk.PASSING),
    ]
    stale = []
    for spec in found if toolkit and _driver() else ():
        settings = dict(environment) if str(spec.path) in passing else {}
        text, _problem = ask_tool(run_tool, spec.command, env=settings, timeout_seconds=_SECONDS)
        if text is not None and text != read_text(str(spec.path)):
            stale.append(_called(spec))
    private = [_called(spec) for spec in found if not spec.path.stat().st_mode & 0o004]
    return {
        "specs": tuple(_called(spec) for spec in found),
        "stale_specs": tuple(stale),
        "private_specs": tuple(private),
    }


def _called(spec: nvidia_ctk.Spec) -> str:
    """Return the path in its documented form: /var/run is a link to /run."""
    path = str(spec.path)
    return "/var" + path if path.startswith("/run/cdi/") else path


def environment_file() -> dict[str, str]:
    """Return an administrator's settings for the toolkit's service."""
    lines = [line.strip() for line in (read_text(files.ENVIRONMENT) or "").splitlines()]
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith(("#", ";")))
    return {name.strip(): value.strip().strip("\"'") for name, _unused, value in pairs}
