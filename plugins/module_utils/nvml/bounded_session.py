# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the driver in a child process, with a time limit for each NVML call.

A driver that hangs keeps the calling thread in the kernel, where no signal ends it, with everything that its process has open.
The child has nothing open except its socket and the GPUs, so a run that gives it up still ends and releases the host's lock.

The child writes the name of each call to shared memory before it makes the call. The parent reads that when no answer comes.
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
from typing import Any, Callable, Iterator, Sequence

from .. import child_process
from ..errors import UnansweredCallError
from ..model import Host
from ..proc_files import read
from .calls import _binding
from .session import Observer, Session

#: Seconds for a call that reads. One takes milliseconds, and a busy driver answers within seconds.
READ_SECONDS = 30.0
#: Seconds for calls that initialize GPUs. Each GPU takes up to 3 s (NVIDIA's page "Driver Persistence"), and a host has up to 16.
#: nvml.h: nvmlDeviceGetHandleByIndex and ...ByUUID "cause NVML to initialize the target GPU".
START_SECONDS = 120.0
#: Seconds for calls that change a GPU. A change of MIG mode resets it, and gets as long as a reset (`reset.TIMEOUT_SECONDS`).
#: NVIDIA documents no time for the others.
CHANGE_SECONDS = 300.0
_STARTS = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandle")
_CHANGES = (
    *("nvmlDeviceSet", "nvmlDeviceCreate", "nvmlGpuInstanceCreate", "nvmlGpuInstanceDestroy"),
    "nvmlComputeInstanceDestroy",
)
_OF_A_GPU = ("nvmlDevice", "nvmlGpuInstance", "nvmlComputeInstance")
#: The calls of a GPU's name that are about the host.
_OF_THE_HOST = ("nvmlDeviceGetCount",)
#: Shared memory: when the call began, in seconds of time.monotonic(), and its name with the GPU's label.
_NOTE, _TEXT_BYTES = struct.Struct("=d256s"), 256
#: A message: the number of the request, the length of what follows.
_HEADER = struct.Struct("=QQ")
_CHUNK_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1
#: The child's name in /proc, at most 15 letters.
COMM = "gpu-layout-nvml"
#: Children of this process that were given up and have not ended, with the error that each of them led to.
_hanging: dict[int, UnansweredCallError] = {}


def seconds_for(call: str) -> float:
    """Return how many seconds an NVML call may take."""
    if call.startswith(_CHANGES):
        return CHANGE_SECONDS
    return START_SECONDS if call.startswith(_STARTS) else READ_SECONDS


def hung_children(proc: str = "/proc") -> list[int]:
    """Return the children of earlier runs that were given up and have not ended: the driver has not returned from their calls."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir(proc))) if _hangs("%s/%d" % (proc, pid))]  # noqa: PTH208


def _hangs(folder: str) -> bool:
    # A user may name a program so. Only root's counts.
    if read(folder + "/comm").rstrip("\n") != COMM:
        return False
    status = read(folder + "/status")
    return child_process.was_killed(status) and re.search(r"^Uid:(?:\s+0){4}$", status, re.MULTILINE) is not None


class CallNote:
    """Shared memory in which a child process names the NVML call that it makes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NOTE.size)

    def write(self, call: str, where: str) -> None:
        """Name the call that begins now, with the label of its GPU or host. An empty name means no call."""
        text = "%s\t%s" % (call, where)
        # The time first: the text of the call before then has the whole limit again.
        self._memory[:8] = struct.pack("=d", time.monotonic())
        self._memory[8 : _NOTE.size] = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")

    def read(self) -> tuple[str, str, float]:
        """Return the call, the label, and when the call began, in seconds of time.monotonic()."""
        began, text = _NOTE.unpack(self._memory[: _NOTE.size])
        call, _, where = text.rstrip(b"\0").decode(errors="replace").partition("\t")
        return call, where or "this host", began


