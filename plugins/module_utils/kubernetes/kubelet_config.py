# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the kubelet's NUMA and CPU policies from its options and files.

https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/

Files of --config-dir: mergeKubeletConfigurations in cmd/kubelet/app/server.go. A later file takes precedence, and
options take precedence over all files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ..errors import FleetError
from ..foreign_text import text
from ..processes.accounts import account_of, is_foreign

# By name of the option: the field in files, and the kubelet's default.
_POLICIES = {
    "topologyManagerPolicy": ("topology-manager-policy", "none"),
    "topologyManagerScope": ("topology-manager-scope", "container"),
    "cpuManagerPolicy": ("cpu-manager-policy", "none"),
    "memoryManagerPolicy": ("memory-manager-policy", "None"),
}
_RESULTS = {
    "topologyManagerPolicy": "topology_policy",
    "topologyManagerScope": "topology_scope",
    "cpuManagerPolicy": "cpu_policy",
    "memoryManagerPolicy": "memory_policy",
}
_FIELD = re.compile(r"""^(\w+):[ \t]*["']?([\w-]{1,63})["']?[ \t]*(?:#.*)?$""", re.MULTILINE)
_MOST_BYTES = 1 << 20
_MOST_FILES = 100


def read_kubelet(root: Path = Path("/")) -> Dict[str, Any]:
    """Return the files and policies of the host's kubelet.

    `running` is false if root's own namespace has no process named kubelet. Raises FleetError if a file cannot be read.
    """
    process = _process(root / "proc")
    if process is None:
        return {"running": False, "config": "", "config_dir": "", **{_RESULTS[name]: "" for name in _POLICIES}}
    with (process / "cmdline").open("rb") as file:
        options = _options(file.read(_MOST_BYTES).decode("utf-8", "replace").split("\0"))
    config, config_dir = options.get("config", ""), options.get("config-dir", "")
    fields: Dict[str, Optional[str]] = {}
    for path in [config] if config else []:
        fields.update(_fields(root, path, "--config"))
    for path in _drop_ins(root, config_dir) if config_dir else []:
        fields.update(_fields(root, path, "--config-dir"))
    # An option takes precedence over files.
    values = {
        _RESULTS[name]: text(options.get(option) or fields.get(name) or default, 63)
        for name, (option, default) in _POLICIES.items()
    }
    return {"running": True, "config": text(config, 255), "config_dir": text(config_dir, 255), **values}


def _process(proc: Path) -> Optional[Path]:
    """Return the folder of the kubelet's process, or None.

    A process of another account or in a user namespace is not the host's kubelet.
    """
    for folder in sorted(proc.glob("[0-9]*")):
        try:
            is_kubelet = (folder / "comm").read_text(errors="replace").strip() == "kubelet"
            if is_kubelet and not is_foreign(str(folder)) and account_of(str(folder)) == 0:
                return folder
        except OSError:
            # The process has ended.
            continue
    return None


def _options(words: List[str]) -> Dict[str, str]:
    """Return the options in a command line: `--name=value` or `--name value`.

    The kubelet accepts underscores in option names.
    """
    found = {}
    for word, following in zip(words[1:], [*words[2:], ""]):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name.replace("_", "-")] = value if equals else following
    return found


def _drop_ins(root: Path, config_dir: str) -> List[str]:
    """Return the files of --config-dir in the order in which the kubelet reads them.

    These are all files *.conf in the folder and its subfolders, except those behind links to folders.
    """

    def walk(folder: Path) -> Iterator[str]:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from walk(path)
            elif path.name.endswith(".conf") and path.is_file():
                yield "/%s" % path.relative_to(root)

    place, cure = text(config_dir, 255), "Check the option --config-dir of the kubelet."
    try:
        paths = [path for path, _number in zip(walk(root / config_dir.lstrip("/")), range(_MOST_FILES + 1))]
    except OSError as error:
        raise FleetError(place, "the kubelet's folder cannot be read: %s" % error.strerror, cure) from None
    if len(paths) > _MOST_FILES:
        raise FleetError(place, "the kubelet's folder has more than %d files" % _MOST_FILES, cure)
    return paths


def _fields(root: Path, path: str, option: str) -> Mapping[str, Optional[str]]:
    """Return the policies in one of the kubelet's files, which is YAML or JSON.

    YAML is read without a parser, because a host may have none. The policies are single words at the top level. `null`
    restores the default and gives None.
    """
    try:
        with (root / path.lstrip("/")).open("rb") as source:
            written = source.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        cure = "Check the option %s of the kubelet." % option
        raise FleetError(text(path, 255), "the kubelet's file cannot be read: %s" % error.strerror, cure) from None
    if written.lstrip().startswith("{"):
        try:
            data = json.loads(written)
        except (ValueError, RecursionError):
            raise FleetError(text(path, 255), "the kubelet's file is not JSON", "Correct it.") from None
        return {name: data[name] for name in _POLICIES if isinstance(data.get(name, 0), (str, type(None)))}
    found = {name: value for name, value in _FIELD.findall(written) if name in _POLICIES}
    return {name: None if value == "null" else value for name, value in found.items()}
