# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action behind openfleet.gpu.bundle: from the inventory's variables to a bundle. It works on the controller alone."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any, Mapping

import yaml
from ansible.errors import AnsibleError
from ansible.release import __version__ as ansible_version
from ansible.utils.display import Display

from ..modules.bundle import DOCUMENTATION
from ..plugin_utils.bundle.fetch import readable
from ..plugin_utils.bundle.make import Order, Outcome, make
from ..plugin_utils.bundle.model import BundleError
from ..plugin_utils.bundle.wants import OWN_VARIABLES, VARIABLES
from ..plugin_utils.controller_action import ControllerAction
from ..plugin_utils.plain import plain

_ROOT = Path(__file__).resolve().parents[2]
_ROLES = ("nvidia_driver", "container_toolkit", "gpu_layout", "gpu_kubernetes")
#: Names in a summary; the rest stands in the bundle itself.
_SHOWN = 12

display = Display()


class ActionModule(ControllerAction):
    documentation = DOCUMENTATION

    def work(self, arguments: dict[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        args = plain(arguments)
        check = self._task.check_mode
        try:
            values = {host: self._values(host, variables) for host in args["hosts"]}
            if not values:
                raise BundleError("gpu_hosts", "there is no host in it", "Name the inventory with -i.")
            order = Order(
                directory=Path(args["directory"]),
                hosts=values,
                catalogue=_catalogue(),
                root=_ROOT,
                version=_version(),
                parts=args["parts"],
                requirements=_requirements(args["requirements"]),
                pip_options=args["pip_options"],
                url=args["url"].rstrip("/"),
                path=args["path"].rstrip("/"),
                prune=args["prune"],
                check=check,
            )
            done = make(order, lambda line: display.display("bundle: %s" % line))
        except OSError as error:
            raise BundleError(args["directory"], str(error), "See that it can be written, and run again.") from error
        return _result(done, check)

    def _values(self, host: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The variables as the roles would see them on this host. Raises BundleError."""
        known = variables["hostvars"][host]
        values: dict[str, Any] = {name: [] for name in OWN_VARIABLES}
        values.update(_defaults())
        for name in (*VARIABLES, *OWN_VARIABLES):
            try:
                if name in known:
                    values[name] = plain(known[name])
            except AnsibleError as error:
                raise BundleError(
                    "%s: %s" % (host, name),
                    "it cannot be told without reaching the host: %s" % error,
                    "Give it a value that hangs on no facts, in this inventory or with -e.",
                ) from None
        return values


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for role in _ROLES:
        values = yaml.safe_load((_ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))
        found.update({name: value for name, value in values.items() if name in VARIABLES})
    return found


def _catalogue() -> dict[str, Any]:
    """As the role nvidia_driver reads it."""
    folder = _ROOT / "roles" / "nvidia_driver" / "vars" / "distributions"
    return {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["nvidia_driver__distribution"]
        for path in sorted(folder.glob("*.yml"))
    }


def _version() -> str:
    if (_ROOT / "galaxy.yml").exists():
        return yaml.safe_load((_ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    if (_ROOT / "MANIFEST.json").exists():
        return json.loads((_ROOT / "MANIFEST.json").read_text(encoding="utf-8"))["collection_info"]["version"]
    return ""


def _requirements(path: str | None) -> list[str]:
    """Of a requirements file; else what this controller has itself."""
    if path:
        try:
            lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise BundleError(path, "it cannot be read: %s" % error, "See gpu_bundle_requirements.") from None
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    try:
        nvml = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        nvml = str(_defaults()["gpu_layout_nvml_version"])
    return ["ansible-core==%s" % ansible_version, "nvidia-ml-py==%s" % nvml]


def _result(done: Outcome, check: bool) -> dict[str, Any]:
    size = readable(sum(item.size for item in done.fetched))
    summary = [
        "%s %d files (%s), %d were there" % ("would fetch" if check else "fetched", len(done.fetched), size, done.kept)
    ]
    if done.elsewhere:
        summary.append("hosts take from their distribution: %s" % _some(done.elsewhere))
    if done.old:
        summary.append("no longer needed (gpu_bundle_prune removes them): %s" % _some(done.old))
    if done.removed:
        summary.append("%s: %s" % ("would remove" if check else "removed", _some(done.removed)))
    return {
        "changed": done.changed,
        "fetched": [item.path for item in done.fetched],
        "kept": done.kept,
        "old": done.old,
        "removed": done.removed,
        "needed_from_the_distribution": done.elsewhere,
        "summary": summary + done.notes,
        "diff": {
            "prepared": "".join(
                ["+%s (%s)\n" % (item.path, readable(item.size)) for item in done.fetched]
                + ["-%s\n" % path for path in done.removed]
            )
        },
    }


def _some(names: list[str]) -> str:
    more = ["and %d more" % (len(names) - _SHOWN)] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])
