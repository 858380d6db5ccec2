# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module by the code of the command gpu-layout, where the host has the controller's.

The code of `layout` is some seventy files, which each run would send and compile. The command has the same files as bytecode.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .archive import PACKAGE, origin, refusal

#: Modules look for another Python by it where theirs lacks pynvml. It is not sent along: another Python has other code.
_RESPAWN = "ansible.module_utils.common.respawn"
#: By module: its file in the command, which has a function `bring_about`, and the function that returns its options.
CODE = {"layout": ("layout_module", "argspec_of_layout"), "layout_boot": ("install.layout_boot", "argspec")}


def argspec() -> dict[str, Any]:
    return {
        "module": {"type": "str", "required": True, "choices": sorted(CODE)},
        "arguments": {"type": "dict", "required": True},
        "command": {"type": "path", "default": "/usr/local/bin/gpu-layout"},
        "digest": {"type": "str", "required": True},
    }


def run_installed(module: Any) -> None:
    """Exit the module with the result of the one that it names, or with the reason why that has to be sent (`code_needed`)."""
    given = Path(module.params["command"])
    # Links in the folders count once.
    command = Path(os.path.realpath(str(given.parent)), given.name)
    reason = refusal(command, origin(module.params["digest"]))
    if reason is None:
        path, options = CODE[module.params["module"]]
        # Nothing but the package is in it.
        sys.path.insert(0, str(command))
        code = importlib.import_module("%s.%s" % (PACKAGE, path))
        reason = _run(module, code, getattr(code, options)())
    module.exit_json(changed=False, code_needed=reason)


def _run(module: Any, code: Any, options: dict[str, Any]) -> str:
    """Exit the module with the result of this code; return why it has to be sent where that cannot be."""
    checked = ArgumentSpecValidator(options).validate(module.params["arguments"])
    if checked.error_messages:
        # The module itself says what is wrong.
        return "wrong arguments"
    runner = importlib.import_module(PACKAGE + ".runner")
    try:
        runner.run(module, lambda: code.bring_about(checked.validated_parameters, module.check_mode))
    except ModuleNotFoundError as error:
        if error.name != _RESPAWN:
            raise
    return "its Python has no pynvml"
