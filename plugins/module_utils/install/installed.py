# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module by the code of the command gpu-layout, where the host has the controller's.

The code of `layout` is some seventy files, which each run would send and compile. The command has the same files as bytecode.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .archive import PACKAGE, origin, problem

#: Modules look for another Python by it where theirs lacks pynvml. It is not sent along: another Python has other code.
_RESPAWN = "ansible.module_utils.common.respawn"
#: By module: its file in the command, which has a function `bring_about`, and the function that returns its options.
CODE = {"layout": ("change.layout_module", "argspec_of_layout"), "layout_boot": ("install.layout_boot", "argspec")}


class OtherCodeError(Exception):
    """The command is missing, or not exactly the code that is asked for; says why."""


def argspec() -> dict[str, Any]:
    return {
        "module": {"type": "str", "required": True, "choices": sorted(CODE)},
        "arguments": {"type": "dict", "required": True},
        "command": {"type": "path", "default": "/usr/local/bin/gpu-layout"},
        "digest": {"type": "str", "required": True},
    }


def open_code(command: Path, made_from: bytes) -> str:
    """Open the command and return a path to import its code from. Raises OtherCodeError where it is not exactly that code.

    The path is of the open file: what stands in place of the command later, by another run or another user, is not read.
    """
    try:
        file = os.open(str(command), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        told = {errno.ENOENT: "it is not there", errno.ELOOP: "it is no regular file"}
        raise OtherCodeError(told.get(error.errno or 0, error.strerror)) from None
    path = "/proc/self/fd/%d" % file
    reason = problem(os.fstat(file), Path(path), made_from)
    if reason is not None:
        os.close(file)
        raise OtherCodeError(reason)
    return path


def run_installed(module: Any) -> None:
    """Exit the module with the result of the one that it names, or with the reason why that has to be sent (`code_needed`)."""
    try:
        # Nothing but the package is in it.
        sys.path.insert(0, open_code(Path(module.params["command"]), origin(module.params["digest"])))
    except OtherCodeError as error:
        reason = str(error)
    else:
        path, options = CODE[module.params["module"]]
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
