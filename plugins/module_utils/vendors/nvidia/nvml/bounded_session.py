# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run NVML calls in a child process, with a time limit for each call.

A driver that hangs blocks the calling thread in the kernel. No signal ends the thread, and its process keeps all its
files open. The child process only has its socket and the GPUs open. So if it hangs, a run can abandon it, exit, and
release the host's lock.

The child writes the name of each call to shared memory before the call. If no response arrives, the parent reads the
name.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import mmap
import os
import pickle
import re
import signal
import socket
import struct
import time
from typing import Any, Callable, Iterable, Iterator, Sequence

from ....errors import DriverAbsentError, UnansweredCallError
from ....model import Host
from ....processes import child_process
from ....processes.proc_files import read
from .calls import _binding
from .session import Observer, Session

# Time limit in seconds for calls that read. They take milliseconds, or seconds with a busy driver.
READ_SECONDS = 30.0
# Time limit in seconds for calls that initialize GPUs. Each GPU takes up to 3 s (NVIDIA's page "Driver Persistence"),
# and a host has up to 16 GPUs. nvml.h: nvmlDeviceGetHandleByIndex and ...ByUUID "cause NVML to initialize the target
# GPU".
START_SECONDS = 120.0
# Time limit in seconds for calls that change a GPU. A change of the MIG mode includes a reset, so the limit equals
# `reset.TIMEOUT_SECONDS`. NVIDIA documents no times for other calls.
CHANGE_SECONDS = 300.0
_STARTS = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandle")
_CHANGES = (
    *("nvmlDeviceSet", "nvmlDeviceCreate", "nvmlGpuInstanceCreate", "nvmlGpuInstanceDestroy"),
    "nvmlComputeInstanceDestroy",
)
_OF_A_GPU = ("nvmlDevice", "nvmlGpuInstance", "nvmlComputeInstance")
# Calls for the host whose names look like calls for a GPU.
_OF_THE_HOST = ("nvmlDeviceGetCount",)
# Layout of the shared memory: the call's start in seconds of time.monotonic(), a text with the call's name and the
# GPU's label, and the number of completed changes of the last request `change`.
_NOTE, _TEXT_BYTES, _COUNT = struct.Struct("=d256s"), 256, struct.Struct("=Q")
# Header of a message: number of the request, and length of the content.
_HEADER = struct.Struct("=QQ")
_CHUNK_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1
# Name of the child in /proc, which has at most 15 characters.
COMM = "gpu-layout-nvml"
# Children that this process abandoned and that still hang: PID, and the error that each caused.
_hanging: dict[int, UnansweredCallError] = {}
# The child for the next session, if it has already started: (note, connection, PID).
_ahead: list[tuple[CallNote, socket.socket, int]] = []


def seconds_for(call: str) -> float:
    """Return the time limit of an NVML call in seconds."""
    if call.startswith(_CHANGES):
        return CHANGE_SECONDS
    return START_SECONDS if call.startswith(_STARTS) else READ_SECONDS


def hung_children(proc: str = "/proc") -> list[int]:
    """Return the PIDs of children that earlier runs abandoned in an NVML call."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir(proc))) if _hangs("%s/%d" % (proc, pid))]  # noqa: PTH208


def _hangs(folder: str) -> bool:
    # Ignore processes of other users than root, because users can give a process this name.
    if read(folder + "/comm").rstrip("\n") != COMM:
        return False
    status = read(folder + "/status")
    return child_process.was_killed(status) and re.search(r"^Uid:(?:\s+0){4}$", status, re.MULTILINE) is not None


class CallNote:
    """Shared memory that has the child's current NVML call."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NOTE.size + _COUNT.size)

    def write(self, call: str, where: str) -> None:
        """Record the call that is about to start, and the label of its GPU or host.

        An empty `call` means that no call is running.
        """
        text = "%s\t%s" % (call, where)
        # Write the time first, so that the previous call's text never has an older time.
        self._memory[:8] = struct.pack("=d", time.monotonic())
        self._memory[8 : _NOTE.size] = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")

    def read(self) -> tuple[str, str, float]:
        """Return the call, its label and its start in seconds of time.monotonic()."""
        began, text = _NOTE.unpack(self._memory[: _NOTE.size])
        call, _unused, where = text.rstrip(b"\0").decode(errors="replace").partition("\t")
        return call, where or "this host", began

    @property
    def completed(self) -> int:
        """Return how many changes of the last request `change` are complete."""
        return int(_COUNT.unpack_from(self._memory, _NOTE.size)[0])

    @completed.setter
    def completed(self, number: int) -> None:
        _COUNT.pack_into(self._memory, _NOTE.size, number)


def _start() -> tuple[CallNote, socket.socket, int]:
    """Start a child process. Return (note of its calls, connection, PID)."""
    note, parent = CallNote(), os.getpid()
    near, far = socket.socketpair()
    with far:
        return note, near, child_process.start(lambda: _serve(far, note, parent), [far.fileno()])


