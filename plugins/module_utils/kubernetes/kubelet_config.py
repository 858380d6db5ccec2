# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the kubelet's policies for NUMA nodes and CPUs from options and file.

https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from ..errors import FleetError
from ..foreign_text import text
from ..processes.accounts import account_of, is_foreign

# Field of the file and name of the option, with the kubelet's default.
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


def read_kubelet(root: Path = Path("/")) -> Dict[str, Any]:
    """Return the file and the policies of the host's kubelet.

    `running` is false if no process named kubelet of root's own namespace was found. Raises FleetError if its file
    cannot be read.
    """
    process = _process(root / "proc")
    if process is None:
        return {"running": False, "config": "", **{_RESULTS[name]: "" for name in _POLICIES}}
    with (process / "cmdline").open("rb") as file:
        options = _options(file.read(_MOST_BYTES).decode("utf-8", "replace").split("\0"))
    config = options.get("config", "")
    fields = _fields(root, config) if config else {}
    # An option takes precedence over the file.
    values = {
        _RESULTS[name]: text(options.get(option) or fields.get(name) or default, 63)
        for name, (option, default) in _POLICIES.items()
    }
    return {"running": True, "config": text(config, 255), **values}


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
    """Return the options of a command line: `--name=value` or `--name value`."""
    found = {}
    for word, following in zip(words[1:], [*words[2:], ""]):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else following
    return found


def _fields(root: Path, config: str) -> Mapping[str, str]:
    """Return the policies in the kubelet's file, which is YAML or JSON.

    YAML is read without a parser, because a host may have none. The policies are single words at the top level.
    """
    try:
        with (root / config.lstrip("/")).open("rb") as source:
            written = source.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        cure = "Check the option --config of the kubelet."
        raise FleetError(text(config, 255), "the kubelet's file cannot be read: %s" % error.strerror, cure) from None
    if written.lstrip().startswith("{"):
        try:
            data = json.loads(written)
        except (ValueError, RecursionError):
            raise FleetError(text(config, 255), "the kubelet's file is not JSON", "Correct it.") from None
        return {name: value for name, value in data.items() if name in _POLICIES and isinstance(value, str)}
    return {name: value for name, value in _FIELD.findall(written) if name in _POLICIES}
