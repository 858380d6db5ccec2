# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the limiter and the stub driver, and run programs with a tenant's files.

All files are in folders that the caller passes. No file of the host is read or written.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from tests.limiter.card import Card

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "roles/vgpu_limiter/files/src"
LIBRARY = "libopenfleet-vgpu.so"
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # The inode number of the initial PID namespace on every Linux.
DEADLINE = 120  # Seconds. The value is high, because the machine may be busy.
BUILD_DEADLINE = 600  # Seconds. A build with a sanitizer takes 15 s of CPU time.


class Out:
    """A number that a CUDA call writes."""

    def __str__(self) -> str:
        return "&"


OUT = Out()


def buffer(size: int) -> str:
    """A buffer of `size` bytes that a CUDA call writes."""
    return f"*{size}"


def data(content: bytes) -> str:
    """A buffer of bytes that a CUDA call reads and may change."""
    return "@" + bytes(content).hex()


def run_make(folder: Path, build: Path, *variables: str, stamp: str = ".made") -> None:
    """Run a Makefile once.

    If several test processes need the result, only the first one runs make.
    """
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (build / stamp).exists():
            return
        command = ["make", "-s", "-j2", "-C", str(folder), f"BUILD={build}", "WERROR=-Werror", *variables]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_DEADLINE)
        assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
        (build / stamp).touch()


def compile_c(program: Path, *options: str) -> Path:
    """Compile one test program, unless it exists already."""
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / f".{program.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
            command = ["gcc", *flags, "-o", f"{program}.new", *options, "-ldl", "-lpthread"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_DEADLINE)
            assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stderr}"
            Path(f"{program}.new").rename(program)
    return program


