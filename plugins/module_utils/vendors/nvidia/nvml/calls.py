# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call NVML. Only this module imports pynvml (package nvidia-ml-py).

Every failure becomes an NvmlError with the call, NVML's error code and the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import stat
import sys
import types
from pathlib import Path
from typing import Any, Iterator, Sequence, TypeVar

from ....errors import DriverAbsentError, NvmlError
from ....model import LostGpu

# Directory of the role gpu_layout's pynvml.py, for any interpreter.
BINDING_DIRECTORY = "/usr/local/lib/openfleet-gpu/python"
# Interpreters for which distributions package pynvml (python3-pynvml on Debian and Ubuntu).
INTERPRETERS = ("/usr/bin/python3", "/usr/libexec/platform-python")

# Return codes of NVML (nvml.h, nvmlReturn_t).
SUCCESS, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 3, 4, 6
FUNCTION_NOT_FOUND, RESET_REQUIRED, IN_USE = 13, 16, 19
UNINITIALIZED, INVALID_ARGUMENT, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 1, 2, 9, 12
INSUFFICIENT_POWER, IRQ_ISSUE, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 8, 11, 15, 18, 999
_ABSENT = (NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND)

# Error codes that concern the driver or its library, even for a call about one GPU.
_OF_HOST = (UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, VERSION_MISMATCH)
# Error codes that concern the whole GPU, whatever the call was.
_OF_GPU = (INSUFFICIENT_POWER, IRQ_ISSUE, GPU_IS_LOST, RESET_REQUIRED)

_CURES = {
    NO_PERMISSION: "Run as root (become: true).",
    IN_USE: "Stop the processes that use it (see gpu_info).",
    RESET_REQUIRED: "Reset the GPU or reboot the host.",
    INSUFFICIENT_POWER: "Connect the power cables of the card.",
    GPU_IS_LOST: "The GPU has fallen off the bus. Check the kernel log and power-cycle the host.",
    VERSION_MISMATCH: "The driver was upgraded while its kernel module was loaded. Reload the module or reboot the host.",
}

# Size of the buffer for a GPU's instances or placements. A GPU has at most 15 GPU instances with 8 compute instances
# each.
_LIST_LENGTH = 32


# This file exists while the driver is loaded.
_LOADED = "/proc/driver/nvidia/version"


def driver_loaded() -> bool:
    """Return whether the host has a driver for NVML, without pynvml."""
    if Path(_LOADED).exists():
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def respawn_with_pynvml() -> None:
    """Restart the module with an interpreter that has pynvml.

    Returns only if there is no such interpreter.
    """
    # Imported here, because the command gpu-layout runs without Ansible.
    from ansible.module_utils.common.respawn import has_respawned, probe_interpreters_for_module, respawn_module

    if not has_respawned():
        interpreter = probe_interpreters_for_module(list(INTERPRETERS), "pynvml")
        if interpreter:
            respawn_module(interpreter)


def lend(source: str) -> None:
    """Use the given text of pynvml.py in this process if the host has no pynvml.

    Writes nothing to the host.
    """
    try:
        _binding()
    except DriverAbsentError:
        module = types.ModuleType("pynvml")
        sys.modules["pynvml"] = module
        exec(compile(source, "pynvml.py (lent by the controller)", "exec"), module.__dict__)


def installed_binding() -> str:
    """Return the SHA-256 of the pynvml.py in BINDING_DIRECTORY as hex digits.

    Returns "" if it is not a regular file of root with mode 0644, or if other users may replace it.
    """
    # Imported here, because most modules do not need it.
    import hashlib

    file = Path(BINDING_DIRECTORY) / "pynvml.py"
    try:
        status, folder = file.lstat(), file.parent.lstat()
        if (status.st_uid, status.st_gid, status.st_mode) != (0, 0, stat.S_IFREG | 0o644):
            return ""
        # On Debian, the parent directory may belong to the group staff. The folder then has this group and the
        # set-group-id bit. This is safe.
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != 0 or folder.st_mode & 0o022:
            return ""
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _binding() -> Any:
    """Return pynvml from BINDING_DIRECTORY or the interpreter's search path.

    Raises DriverAbsentError with call="import".
    """
    # Prefer the role's version, because the interpreter's may be years old.
    sys.path.insert(0, BINDING_DIRECTORY)
    try:
        import pynvml
    except ImportError:
        raise DriverAbsentError(
            "python %s" % sys.executable,
            "the Python module pynvml (package nvidia-ml-py) is not installed",
            "Let the role gpu_layout install it (gpu_layout_nvml_source), or install nvidia-ml-py for this interpreter.",
            call="import",
        ) from None
    finally:
        sys.path.remove(BINDING_DIRECTORY)
    return pynvml


# Type variable for subclasses of Calls, so that `with Session() as session` has the right type.
Started = TypeVar("Started", bound="Calls")


