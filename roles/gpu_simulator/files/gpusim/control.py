# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the library's control interface (src/gpusim.h) through ctypes.

No other file calls this interface.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

from .errors import FleetError

LIBRARY_PATH = "/usr/local/lib/gpusim/libnvidia-ml.so.1"

# The control interface's return codes, with their names from nvml.h.
CODE_NAMES = {
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    15: "GPU_IS_LOST",
    19: "IN_USE",
    20: "MEMORY",
    23: "INSUFFICIENT_RESOURCES",
    999: "UNKNOWN",
}
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
IN_USE = 19

WHOLE = -1


class ControlError(FleetError):
    """A failed control call. `code` is NVML's return code."""

    def __init__(self, where: str, problem: str, cure: str, code: int) -> None:
        super().__init__(where, problem, cure)
        self.code = code


class Control:
    """Control calls to one simulated library.

    gpusim.h defines units and codes.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path or os.environ.get("GPUSIM_LIBRARY") or LIBRARY_PATH
        try:
            self._library = ctypes.CDLL(self.path)
            self._library.gpusimVersion.restype = ctypes.c_char_p
            self._library.gpusimMessage.restype = ctypes.c_char_p
        except OSError as error:
            cure = "Install it with the role openfleet.gpu.gpu_simulator, or set GPUSIM_LIBRARY"
            raise FleetError(self.path, f"the simulated NVML cannot be loaded: {error}", cure) from error
        except AttributeError as error:
            cure = "Set GPUSIM_LIBRARY to the simulated library"
            raise FleetError(self.path, "this is not the simulated NVML", cure) from error

    def version(self) -> str:
        return self._library.gpusimVersion().decode()

    def create(self, configuration: str) -> None:
        self._call("gpusimCreate", configuration.encode())

    def dump(self) -> dict[str, Any]:
        """Return the whole state, in the format that gpusimDump documents."""
        size = ctypes.c_size_t(0)
        while True:
            buffer = ctypes.create_string_buffer(size.value)
            # Other processes may have enlarged the state after this function read its size.
            code = self._library.gpusimDump(buffer, ctypes.byref(size))
            if code == 0:
                return json.loads(buffer.value.decode())
            if code != INSUFFICIENT_SIZE:
                self._fail("gpusimDump", code)

    def changes(self, since: int = 0, wait_seconds: float = 0) -> int:
        """Wait for a change after `since`, and return the total number of changes."""
        seen = ctypes.c_uint32(since)
        code = self._library.gpusimWait(ctypes.byref(seen), ctypes.c_uint(round(wait_seconds * 1000)))
        if code not in (0, TIMEOUT):
            self._fail("gpusimWait", code)
        return seen.value

    def set(self, gpu: int, key: str, value: str) -> None:
        self._call("gpusimSet", gpu, key.encode(), value.encode())

    def load(self, gpu: int, gpu_instance: int, pattern: str | None) -> None:
        self._call("gpusimLoad", gpu, gpu_instance, pattern.encode() if pattern is not None else None)

    def attach(
        self, pid: int, gpu: int, gpu_instance: int, compute_instance: int, kind: str, memory_bytes: int
    ) -> None:
        memory = ctypes.c_uint64(memory_bytes)
        self._call("gpusimAttach", pid, gpu, gpu_instance, compute_instance, kind.encode(), memory)

    def detach(self, pid: int) -> None:
        self._call("gpusimDetach", pid)

    def xid(self, gpu: int, gpu_instance: int, compute_instance: int, number: int) -> None:
        self._call("gpusimXid", gpu, gpu_instance, compute_instance, ctypes.c_uint(number))

    def lose(self, gpu: int) -> None:
        self._call("gpusimLose", gpu)

    def restore(self, gpu: int) -> None:
        self._call("gpusimRestore", gpu)

    def reset(self, gpu: int) -> None:
        self._call("gpusimReset", gpu)

    def reboot(self) -> None:
        self._call("gpusimReboot")

    def fail(self, function: str, nth: int, action: str) -> None:
        self._call("gpusimFail", function.encode(), ctypes.c_uint(nth), action.encode())

    def fail_on(self, function: str, gpu: int, nth: int, lasting: bool, action: str) -> None:
        """Arm a fault for the nth call on one GPU. WHOLE means calls on any GPU.

        If `lasting` is true, all later calls fail too.
        """
        self._call("gpusimFailOn", function.encode(), gpu, ctypes.c_uint(nth), int(lasting), action.encode())

    def clear_failures(self) -> None:
        self._call("gpusimFailClear")

    def clear_calls(self) -> None:
        self._call("gpusimClearCalls")

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            self._fail(function, code)

    def _fail(self, function: str, code: int) -> None:
        message = (self._library.gpusimMessage() or b"").decode()
        cure = ""
        if code == DRIVER_NOT_LOADED:
            cure = "Create GPUs with gpusim init --config FILE"
        raise ControlError("", message or f"{function}: {CODE_NAMES.get(code, code)}", cure, code)
