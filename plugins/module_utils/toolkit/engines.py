# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the engines' configurations with and without nvidia-ctk's changes.

`nvidia-ctk runtime configure` always writes, and even its --dry-run may write (the imports in containerd's main file:
pkg/config/engine/containerd/config_drop_in.go). So nvidia-ctk runs on a copy, which is checked before it replaces the
original.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any, Callable, Mapping

from ..errors import PlanError
from .model import Engine, Request
from .rules import has_drop_in

Run = Callable[..., Any]
TOOL = "nvidia-ctk"
RUNTIME = "nvidia"
#: Settings that nvidia-ctk writes for Docker (pkg/config/engine/docker).
_DOCKER_RUNTIME = {"path": "nvidia-container-runtime", "args": []}
#: Docker's default runtime.
_RUNC = "runc"

_IMPORTS = re.compile(r"^[ \t]*imports[ \t]*=[ \t]*\[(.*?)\]", re.MULTILINE | re.DOTALL)
_STRING = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_CRI = re.compile(r"plugins\.\"io\.containerd\.(grpc\.v1\.cri|cri\.v1\.)")
_HEADER = re.compile(r"^[ \t]*\[+([^\[\]\n]+)\]+[ \t]*(?:#.*)?$", re.MULTILINE)


def drop_in_of(engine: Engine, version: str, main: str) -> str:
    """Return the drop-in file that nvidia-ctk should write.

    Returns "" if nvidia-ctk should write the main file. Before containerd 2.0, settings of the CRI plugin in a drop-in
    replace all plugin settings in the main file (https://github.com/containerd/containerd/pull/9982). So nvidia-ctk
    copies these settings to the drop-in, and later changes of the main file have no effect. To avoid this, the runtime
    is added to the main file if it has settings of the plugin.
    """
    if not has_drop_in(engine, version):
        return ""
    hidden = [name for name in tables(main) if _CRI.match(name) and not _of_nvidia(name)]
    return "" if engine.name == "containerd" and hidden else engine.drop_in


def paths(engine: Engine, version: str, main: str) -> tuple[str, ...]:
    """Return the engine's configuration files.

    The runtime is added to the last one.
    """
    if not engine.config:
        return ()
    drop_in = drop_in_of(engine, version, main)
    if engine.name == "crio" and drop_in:
        return (drop_in,)
    if engine.name == "containerd" and has_drop_in(engine, version):
        return (engine.config, engine.drop_in) if drop_in else (engine.drop_in, engine.config)
    return (engine.config,)


def ask(engine: Engine, version: str, request: Request, current: Mapping[str, str], call: Run) -> dict[str, str]:
    """Return the engine's files (text by path) with nvidia-ctk's changes.

    Raises PlanError if nvidia-ctk fails or would lose settings.
    """
    main = current.get(engine.config, "")
    drop_in = drop_in_of(engine, version, main)
    with tempfile.TemporaryDirectory(prefix="openfleet-container-toolkit-") as scratch:

        def moved(text: str) -> str:
            """Replace the drop-in's folder in a text with its folder in the copy."""
            return (
                text.replace(str(Path(drop_in).parent) + "/", scratch + str(Path(drop_in).parent) + "/")
                if drop_in
                else text
            )

        for path in (engine.config, drop_in):
            if path:
                Path(scratch + path).parent.mkdir(parents=True, exist_ok=True)
        if engine.config in current:
            Path(scratch + engine.config).write_text(moved(main), encoding="utf-8")
        command = [TOOL, "runtime", "configure", "--runtime=" + engine.name, "--config=" + scratch + engine.config]
        if has_drop_in(engine, version):
            command.append("--drop-in-config=" + (scratch + drop_in if drop_in else ""))
        command += ["--nvidia-set-as-default"] if request.set_as_default else []
        command += ["--cdi.enabled"] if request.engine_cdi and engine.name != "crio" else []
        done = call(command)
        if done.returncode != 0:
            raise PlanError(
                engine.config,
                "nvidia-ctk cannot configure %s: %s" % (engine.name, last_line(done.stderr or done.stdout)),
                "Fix the file. It was not changed.",
            )
        found = {}
        for path in paths(engine, version, main):
            copy = Path(scratch + path)
            text = copy.read_text(encoding="utf-8").replace(scratch, "") if copy.exists() else ""
            found[path] = settle(engine, path, current.get(path, ""), text, drop_in)
    return found


