# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions of modules with sources: a host gets the digest, and the sources if it asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from ..module_utils.errors import FleetError
from ..module_utils.install.sources import digest, pack
from . import host_results
from .host_action import HostAction

#: Roles of this collection, whose files are the sources.
ROLES = Path(__file__).resolve().parents[2] / "roles"


def texts(folder: Path, pattern: str, prefix: str = "") -> dict[str, str]:
    """Return the texts of the files of a folder, by their path in it behind the prefix."""
    files = (file for file in folder.glob(pattern) if file.is_file())
    return {prefix + file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in files}


class OnDemandAction(HostAction):
    """Run the module of the task; a subclass says what its sources are."""

    #: Full name of the module.
    MODULE = ""

    _supports_check_mode = True

    def sources(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the sources for these arguments, texts by name. Raises FleetError."""
        raise NotImplementedError

    def digest(self, sources: Mapping[str, str]) -> str:
        """Return what the host compares the sources by."""
        return digest(sources)

    def ask(self, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, Any] | None:
        """Return the module's result where the host has its code; None where it has to be sent, as by default."""
        return None

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        try:
            sources = self.sources(self._task.args)
        except FleetError as error:
            return dict(result, failed=True, msg=str(error))
        arguments = dict(self._task.args, sources_digest=self.digest(sources))
        found = self.ask(arguments, task_vars or {})
        if found is None:
            found = self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
        if found.pop("sources_needed", False):
            arguments["sources"] = pack(sources)
            found = self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
        result.update(host_results.installation(found))
        return result
