# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module with the code in the command gpu-layout (docs/installed-code.md)."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .command_file import PACKAGE, origin, problem

# With this code, modules find another Python if their own has no pynvml. It is not sent, because another Python would
# need other code.
_RESPAWN = "ansible.module_utils.common.respawn"
# By module: the file in the command that has the module's `bring_about`, and the function that returns the module's
# options.
CODE = {"layout": ("change.layout_module", "argspec_of_layout"), "layout_boot": ("install.layout_boot", "argspec")}


class OtherCodeError(Exception):
    """The command is missing, or has other code than the requested code."""


def argspec() -> dict[str, Any]:
    return {
        "module": {"type": "str", "required": True, "choices": sorted(CODE)},
        "arguments": {"type": "dict", "required": True},
        "command": {"type": "path", "default": "/usr/local/bin/gpu-layout"},
        "digest": {"type": "str", "required": True},
    }


def open_code(command: Path, made_from: bytes) -> str:
    """Open the command, and return a path from which its code can be imported.

    The path refers to the open file, even if the command is replaced later. Raises OtherCodeError if the code is not
    the requested code.
    """
    try:
        file = os.open(str(command), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reasons = {errno.ENOENT: "it is missing", errno.ELOOP: "it is not a regular file"}
        raise OtherCodeError(reasons.get(error.errno or 0, error.strerror)) from None
    path = "/proc/self/fd/%d" % file
    reason = problem(os.fstat(file), Path(path), made_from)
    if reason is not None:
        os.close(file)
        raise OtherCodeError(reason)
    return path


def run_installed(module: Any) -> None:
    """Exit with the result of the named module.

    Exit with the reason (`code_needed`) if its code must be sent.
    """
    try:
        # The archive contains only the package.
        sys.path.insert(0, open_code(Path(module.params["command"]), origin(module.params["digest"])))
    except OtherCodeError as error:
        reason = str(error)
    else:
        path, options = CODE[module.params["module"]]
        code = importlib.import_module("%s.%s" % (PACKAGE, path))
        reason = _run(module, code, getattr(code, options)())
    module.exit_json(changed=False, code_needed=reason)


def _run(module: Any, code: Any, options: dict[str, Any]) -> str:
    """Exit with the result of this code, or return why the code must be sent."""
    checked = ArgumentSpecValidator(options).validate(module.params["arguments"])
    if checked.error_messages:
        # The module itself reports this error.
        return "wrong arguments"
    runner = importlib.import_module(PACKAGE + ".runner")
    try:
        runner.run(module, lambda: code.bring_about(checked.validated_parameters, module.check_mode))
    except ModuleNotFoundError as error:
        if error.name != _RESPAWN:
            raise
    return "its Python has no pynvml"