class Calls:
    """The NVML library after its start, as a context manager with methods for calls."""

    def __init__(self) -> None:
        self._nvml = _binding()
        self._handles: dict[str, Any] = {}
        #: NVML's index by UUID, for messages.
        self._indices: dict[str, int] = {}
        #: UUID, or index if the UUID is unknown, of the GPU for calls that do not name one.
        self._gpu: str | None = None

    def __enter__(self: Started) -> Started:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            # In a container without a driver, the library may return UNKNOWN.
            alone = error.value == UNKNOWN and not Path(_LOADED).exists()
            absent = alone or error.value in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND)
            failure = (DriverAbsentError if absent else NvmlError)(
                "this host",
                "NVML does not start: %s" % error,
                _CURES.get(error.value, "Install and load the NVIDIA driver."),
                call="nvmlInit",
                code=error.value,
            )
            failure.code_name = _code_name(error)
            raise failure from error
        return self

    def __exit__(self, *_exc: Any) -> None:
        self._nvml.nvmlShutdown()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Close all GPUs while the block runs.

        A GPU refuses a reset while any client has the GPU open.
        """
        self._nvml.nvmlShutdown()
        self._handles.clear()
        try:
            yield
        finally:
            self._call("nvmlInit")

    def _list(self, item: Any, call: str, owner: Any, profile_id: int, optional: bool = False) -> list[Any]:
        """Call a function that returns a list, with a buffer of `item` elements.

        `owner` is a device or a GPU instance, and `profile_id` one of its profiles.
        """
        buffer, count = (item * _LIST_LENGTH)(), ctypes.c_uint(_LIST_LENGTH)
        method = self._optional if optional else self._call
        if method(call, owner, profile_id, buffer, ctypes.byref(count)) is None:
            return []
        return [buffer[i] for i in range(count.value)]

    def _optional(self, call: str, *args: Any, also: tuple[int, ...] = ()) -> Any:
        """Return a call's result, or None if the GPU, driver or caller lacks support."""
        function = getattr(self._nvml, call, None)
        if function is None:
            # The installed nvidia-ml-py is too old for this call.
            return None
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            if error.value in _ABSENT or error.value in also:
                return None
            raise self._error(call, error, None) from error
        except UnicodeDecodeError as error:
            # nvidia-ml-py decodes all texts as UTF-8, but users choose their programs' names.
            return _decoded(error)

    @contextlib.contextmanager
    def _error_context(self, gpu: str) -> Iterator[None]:
        """Name this GPU in errors from the block, also for calls about its instances."""
        before, self._gpu = self._gpu, gpu
        try:
            yield
        finally:
            self._gpu = before

    def _best_effort(self, call: str, *args: Any) -> Any:
        """Return the result of a call for an optional value, or None if it fails.

        Raises NvmlError if the error code concerns the whole GPU.
        """
        try:
            return self._optional(call, *args)
        except NvmlError as error:
            if error.gpu is not None and error.code in _OF_GPU and call.startswith("nvmlDevice"):
                raise
            return None

    def _call(self, call: str, *args: Any, gpu: str | None = None) -> Any:
        function = getattr(self._nvml, call, None)
        if function is None:
            raise NvmlError(
                "python %s" % sys.executable,
                "its pynvml has no %s" % call,
                "Install a newer nvidia-ml-py.",
                call=call,
                gpu=gpu,
            )
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            raise self._error(call, error, gpu) from error
        except UnicodeDecodeError as error:
            return _decoded(error)

    def _label(self, gpu: str | None) -> str:
        """Return the index and UUID of a GPU for messages."""
        if gpu in self._indices:
            return "gpu %d (%s)" % (self._indices[gpu], gpu)
        return "gpu %s" % gpu if gpu else "this host"

    def _error(self, call: str, error: Any, gpu: str | None) -> NvmlError:
        gpu = None if error.value in _OF_HOST else gpu or self._gpu
        failure = NvmlError(
            self._label(gpu),
            "%s failed: %s (NVML code %d)" % (call, error, error.value),
            _CURES.get(error.value, ""),
            call=call,
            code=error.value,
            gpu=gpu,
        )
        failure.code_name = _code_name(error)
        return failure


def lost_error(where: str, gpus: Sequence[LostGpu], done: str = "") -> NvmlError:
    """Return the error for these lost GPUs, with the fix.

    `done` describes the result for other GPUs.
    """
    first = gpus[0]
    # Assume that a GPU of which NVML only reports the index has fallen off the bus.
    code = GPU_IS_LOST if first.code is None and first.index is not None else first.code
    cures = ["The kernel log may say why (dmesg, lines with NVRM and Xid)."]
    if first.minimum_driver is not None:
        cures = ["Install the driver %s or later (nvidia_driver_version)." % first.minimum_driver]
    elif code in (None, GPU_IS_LOST):
        cures = ["If a reset or power cycle does not help, check its power cable, seating and riser."]
    elif code in _CURES:
        cures = [_CURES[code]]
    if first.index is None:
        cures.append("If it is not for this driver, bind it to another one (vfio-pci).")
    cures.append("To change the other GPUs meanwhile, set gpu_layout_lost: skip.")
    failure = NvmlError(
        where,
        " and ".join(map(str, gpus)) + done,
        " ".join(cures),
        call=first.call,
        code=code,
        gpu=first.uuid or (first.pci_address if first.index is None else str(first.index)),
    )
    failure.code_name = first.code_name or ("GpuIsLost" if code == GPU_IS_LOST else None)
    return failure


def _decoded(error: UnicodeDecodeError) -> str:
    return error.object.decode(errors="replace")


def _code_name(error: Any) -> str:
    """Return NVML's name of an error code without NVML_ERROR_.

    nvidia-ml-py spells its exceptions' names in the same way.
    """
    return type(error).__name__.replace("NVMLError_", "")
