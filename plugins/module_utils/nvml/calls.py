# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calling NVML: the only file that imports pynvml (the package nvidia-ml-py).

Every failure becomes an NvmlError that names the call, NVML's code and the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import stat
import sys
import types
from pathlib import Path
from typing import Any, Iterator, Sequence, TypeVar

from ..errors import DriverAbsentError, NvmlError
from ..model import LostGpu

#: Where the role gpu_layout puts pynvml.py, for whatever interpreter Ansible happens to use.
BINDING_DIRECTORY = "/usr/local/lib/openfleet-gpu/python"
#: Interpreters for which distributions package pynvml (python3-pynvml on Debian and Ubuntu).
INTERPRETERS = ("/usr/bin/python3", "/usr/libexec/platform-python")

#: Return codes that are answers rather than faults (nvml.h, nvmlReturn_t).
SUCCESS, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 3, 4, 6
FUNCTION_NOT_FOUND, RESET_REQUIRED, IN_USE = 13, 16, 19
UNINITIALIZED, INVALID_ARGUMENT, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 1, 2, 9, 12
INSUFFICIENT_POWER, IRQ_ISSUE, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 8, 11, 15, 18, 999
_ABSENT = (NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND)

# Codes that are about the driver or its library, also where a call for one GPU returns them.
_OF_HOST = (UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, VERSION_MISMATCH)
# Codes that are about a GPU as a whole, whichever call returns them.
_OF_GPU = (INSUFFICIENT_POWER, IRQ_ISSUE, GPU_IS_LOST, RESET_REQUIRED)

_CURES = {
    NO_PERMISSION: "Run as root (become: true).",
    IN_USE: "Something still uses it; see gpu_info for the processes.",
    RESET_REQUIRED: "Reset the GPU or reboot the host.",
    INSUFFICIENT_POWER: "Connect the power cables of the card.",
    GPU_IS_LOST: "The GPU has fallen off the bus; look at the kernel log and power-cycle the host.",
    VERSION_MISMATCH: "The driver was upgraded under its loaded kernel module: reload the module or reboot the host.",
}

#: Longer than any list of instances or placements of a GPU (at most 15 GPU instances of 8 compute instances each).
_LIST_LENGTH = 32


#: What the kernel shows while the driver is loaded.
_LOADED = "/proc/driver/nvidia/version"


def driver_loaded() -> bool:
    """Whether the host has a driver that NVML could ask, known without pynvml."""
    if Path(_LOADED).exists():
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def respawn_with_pynvml() -> None:
    """Run the module again under an interpreter that has pynvml, if there is one; does not come back then."""
    # The command gpu-layout runs without Ansible.
    from ansible.module_utils.common.respawn import has_respawned, probe_interpreters_for_module, respawn_module

    if not has_respawned():
        interpreter = probe_interpreters_for_module(list(INTERPRETERS), "pynvml")
        if interpreter:
            respawn_module(interpreter)


def lend(source: str) -> None:
    """Use this text of pynvml.py in this process, where the host has no pynvml. Nothing of it is written to the host."""
    try:
        _binding()
    except DriverAbsentError:
        module = types.ModuleType("pynvml")
        sys.modules["pynvml"] = module
        exec(compile(source, "pynvml.py (lent by the controller)", "exec"), module.__dict__)


