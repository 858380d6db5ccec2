# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action behind openfleet.gpu.layout_boot: the command's sources go to a host that asks for them, and to no other."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.install.archive import read_sources, sources_digest

MODULE = "openfleet.gpu.layout_boot"


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        sources = read_sources()
        arguments = dict(self._task.args, sources_digest=sources_digest(sources))
        found = self._execute_module(MODULE, module_args=arguments, task_vars=task_vars)
        if found.pop("sources_needed", False):
            packed = base64.b64encode(zlib.compress(json.dumps(sources).encode(), 9)).decode()
            found = self._execute_module(MODULE, module_args=dict(arguments, sources=packed), task_vars=task_vars)
        result.update(found)
        return result