def settle(engine: Engine, path: str, before: str, after: str, drop_in: str) -> str:
    """Return the desired text of a file.

    This is the current text if nvidia-ctk changed nothing relevant. Otherwise it is nvidia-ctk's text, if that loses no
    setting.
    """
    if path == engine.drop_in:
        # The main file has all settings, so the drop-in is empty. Settings in it would hide those in the main file.
        return after
    if engine.name == "docker":
        return (
            before
            if before.strip() and json.loads(before) == json.loads(after)
            else _nothing_lost_json(path, before, after)
        )
    if drop_in and str(Path(drop_in).parent) + "/*.toml" in imports(before):
        # nvidia-ctk would only reformat the file and drop its comments.
        return before
    return _nothing_lost_toml(path, before, after)


def docker_lacks(configured: str, info: str) -> str:
    """Return which settings in daemon.json dockerd has not applied, or "".

    `info` is the JSON from `docker info`.
    """
    settings = json.loads(configured) if configured.strip() else {}
    try:
        answer = json.loads(info)
        runtimes, default = set(answer["Runtimes"] or ()), answer["DefaultRuntime"]
    except (ValueError, KeyError, TypeError):
        return "docker info gives no runtimes"
    missing = sorted(set(settings.get("runtimes", {})) - runtimes)
    if missing:
        return "dockerd does not have the runtime %s of its daemon.json" % ", ".join(missing)
    wanted = settings.get("default-runtime", default)
    return "" if wanted == default else "the default runtime of dockerd is %s instead of %s" % (default, wanted)


def _nothing_lost_json(path: str, before: str, after: str) -> str:
    old, new = (json.loads(text) if text.strip() else {} for text in (before, after))
    runtimes = {name: value for name, value in old.get("runtimes", {}).items() if name != RUNTIME}
    kept = {name: value for name, value in old.items() if name not in ("runtimes", "default-runtime", "features")}
    lost = [name for name, value in runtimes.items() if new.get("runtimes", {}).get(name) != value]
    lost += [name for name, value in kept.items() if new.get(name) != value]
    lost += [name for name in old.get("features", {}) if name not in new.get("features", {})]
    return _unless_lost(path, lost, after)


def _nothing_lost_toml(path: str, before: str, after: str) -> str:
    lost = [name for name in imports(before) if name not in imports(after)]
    lost += sorted({table for table in tables(before) if not _of_nvidia(table)} - set(tables(after)))
    return _unless_lost(path, lost, after)


def _unless_lost(path: str, lost: list[str], after: str) -> str:
    if lost:
        raise PlanError(
            path,
            "nvidia-ctk would drop %s from it" % ", ".join(lost),
            "Set a later container_toolkit_version (1.18.0 drops the imports of containerd), or leave this engine out of "
            "container_toolkit_runtimes. The file was not changed.",
        )
    return after


def imports(text: str) -> tuple[str, ...]:
    """Return the files that containerd's main file imports."""
    found = _IMPORTS.search(text)
    return tuple(double or single for double, single in _STRING.findall(found[1])) if found else ()


def tables(text: str) -> tuple[str, ...]:
    """Return the names of a TOML file's tables that have keys.

    All names have the same quoting.
    """
    names = []
    parts = _HEADER.split(text)
    for header, body in zip(parts[1::2], parts[2::2]):
        if any(line.strip() and not line.strip().startswith("#") for line in body.splitlines()):
            names.append(re.sub(r"\s+", "", header).replace("'", '"'))
    return tuple(names)


def _of_nvidia(table: str) -> bool:
    return re.search(r"\.runtimes\.\"?%s\"?(\.|$)" % RUNTIME, table) is not None