def installed_binding() -> str:
    """Return the SHA-256 of the pynvml.py that the role gpu_layout put into BINDING_DIRECTORY, in hexadecimal digits.

    Empty where it is not as the role leaves it, a regular file of root with mode 0644, or where others than root may replace it.
    """
    # Most modules do without.
    import hashlib

    file = Path(BINDING_DIRECTORY) / "pynvml.py"
    try:
        status, folder = file.lstat(), file.parent.lstat()
        if (status.st_uid, status.st_gid, status.st_mode) != (0, 0, stat.S_IFREG | 0o644):
            return ""
        # Made below a directory of Debian's group staff, it has that group and the set-group-id bit, which do no harm.
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != 0 or folder.st_mode & 0o022:
            return ""
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _binding() -> Any:
    """pynvml, from BINDING_DIRECTORY or the interpreter's own path. Raises DriverAbsentError with call=import."""
    # What the role installed goes before what the interpreter happens to have, which may be years old.
    sys.path.insert(0, BINDING_DIRECTORY)
    try:
        import pynvml
    except ImportError:
        raise DriverAbsentError(
            "python %s" % sys.executable,
            "the Python module pynvml (package nvidia-ml-py) is not there",
            "Let the role gpu_layout install it (gpu_layout_nvml_source), or install nvidia-ml-py for this interpreter.",
            call="import",
        ) from None
    finally:
        sys.path.remove(BINDING_DIRECTORY)
    return pynvml


#: The class that was started: `with Session() as session` gives a Session.
Started = TypeVar("Started", bound="Calls")


class Calls:
    """NVML from its start to its end, as a context manager, and the ways to call it."""

    def __init__(self) -> None:
        self._nvml = _binding()
        self._handles: dict[str, Any] = {}
        #: NVML's index of each UUID that was seen, for messages.
        self._indices: dict[str, int] = {}
        #: The GPU that calls are about which do not name one: its UUID, or its index where that is all there is.
        self._gpu: str | None = None

    def __enter__(self: Started) -> Started:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            # The library alone, as in a container, may not know that there is no driver.
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
        """Let go of all GPUs meanwhile: a reset is refused while any client, this one too, has the GPU open."""
        self._nvml.nvmlShutdown()
        self._handles.clear()
        try:
            yield
        finally:
            self._call("nvmlInit")

    def _list(self, item: Any, call: str, owner: Any, profile_id: int, optional: bool = False) -> list[Any]:
        """Call a list function that fills a buffer of `item` for a profile of a device or of a GPU instance."""
        buffer, count = (item * _LIST_LENGTH)(), ctypes.c_uint(_LIST_LENGTH)
        ask = self._optional if optional else self._call
        if ask(call, owner, profile_id, buffer, ctypes.byref(count)) is None:
            return []
        return [buffer[i] for i in range(count.value)]

    def _optional(self, call: str, *args: Any, also: tuple[int, ...] = ()) -> Any:
        """The call's result, or None where NVML answers that this GPU, driver or caller does not have it."""
        function = getattr(self._nvml, call, None)
        if function is None:
            # An nvidia-ml-py older than the call.
            return None
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            if error.value in _ABSENT or error.value in also:
                return None
            raise self._error(call, error, None) from error
        except UnicodeDecodeError as error:
            # nvidia-ml-py takes any text for UTF-8, and users choose what their programs are called.
            return _decoded(error)

    @contextlib.contextmanager
    def _about(self, gpu: str) -> Iterator[None]:
        """Let calls meanwhile be about this GPU, also those on its instances: their errors name it."""
        before, self._gpu = self._gpu, gpu
        try:
            yield
        finally:
            self._gpu = before

    def _told(self, call: str, *args: Any) -> Any:
        """Return the call's result, or None if it fails: for optional figures.

        Raises NvmlError where the code says that the GPU as a whole is at fault.
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
        """How messages name the GPU: people know its index, and only the UUID stays the same."""
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
    """Return the error that names these GPUs, with what to do. `done` is what became of the others."""
    first = gpus[0]
    # The code of a GPU about which nothing else is known.
    code = GPU_IS_LOST if first.code is None and first.index is not None else first.code
    cures = ["The kernel log may say why (dmesg, lines with NVRM and Xid)."]
    if code in (None, GPU_IS_LOST):
        cures = ["If a reset or power cycle does not bring it back, check its power cable, seating and riser."]
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
    """NVML's name of the code without NVML_ERROR_, as nvidia-ml-py spells it in its exceptions."""
    return type(error).__name__.replace("NVMLError_", "")