class Built:
    """The built limiter, stub and client.

    `sanitizer` is the sanitizer of the limiter and the client (address or thread), or "".
    """

    def __init__(self, folder: Path, sanitizer: str = "") -> None:
        self.folder, self.sanitizer = folder, sanitizer
        flags = f"-fsanitize={sanitizer} -fno-sanitize-recover=all" if sanitizer else ""
        if "address" in sanitizer:
            flags += " -fno-omit-frame-pointer"
        self._library_flags = [f"CFLAGS=-O1 -g {flags}"] if flags else []
        # The stub is not under test, so it never gets the sanitizer.
        run_make(HERE / "stub", folder / "stub")
        self.client = compile_c(folder / "client/client", str(HERE / "client/client.c"), *flags.split())
        self.stub = folder / "stub"

    @property
    def library(self) -> Path:
        """Return the path of the limiter's library, which the first call builds."""
        if self.sanitizer:
            # A sanitizer calls dlsym before it has started itself, so the files that handle dlsym are built without the
            # sanitizer.
            objects = [str(self.folder / "library" / name) for name in ("driver/loader.o", "hooks/resolve.o")]
            unchecked = ["CFLAGS=-O1 -g", *objects]
            run_make(SOURCE, self.folder / "library", *unchecked, stamp=".made-resolve")
        run_make(SOURCE, self.folder / "library", *self._library_flags)
        return self.folder / "library" / LIBRARY

    @property
    def front(self) -> Path:
        """Return a folder that contains the front as libcuda.so.1, as in a container."""
        folder = self.folder / "front"
        paths = (f"FRONT_LIBRARY={self.library}", f"FRONT_DRIVER={self.stub / 'libcuda.so.1'}")
        run_make(SOURCE, folder, *paths, str(folder / "libcuda.so.1"))
        return folder

    def program(self, name: str, *options: str) -> Path:
        """Build client/NAME.c, or the source file named in the options."""
        source = HERE / f"client/{name}.c"
        sources = [source] if source.exists() else []
        return compile_c(self.folder / "client" / name, *map(str, sources), *options)

    def environment(self, preload: bool = True) -> dict[str, str]:
        """Return the variables that make a program load the limiter and find the stub."""
        preloads = [str(self.library)] if preload else []
        if "address" in self.sanitizer or "thread" in self.sanitizer:
            # The sanitizer's own library must be preloaded before all others.
            name = "libasan.so" if "address" in self.sanitizer else "libtsan.so"
            found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
            preloads.insert(0, os.path.realpath(found.stdout.strip()))
        variables = {"LD_LIBRARY_PATH": str(self.stub), "PATH": os.environ["PATH"]}
        if "address" in self.sanitizer:
            # Programs such as Python do not free all memory before they exit.
            variables["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1"
        if preloads:
            variables["LD_PRELOAD"] = " ".join(preloads)
        return variables


class CudaError(Exception):
    """Raised when a CUDA call does not return CUDA_SUCCESS."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(f"{call} answered {result}")
        self.result = result


class Client:
    """A program that makes CUDA calls on command. client/client.c lists the commands."""

    def __init__(self, built: Built, environment: dict[str, str], start: bool = True) -> None:
        self.process = subprocess.Popen(
            [str(built.client)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
        )
        self._in, self._out = self.process.stdin, self.process.stdout
        self.pid = self.process.pid
        if start:
            self.start()

    def start(self, device: int = 0) -> None:
        """Initialize CUDA and make the primary context current in the main thread."""
        self.ok("cuInit", 0)
        context = self.ok("cuDevicePrimaryCtxRetain", OUT, device)
        self.ok("cuCtxSetCurrent", context)

    def tell(self, line: str) -> str:
        """Send a command and return its answer."""
        self.send(line)
        return self.answer(line)

    def send(self, *lines: str) -> None:
        """Send commands without reading the answers."""
        self._in.write("".join(line + "\n" for line in lines))
        self._in.flush()

    def answer(self, line: str = "") -> str:
        """Return the next answer.

        `line` is the command. If the program has ended, the error message contains it.
        """
        answer = self._out.readline()
        if not answer:
            code = self.process.wait(DEADLINE) if self.process else None
            raise AssertionError(f"the client ended with {code} at: {line}")
        return answer.rstrip("\n")

    @staticmethod
    def _values(answer: str) -> tuple[int, list]:
        result, *values = answer.split()
        assert result not in ("missing", "what"), f"the client says {answer!r}"
        return int(result), [bytes.fromhex(v[1:]) if v.startswith("@") else int(v) for v in values]

    def call(self, symbol: str, *arguments: object, thread: int = 0) -> tuple[int, list]:
        """Call a function found with dlsym. Return its result and its output values."""
        prefix = f"t{thread} " if thread else ""
        return self._values(self.tell(f"{prefix}call {symbol} {' '.join(map(str, arguments))}"))

    def proc(self, name: str, version: int, flags: int, *arguments: object, thread: int = 0) -> tuple[int, list]:
        """Call a function found with cuGetProcAddress. Return its result and outputs."""
        prefix = f"t{thread} " if thread else ""
        return self._values(self.tell(f"{prefix}proc {name} {version} {flags} {' '.join(map(str, arguments))}"))

    def ok(self, symbol: str, *arguments: object, thread: int = 0) -> object:
        """Make a call that must succeed. Return its output, or a list of several outputs."""
        result, values = self.call(symbol, *arguments, thread=thread)
        if result:
            raise CudaError(symbol, result)
        return values[0] if len(values) == 1 else values

    def alloc(self, size: int, thread: int = 0) -> int:
        """Allocate memory and return the address. Raises CudaError if the call fails."""
        return self.ok("cuMemAlloc_v2", OUT, size, thread=thread)

    def free(self, address: int, thread: int = 0) -> None:
        self.ok("cuMemFree_v2", address, thread=thread)

    def memory(self) -> tuple[int, int]:
        """Return free and total memory from cuMemGetInfo."""
        return tuple(self.ok("cuMemGetInfo_v2", OUT, OUT))

    def fork(self, folder: Path) -> Forked:
        """Fork the program. Return the child, which accepts commands of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}-{len(list(folder.iterdir()))}" for name in ("in", "out")]
        for path in paths:
            os.mkfifo(path)
        return Forked(int(self.tell(f"fork {paths[0]} {paths[1]}")), *paths)

    def kill(self) -> None:
        """Kill the program, whatever it is doing, and wait until it has ended."""
        self.process.kill()
        self.process.wait(DEADLINE)

    def end(self) -> int:
        """Let the program end normally. Return its exit code."""
        self._in.close()
        code = self.process.wait(DEADLINE)
        self._out.close()
        return code

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self._in, self._out):
            stream.close()