def predict(engine: Engine, version: str, request: Request, current: Mapping[str, str]) -> bool:
    """Return whether configuring an engine will change anything.

    For a requested version of nvidia-ctk that is not installed yet.
    """
    if engine.name == "docker":
        config = _json(current.get(engine.config, ""))
        return (
            config.get("runtimes", {}).get(RUNTIME) != _DOCKER_RUNTIME
            or (request.set_as_default and config.get("default-runtime") != RUNTIME)
            or (request.engine_cdi and not config.get("features", {}).get("cdi"))
        )
    main = current.get(engine.config, "")
    drop_in = drop_in_of(engine, version, main)
    if engine.name == "containerd" and drop_in and str(Path(drop_in).parent) + "/*.toml" not in imports(main):
        return True
    return not any(map(_of_nvidia, tables(current.get(drop_in or engine.config, ""))))


def uses_cdi(daemon_json: str) -> bool:
    """Return whether Docker is configured to use CDI."""
    return bool(_json(daemon_json).get("features", {}).get("cdi"))


def cdi_changes(engine: Engine, before: str, after: str) -> bool:
    """Return whether Docker's use of CDI changes. Docker must then restart."""
    return engine.name == "docker" and uses_cdi(before) != uses_cdi(after)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# -- Removal, for which nvidia-ctk has no command -----------------------------------------------------------------


def without(engine: Engine, current: Mapping[str, str], record: Mapping[str, Any]) -> dict[str, str]:
    """Return the changed files (text by path) without the nvidia runtime.

    A file whose text is "" must be deleted. `record` is the engine's record from earlier runs: whether the role created
    the main file, and its other changes.
    """
    found: dict[str, str] = {}
    if engine.drop_in and any(map(_of_nvidia, tables(current.get(engine.drop_in, "")))):
        found[engine.drop_in] = ""
    text = current.get(engine.config, "")
    if engine.name == "docker":
        changed = _docker_without(text, record)
    elif record.get("created") and not set(tables(text)) - {"plugins"}:
        changed = ""
    else:
        changed = _toml_without(text)
    if text and changed != text:
        found[engine.config] = changed
    return found


def _docker_without(text: str, record: Mapping[str, Any]) -> str:
    config = _json(text)
    before = json.dumps(config, sort_keys=True)
    config.get("runtimes", {}).pop(RUNTIME, None)
    if not config.get("runtimes", True):
        del config["runtimes"]
    if config.get("default-runtime") == RUNTIME:
        config["default-runtime"] = record.get("default-runtime") or _RUNC
        if "default-runtime" in record and not record["default-runtime"]:
            del config["default-runtime"]
    if record.get("cdi_added") and "features" in config:
        config["features"].pop("cdi", None)
        if not config["features"]:
            del config["features"]
    if json.dumps(config, sort_keys=True) == before:
        return text
    return json.dumps(config, indent=4) + "\n" if config or not record.get("created") else ""


def _toml_without(text: str) -> str:
    """Remove the tables of the nvidia runtime from a TOML file.

    If nvidia was the default runtime, runc becomes the default.
    """
    kept, skip = [], False
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line.rstrip("\n"))
        if header:
            skip = _of_nvidia(re.sub(r"\s+", "", header[1]).replace("'", '"'))
        if not skip:
            kept.append(
                re.sub(r"^(\s*default_runtime(?:_name)?\s*=\s*)[\"']%s[\"']" % RUNTIME, r'\1"%s"' % _RUNC, line)
            )
    return "".join(kept)


def note(engine: Engine, before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """Return the engine's record for a later removal, without secrets."""
    found: dict[str, Any] = {"created": engine.config not in before}
    if engine.name == "docker":
        old, new = _json(before.get(engine.config, "")), _json(after.get(engine.config, ""))
        if old.get("default-runtime") != new.get("default-runtime"):
            found["default-runtime"] = old.get("default-runtime", "")
        found["cdi_added"] = "cdi" not in old.get("features", {}) and "cdi" in new.get("features", {})
    return found


def last_line(said: str) -> str:
    """Return the last line of a command's output, which has the reason of a failure."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"
