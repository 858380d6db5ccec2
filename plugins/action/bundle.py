# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implement openfleet.gpu.bundle on the controller."""

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
# Maximum number of names in a summary line.
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
                raise BundleError("gpu_hosts", "the group has no hosts", "Name the inventory with -i.")
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
            outcome = make(order, lambda line: display.display("bundle: %s" % line))
        except OSError as error:
            raise BundleError(args["directory"], str(error), "Make the directory writable and run again.") from error
        return _result(outcome, check)

    def _values(self, host: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return a host's variables as roles would see them.

        Raises BundleError.
        """
        host_variables = variables["hostvars"][host]
        values: dict[str, Any] = {name: [] for name in OWN_VARIABLES}
        values.update(_defaults())
        for name in (*VARIABLES, *OWN_VARIABLES):
            try:
                if name in host_variables:
                    values[name] = plain(host_variables[name])
            except AnsibleError as error:
                raise BundleError(
                    "%s: %s" % (host, name),
                    "its value cannot be determined without contacting the host: %s" % error,
                    "Set a value that does not depend on facts, in this inventory or with -e.",
                ) from None
        return values


def _defaults() -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for role in _ROLES:
        values = yaml.safe_load((_ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))
        defaults.update({name: value for name, value in values.items() if name in VARIABLES})
    return defaults


def _catalogue() -> dict[str, Any]:
    """Return the distributions by name, in the format of the role nvidia_driver."""
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
    """Return the requirements, from the file or for this controller's versions.

    Raises BundleError.
    """
    if path:
        try:
            lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise BundleError(path, "it cannot be read: %s" % error, "Check gpu_bundle_requirements.") from None
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    try:
        nvml = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        nvml = str(_defaults()["gpu_layout_nvml_version"])
    return ["ansible-core==%s" % ansible_version, "nvidia-ml-py==%s" % nvml]


def _result(outcome: Outcome, check: bool) -> dict[str, Any]:
    size = readable(sum(item.size for item in outcome.fetched))
    fetched = "would fetch" if check else "fetched"
    summary = ["%s %d files (%s), %d were already present" % (fetched, len(outcome.fetched), size, outcome.kept)]
    if outcome.elsewhere:
        summary.append("hosts need from their distribution: %s" % _some(outcome.elsewhere))
    if outcome.old:
        summary.append("no longer needed (gpu_bundle_prune removes them): %s" % _some(outcome.old))
    if outcome.removed:
        summary.append("%s: %s" % ("would remove" if check else "removed", _some(outcome.removed)))
    return {
        "changed": outcome.changed,
        "fetched": [item.path for item in outcome.fetched],
        "kept": outcome.kept,
        "old": outcome.old,
        "removed": outcome.removed,
        "needed_from_the_distribution": outcome.elsewhere,
        "summary": summary + outcome.notes,
        "diff": {
            "prepared": "".join(
                ["+%s (%s)\n" % (item.path, readable(item.size)) for item in outcome.fetched]
                + ["-%s\n" % path for path in outcome.removed]
            )
        },
    }


def _some(names: list[str]) -> str:
    more = ["and %d more" % (len(names) - _SHOWN)] if len(names) > _SHOWN else []
    return ", ".join([*names[:_SHOWN], *more])