class Forked(Client):
    """A child process that a client has forked."""

    def __init__(self, pid: int, into: Path, out: Path) -> None:
        self.process, self.pid = None, pid
        self._in = into.open("w", buffering=1)
        self._out = out.open()

    def end(self) -> int:
        self._in.close()
        self._out.close()
        return 0

    def __exit__(self, *_: object) -> None:
        self.end()


class Tenant:
    """A tenant's files in the format of gpu_layout, below a separate root folder."""

    def __init__(self, root: Path, card: Card, built: Built, name: str = "tenant-a") -> None:
        self.root, self.card, self.built, self.name = root, card, built, name
        self.folder = root / "etc/openfleet-gpu/vgpu" / name
        self.region = root / "run/openfleet-gpu/vgpu/tenants" / name / "region.1"
        self.gpus = root / "run/openfleet-gpu/vgpu/gpus"
        for folder in (self.folder, self.region.parent, self.gpus):
            folder.mkdir(parents=True, exist_ok=True)
        self.region.touch()
        self.region.chmod(0o666)
        for gpu in range(card.gpus):
            path = self.gpus / f"{card.uuid(gpu)}.1"
            path.touch()
            path.chmod(0o666)
        self.in_namespace(INITIAL_PID_NAMESPACE)
        self.log = root / f"{name}.log"

    def in_namespace(self, number: int) -> None:
        """Let programs that the tenant starts later seem to be in this PID namespace."""
        link = self.root / "proc/self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"pid:[{number}]")

    def quota(self, *memory: int, sm: int = 100, policy: str = "fixed", priority: int = 0, seat: int = 0) -> Tenant:
        """Write the quota file with the bytes for the first GPU, the second and so on.

        None means that the tenant has no part of this GPU.
        """
        lines = ["# Of a test.", "version 1", f"tenant {self.name}", f"policy {policy}", f"priority {priority}"]
        for gpu, limit in enumerate(memory):
            if limit is not None:
                lines.append(f"gpu {self.card.uuid(gpu)} memory {limit} sm {sm} seat {seat}")
        return self.write("\n".join(lines) + "\n")

    def write(self, content: str) -> Tenant:
        """Replace the quota file by renaming a new file, as the module does."""
        new = self.folder / "quota.new"
        new.write_text(content)
        new.chmod(0o644)
        new.rename(self.folder / "quota")
        return self

    def environment(self, preload: bool = True, **more: str) -> dict[str, str]:
        """Return the environment of a program of this tenant."""
        return {
            **self.built.environment(preload),
            **self.card.environment(),
            "STUB_GROUP": self.name,
            "OPENFLEET_VGPU": self.name,
            "OPENFLEET_VGPU_ROOT": str(self.root),
            "OPENFLEET_VGPU_LOG": str(self.log),
            **more,
        }

    def client(self, start: bool = True, preload: bool = True, **environment: str) -> Client:
        """Start a program of this tenant."""
        return Client(self.built, self.environment(preload, **environment), start)

    def used(self, gpu: int = 0) -> int:
        """Return the card memory that the tenant holds."""
        return self.card.used(gpu, self.name)

    def peak(self, gpu: int = 0) -> int:
        """Return the largest amount of card memory that the tenant ever held."""
        return self.card.peak(gpu, self.name)

    def logged(self) -> str:
        """Return the limiter's log."""
        return self.log.read_text() if self.log.exists() else ""
