# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send sources only to hosts that need them (docs/installed-code.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from ..module_utils.errors import FleetError
from ..module_utils.install.sources import digest, pack
from . import host_results
from .host_action import HostAction

#: Folder with this collection's roles, which have the sources.
ROLES = Path(__file__).resolve().parents[2] / "roles"


def texts(folder: Path, pattern: str, prefix: str = "") -> dict[str, str]:
    """Return the content of a folder's files that match a glob.

    Each key is the prefix followed by the path in the folder.
    """
    files = (file for file in folder.glob(pattern) if file.is_file())
    return {prefix + file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in files}


class OnDemandAction(HostAction):
    """An action that runs a module with sources. Subclasses provide the sources."""

    #: Full name of the module.
    MODULE = ""

    _supports_check_mode = True

    def sources(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the sources for these arguments: content by name.

        Raises FleetError if a source is missing or wrong.
        """
        raise NotImplementedError

    def digest(self, sources: Mapping[str, str]) -> str:
        """Return the digest with which the host checks whether it has these sources."""
        return digest(sources)

    def ask(self, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, Any] | None:
        """Run the module with the code that is installed on the host.

        Returns the result, or None (the default) if the module must be sent.
        """
        return None

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        try:
            sources = self.sources(self._task.args)
        except FleetError as error:
            return dict(result, failed=True, msg=str(error))
        arguments = dict(self._task.args, sources_digest=self.digest(sources))
        answer = self.ask(arguments, task_vars or {})
        if answer is None:
            answer = self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
        if answer.pop("sources_needed", False):
            arguments["sources"] = pack(sources)
            answer = self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
        result.update(host_results.installation(answer))
        return result
