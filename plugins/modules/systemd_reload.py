#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: systemd_reload
short_description: Reload systemd's units unless running containers would lose their GPUs
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Fails if running containers would lose their GPUs when systemd reloads its units (C(docs/container_toolkit.md)).
  - With O(reload=false) it only checks. Use it before a task that changes unit files.
  - On a host that does not run systemd, it does nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
options:
  units:
    description:
      - Unit files that the play is about to write, as a mapping from path to text. An empty text means that the file will be
        removed.
      - If all files already have the requested content, systemd will not reload its units, and nothing is checked.
    type: dict
    default: {}
  reload:
    description: Whether to reload the units.
    type: bool
    default: true
extends_documentation_fragment:
  - openfleet.gpu.errors
  - openfleet.gpu.reload
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: ansible.builtin.systemd_service
"""

EXAMPLES = r"""
- name: Reload the changed units
  openfleet.gpu.systemd_reload:
  become: true
"""

RETURN = r"""#"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import systemd, systemd_reload
from ..module_utils.errors import ApplyError
from ..module_utils.processes.command import run_to_end
from ..module_utils.runner import run


def argspec() -> dict[str, Any]:
    return {
        "units": {"type": "dict", "default": {}},
        "reload": {"type": "bool", "default": True},
        "on_busy": {"type": "str", "choices": list(systemd_reload.POLICIES), "default": systemd_reload.FAIL},
        "busy_timeout": {"type": "int", "default": 600},
    }


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_text(errors="replace") != text
    except FileNotFoundError:
        return bool(text)


def main() -> None:
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)

    def body() -> dict[str, Any]:
        params, check = module.params, module.check_mode
        if not systemd.booted(Path("/")):
            # systemd reads the units when it starts.
            return {"changed": False}
        if params["units"] and not any(_differs(Path(path), text) for path, text in params["units"].items()):
            return {"changed": False}
        systemd_reload.guard(Path("/"), params["on_busy"], params["busy_timeout"], check, run_to_end)
        if params["reload"] and not check:
            try:
                systemd.tell(run_to_end, systemd_reload.RELOAD)
            except systemd.NoAnswerError as error:
                raise ApplyError("systemd", str(error), "See `systemctl status`.") from error
        return {"changed": params["reload"]}

    run(module, body)


if __name__ == "__main__":
    main()