def start_ahead() -> None:
    """Start the child for the next session.

    It loads pynvml while this process does other work, but makes no NVML call. If pynvml is missing, the session raises
    the error later.
    """
    if not _ahead:
        _ahead.append(_start())


def _forwarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls the child session's method of the same name."""

    @functools.wraps(method)
    def ask(self: BoundedSession, *args: Any, **named: Any) -> Any:
        return self._ask(method.__name__, *args, **named)

    return ask


class BoundedSession:
    """An NVML session in a child process, as a context manager.

    The session has the methods of `Session`, and is not thread-safe. Each method also raises UnansweredCallError if an
    NVML call does not return, or if the child ends. All later methods then raise the same error at once.
    """

    give_up = _forwarded(Session.give_up)
    memory_by_process = _forwarded(Session.memory_by_process)
    mig_mode = _forwarded(Session.mig_mode)
    set_mig_mode = _forwarded(Session.set_mig_mode)
    set_compute_mode = _forwarded(Session.set_compute_mode)

    def __init__(self) -> None:
        if not _ahead:
            # Import pynvml in this process, to report now if it is missing. The child inherits the import.
            _binding()
        #: Called in this process after the GPUs are read.
        self.observers: Sequence[Observer] = ()
        self.simulated = False
        self._child = 0
        self._number = 0
        #: Whether the response to a request is pending.
        self._waits = False
        self._received = bytearray()
        #: Whether a request may have changed a GPU.
        self._changes = False
        self._failure: UnansweredCallError | None = None

    @property
    def private(self) -> bool:
        """Return whether only this process simulates the GPUs.

        Services and containers do not see such GPUs (docs/simulator.md).
        """
        return self.simulated and "GPUSIM_STATE" in os.environ

    @property
    def completed(self) -> int:
        """Return how many changes of the last `change` are complete.

        The number is known even if the child hangs or has ended.
        """
        return self._note.completed

    def __enter__(self) -> BoundedSession:
        for child, failure in list(_hanging.items()):
            # Do not start another child while an abandoned one hangs. Otherwise, a service that polls would start more
            # and more.
            if not child_process.has_ended(child):
                raise failure
            del _hanging[child]
        self._note, self._connection, self._child = _ahead.pop() if _ahead else _start()
        try:
            self.simulated = self._ask("start")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_exc: Any) -> None:
        if self._failure is None and not self._waits:
            # Wait until the child has shut NVML down. If it hangs, raise no error, because all results have been read.
            # The next run reports the hanging driver.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + seconds_for("nvmlShutdown")
                while self._ready(deadline) and self._connection.recv(_CHUNK_BYTES):
                    pass
        self._end()

    def observe(self, telemetry: bool = False, only: str | None = None) -> Host:
        """Call `Session.observe` in the child, and the observers in this process."""
        host = self._ask("observe", telemetry, only)
        gpus = host.gpus
        for observer in self.observers:
            gpus = observer.observe(gpus)
        return dataclasses.replace(host, gpus=gpus)

    def change(self, changes: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Call `Session.change` in the child, with all changes in one message."""
        # Reset the number, because the child may end before the first change.
        self._note.completed = 0
        self._ask("change", changes)

    def perform(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the child, with its session and these arguments."""
        return self._ask("perform", function, *args)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Close all GPUs while the block runs, as in `Session.suspended`."""
        self._ask("suspend")
        try:
            yield
        finally:
            self._ask("resume")

    # ------------------------------------------------------------------ the child

    def _ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method in the child. Return its result, or raise its error."""
        if self._failure is not None:
            raise self._failure
        self._changes = self._changes or method.startswith(("set_", "change"))
        self._number += 1
        content = pickle.dumps((method, args, named), 4)
        self._waits = True
        try:
            self._connection.sendall(_HEADER.pack(self._number, len(content)) + content)
            number, answer = self._message()
            while number != self._number:
                # Skip the response to an earlier request that was interrupted, for example by Ctrl-C.
                number, answer = self._message()
        except UnansweredCallError as error:
            self._failure = error
            self._end()
            raise
        except (BrokenPipeError, ConnectionResetError):
            self._failure = self._ended()
            raise self._failure from None
        self._waits = False
        error, value = pickle.loads(answer)
        if error is not None:
            raise error
        return value

    def _message(self) -> tuple[int, bytes]:
        """Return the next response: (number of its request, content).

        Raises UnansweredCallError if the current call takes too long, or if the child has ended.
        """
        start, received = time.monotonic(), self._received
        while True:
            if len(received) >= _HEADER.size:
                number, length = _HEADER.unpack_from(received)
                end = _HEADER.size + length
                if len(received) >= end:
                    content = bytes(received[_HEADER.size : end])
                    del received[:end]
                    return number, content
            call, where, began = self._note.read()
            seconds = seconds_for(call)
            if self._ready(max(start, began) + seconds):
                chunk = self._connection.recv(_CHUNK_BYTES)
                if not chunk:
                    raise self._ended()
                received += chunk
            elif self._note.read() == (call, where, began):
                # The note shows that the child is still in the same call.
                name = call or "the process that calls NVML"
                raise self._unanswered(where, "%s did not return within %d s" % (name, seconds), call)

    def _ready(self, deadline: float) -> bool:
        """Wait until data is available. Return False at the deadline.

        The deadline is in seconds of time.monotonic().
        """
        return child_process.readable(self._connection, deadline)

    def _ended(self) -> UnansweredCallError:
        call, where, _began = self._note.read()
        self._end()
        return self._unanswered(where, "the process that called NVML ended in %s" % (call or "no call"), call)

    def _unanswered(self, where: str, problem: str, call: str) -> UnansweredCallError:
        return UnansweredCallError(where, problem, call=call or None, changes=self._changes)

    def _end(self) -> None:
        """End the child, or abandon it if it hangs in the kernel."""
        if self._child:
            child, self._child = self._child, 0
            self._connection.close()
            if not child_process.give_up(child) and self._failure is not None:
                _hanging[child] = self._failure


class _ChildSession(Session):
    """The session in the child, which records each call in the note first.

    `parent` is the connection to the process that waits for responses.
    """

    def __init__(self, note: CallNote, parent: socket.socket) -> None:
        self._note, self._parent = note, parent
        super().__init__()
        self._gpu_label = "this host"
        self._suspension: Any = None

    @property
    def completed(self) -> int:
        return self._note.completed

    @completed.setter
    def completed(self, number: int) -> None:
        self._note.completed = number

    def _noted(self, call: str, gpu: str | None = None) -> None:
        """Record the next call in the note.

        If neither the call nor the session names a GPU, the previous call's GPU is recorded.
        """
        gpu = gpu or self._gpu
        if gpu is not None:
            self._gpu_label = self._label(gpu)
        of_a_gpu = call.startswith(_OF_A_GPU) and call not in _OF_THE_HOST
        self._note.write(call, self._gpu_label if of_a_gpu else "this host")

    def _call(self, call: str, *args: Any, gpu: str | None = None) -> Any:
        self._noted(call, gpu)
        return super()._call(call, *args, gpu=gpu)

    def _optional(self, call: str, *args: Any, **options: Any) -> Any:
        self._noted(call, options.get("gpu"))
        return super()._optional(call, *args, **options)

    def change(self, changes: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """Apply changes, but stop if the parent no longer waits for the response.

        `Session.change` documents the changes. A parent that ended has closed the connection. A parent that was
        interrupted sends the next request.
        """
        super().change(each for each in changes if not child_process.readable(self._parent, 0.0))

    # ------------------------------------------------------------------ further requests of the parent

    def start(self) -> bool:
        """Start NVML. Return whether it is simulated."""
        self._noted("nvmlInit")
        self.__enter__()
        return self.simulated

    def perform(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with this session."""
        return function(self, *args)

    def suspend(self) -> None:
        """Shut NVML down until `resume`."""
        self._noted("nvmlShutdown")
        self._suspension = self.suspended()
        self._suspension.__enter__()

    def resume(self) -> None:
        """Start NVML again."""
        self._suspension.__exit__(None, None, None)


def _serve(connection: socket.socket, note: CallNote, parent: int) -> int:
    """Answer requests in the child until the parent closes its end of the socket."""
    # Let the kernel end this process when its parent ends, even while it is stopped or handles a request.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    # Disable garbage collection: it would copy every memory page that this process shares with its parent.
    gc.disable()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:  # noqa: PTH123
        file.write(COMM)
    # Load pynvml, unless this process inherited it. The first request returns the error if it is missing.
    with contextlib.suppress(DriverAbsentError):
        _binding()
    # Change the directory only after the import, because the search path may have relative entries.
    os.chdir("/")
    session: _ChildSession | None = None

    def answered(method: str, args: Any, named: Any) -> Any:
        nonlocal session
        session = session or _ChildSession(note, connection)
        return getattr(session, method)(*args, **named)

    with connection.makefile("rwb") as messages:
        while True:
            header = messages.read(_HEADER.size)
            if not header:
                break
            number, length = _HEADER.unpack(header)
            answer = _answer(answered, *pickle.loads(messages.read(length)))
            note.write("", "")
            messages.write(_HEADER.pack(number, len(answer)) + answer)
            messages.flush()
    if session is not None:
        note.write("nvmlShutdown", "this host")
        session.__exit__()
    return 0


def _answer(work: Callable[..., Any], *request: Any) -> bytes:
    """Return (error, result) of a request as bytes."""
    try:
        return pickle.dumps((None, work(*request)), 4)
    except Exception as error:
        try:
            return pickle.dumps((error, None), 4)
        except Exception:
            return pickle.dumps((RuntimeError(repr(error)), None), 4)