def _forwarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that has the child call this method of its Session."""

    @functools.wraps(method)
    def ask(self: BoundedSession, *args: Any, **named: Any) -> Any:
        return self._ask(method.__name__, *args, **named)

    return ask


class BoundedSession:
    """An NVML session in a child process, as a context manager. Not safe for several threads at once.

    It has the methods of `Session`. Each also raises UnansweredCallError where an NVML call does not return or ends the child.
    All later calls then raise the same error at once.
    """

    give_up = _forwarded(Session.give_up)
    memory_by_process = _forwarded(Session.memory_by_process)
    utilizations = _forwarded(Session.utilizations)
    mig_mode = _forwarded(Session.mig_mode)
    set_mig_mode = _forwarded(Session.set_mig_mode)
    set_compute_mode = _forwarded(Session.set_compute_mode)
    create_gpu_instance = _forwarded(Session.create_gpu_instance)
    destroy_gpu_instance = _forwarded(Session.destroy_gpu_instance)
    create_compute_instance = _forwarded(Session.create_compute_instance)
    destroy_compute_instance = _forwarded(Session.destroy_compute_instance)

    def __init__(self) -> None:
        # Here, so that a missing pynvml keeps its own error. The child inherits what is imported.
        _binding()
        #: Read after the GPUs, in this process.
        self.observers: Sequence[Observer] = ()
        self.simulated = False
        self._child = 0
        self._number = 0
        #: Whether a request has no answer yet.
        self._waits = False
        self._received = bytearray()
        #: Whether a request has changed, or may have changed, a GPU.
        self._changes = False
        self._failure: UnansweredCallError | None = None

    @property
    def private(self) -> bool:
        """Whether these are simulated GPUs of this process alone (docs/simulator.md), unknown to services and containers."""
        return self.simulated and "GPUSIM_STATE" in os.environ

    def __enter__(self) -> BoundedSession:
        for child, failure in list(_hanging.items()):
            # A service that asks again and again leaves one such child, and not one for each question.
            if not child_process.has_ended(child):
                raise failure
            del _hanging[child]
        self._note = CallNote()
        self._connection, far = socket.socketpair()
        with far:
            parent = os.getpid()
            self._child = child_process.start(lambda: _serve(far, self._note, parent), [far.fileno()])
        try:
            self.simulated = self._ask("start")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_exc: Any) -> None:
        if self._failure is None and not self._waits:
            # The child shuts NVML down. A hang there fails nothing: the answers were read, and the next run reports it.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + seconds_for("nvmlShutdown")
                while self._ready(deadline) and self._connection.recv(_CHUNK_BYTES):
                    pass
        self._end()

    def observe(self, telemetry: bool = False, only: str | None = None) -> Host:
        """Do what `Session.observe` does. The observers run in this process."""
        host = self._ask("observe", telemetry, only)
        gpus = host.gpus
        for observer in self.observers:
            gpus = observer.observe(gpus)
        return dataclasses.replace(host, gpus=gpus)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Close all GPUs meanwhile, as `Session.suspended` does."""
        self._ask("suspend")
        try:
            yield
        finally:
            self._ask("resume")

    # ------------------------------------------------------------------ the child

    def _ask(self, method: str, *args: Any, **named: Any) -> Any:
        """Have the child call a method. Return its result, or raise its error."""
        if self._failure is not None:
            raise self._failure
        self._changes = self._changes or method.startswith(("set_", "create_", "destroy_"))
        self._number += 1
        content = pickle.dumps((method, args, named), 4)
        self._waits = True
        try:
            self._connection.sendall(_HEADER.pack(self._number, len(content)) + content)
            number, answer = self._message()
            while number != self._number:
                # A request that was interrupted, as by Ctrl-C, left its answer.
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
        """Return the next answer with the number of its request.

        Raises UnansweredCallError where the current call takes too long, or the child has ended.
        """
        asked, received = time.monotonic(), self._received
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
            if self._ready(max(asked, began) + seconds):
                chunk = self._connection.recv(_CHUNK_BYTES)
                if not chunk:
                    raise self._ended()
                received += chunk
            elif self._note.read() == (call, where, began):
                # The child has begun no other call meanwhile.
                name = call or "the process that calls NVML"
                raise self._unanswered(where, "%s did not return within %d s" % (name, seconds), call)

    def _ready(self, deadline: float) -> bool:
        """Wait until there is something to read, or until the deadline (seconds of time.monotonic()) has passed."""
        return child_process.readable(self._connection, deadline)

    def _ended(self) -> UnansweredCallError:
        call, where, _began = self._note.read()
        self._end()
        return self._unanswered(where, "the process that called NVML ended in %s" % (call or "no call"), call)

    def _unanswered(self, where: str, problem: str, call: str) -> UnansweredCallError:
        return UnansweredCallError(where, problem, call=call or None, changes=self._changes)

    def _end(self) -> None:
        """End the child, or leave it behind where it hangs in the kernel."""
        if self._child:
            child, self._child = self._child, 0
            self._connection.close()
            if not child_process.give_up(child) and self._failure is not None:
                _hanging[child] = self._failure


class _ChildSession(Session):
    """The session of the child, which notes each call before it is made."""

    def __init__(self, note: CallNote) -> None:
        super().__init__()
        self._note = note
        self._gpu_label = "this host"
        self._suspension: Any = None

    def _noted(self, call: str, gpu: str | None = None) -> None:
        """Note the next call. Calls without a GPU of their own are about the last one named."""
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

    # ------------------------------------------------------------------ requests of the parent beside those of Session

    def start(self) -> bool:
        """Start NVML; return whether it is the simulated one."""
        self._noted("nvmlInit")
        self.__enter__()
        return self.simulated

    def suspend(self) -> None:
        """Shut NVML down until `resume`."""
        self._noted("nvmlShutdown")
        self._suspension = self.suspended()
        self._suspension.__enter__()

    def resume(self) -> None:
        """Start NVML again."""
        self._suspension.__exit__(None, None, None)


def _serve(connection: socket.socket, note: CallNote, parent: int) -> int:
    """Answer requests in the child until the parent closes its end."""
    # A child that is stopped, or that works on a request, does not outlive a parent that was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    # A collection would touch, and so copy, every page that the child shares with its parent.
    gc.disable()
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:  # noqa: PTH123
        file.write(COMM)
    session = _ChildSession(note)
    with connection.makefile("rwb") as messages:
        while True:
            header = messages.read(_HEADER.size)
            if not header:
                break
            number, length = _HEADER.unpack(header)
            method, args, named = pickle.loads(messages.read(length))
            answer = _answer(session, method, args, named)
            note.write("", "")
            messages.write(_HEADER.pack(number, len(answer)) + answer)
            messages.flush()
    note.write("nvmlShutdown", "this host")
    session.__exit__()
    return 0


def _answer(session: _ChildSession, method: str, args: Any, named: Any) -> bytes:
    """Return the result or the error of a method, as (error, result)."""
    try:
        return pickle.dumps((None, getattr(session, method)(*args, **named)), 4)
    except Exception as error:
        try:
            return pickle.dumps((error, None), 4)
        except Exception:
            return pickle.dumps((RuntimeError(repr(error)), None), 4)
