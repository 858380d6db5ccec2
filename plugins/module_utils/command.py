# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands of the host: one rule of where they are, and of the language that they answer in.

`run_tool` asks what must answer soon. `run_to_end` also runs what must not be interrupted, such as a package manager, and knows
how long each command may take (docs/limits.md).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Mapping, Sequence

from .errors import CommandTimeoutError
from .printable import printable

#: How long a tool may take that is given no other limit, as a scheduler's whose controller does not answer.
TOOL_TIMEOUT_SECONDS = 10
#: Seconds for a command that asks something, and for one that starts or stops something: Docker's unit has no limit of its own.
QUESTION_SECONDS, CHANGE_SECONDS = 120, 600
#: Programs that install, remove or build. Interrupted, they leave something that a person may have to repair.
_TO_END = {
    *("apt-get", "apt-mark", "dpkg", "dpkg-deb", "dnf", "yum", "rpm", "dkms", "dracut", "update-initramfs", "mkinitrd"),
    *("semodule", "setsebool", "restorecon", "make", "sh", "nvidia-installer", "nvidia-uninstall", "ansible-galaxy"),
}
#: Words with which package managers only ask. They may have to load large lists first.
_ASKING = {"-q", "-qa", "-qp", "--query", "--test", "--audit", "repoquery", "history", "check", "--simulate"}
#: Programs that start or stop something, except with these words. Their callers handle a failure.
_STARTING = {"systemctl", "modprobe", "docker", "podman", "nvidia-smi"}
_ASKING_OF_STARTING = {"info", "version"}
#: The status of a command that was ended at its limit, as of timeout(1).
_TIMEOUT_STATUS = 124
#: What a tool may say: a controller of ten thousand jobs says less.
_MOST_BYTES, _CHUNK_BYTES = 1 << 25, 1 << 16
#: What was killed is gone in a moment.
_REAP_SECONDS = 2.0
#: Root's own folders count for every caller.
_ROOTS_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

#: What a command said, with its status; what one raises that does not end, and all that cannot be run.
Done, TimeoutExpired = subprocess.CompletedProcess, subprocess.TimeoutExpired
FAILURES = (OSError, TimeoutExpired)


class ToolTimeout(TimeoutExpired):
    """A tool did not end in time. Its text has the command as it is typed; the one of Python has a list."""

    def __str__(self) -> str:
        return "%s timed out after %.0f s" % (" ".join(self.cmd), self.timeout)


#: Called as run(command), or run(command, input=text, env=variables to add, timeout_seconds=number) where the runner is
#: `run_tool`.
Run = Callable[..., Done]


def search_path() -> str:
    """Return the folders in which programs are looked for. The current one is never among them."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([folder for folder in (*folders, *_ROOTS_FOLDERS) if folder])


def program(name: str) -> str | None:
    """Return the path of a program, None if it is not installed."""
    # Imported here, because it loads the libraries of all compressions.
    import shutil

    return shutil.which(name, path=search_path())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a command: English, no questions, and the variables of `more`."""
    rules = {"LANG": "C", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    return dict(os.environ, PATH=search_path(), **{**rules, **(more or {})})


def seconds_for(command: Sequence[str]) -> float | None:
    """Return how many seconds a command may take; None for one that must not be interrupted."""
    name = os.path.basename(command[0])  # noqa: PTH119
    if name in _TO_END or name.startswith("python"):
        return None if _ASKING.isdisjoint(command[1:]) else CHANGE_SECONDS
    return CHANGE_SECONDS if _starts(command) else QUESTION_SECONDS


def _starts(command: Sequence[str]) -> bool:
    """Return whether a command starts or stops something."""
    return os.path.basename(command[0]) in _STARTING and _ASKING_OF_STARTING.isdisjoint(command[1:])  # noqa: PTH119


def run_to_end(command: Sequence[str], input: str = "", env: Mapping[str, str] | None = None) -> Any:
    """Run a command within its limit, or to its end. Return its status, 127 if it is not installed, and its output.

    A command that starts or stops something has status 124 where it does not end within its limit. Raises CommandTimeoutError for
    one that asks: no answer is not an answer.
    """
    seconds = seconds_for(command)
    if seconds is None:
        return _run_unlimited(command, input, env)
    try:
        return run_tool(command, input, env, seconds)
    except FileNotFoundError:
        return Done(list(command), 127, "", "%s is not installed" % command[0])
    except TimeoutExpired:
        problem = "%s did not end within %d s" % (" ".join(command), seconds)
        if _starts(command):
            return Done(list(command), _TIMEOUT_STATUS, "", problem)
        raise CommandTimeoutError("this host", problem, "Find out why it hangs there, and run again.") from None


def _run_unlimited(command: Sequence[str], input: str, env: Mapping[str, str] | None) -> Any:
    given: Any = {"input": input} if input else {"stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(
            list(command),
            **given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment(env),
            check=False,
        )
    except FileNotFoundError:
        return Done(list(command), 127, "", "%s is not installed" % command[0])


def run_tool(
    command: Sequence[str],
    input: str = "",
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = TOOL_TIMEOUT_SECONDS,
) -> Any:
    """Run a tool of the host. Raises FileNotFoundError where it is not installed, TimeoutExpired where it does not end.

    That goes for one that hangs and for one that never stops talking: it is killed with all that it started. `input` is a line or
    two.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(env),
        start_new_session=True,
    )
    deadline = time.monotonic() + timeout_seconds
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(input.encode())
        said = _read((process.stdout, process.stderr), deadline)
        if said is None:
            raise ToolTimeout(command, timeout_seconds)
        process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # One that hangs in the kernel is not waited for.
        with contextlib.suppress(TimeoutExpired):
            process.wait(_REAP_SECONDS)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            stream.close()
    return Done(command, process.returncode, *said)


def _read(streams: Sequence[Any], deadline: float) -> list[str] | None:
    """All that they say; None where that is too much, or takes too long."""
    found = {stream: bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                found[key.fileobj] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(found[key.fileobj]) > _MOST_BYTES:
                    return None
    return [text.decode(errors="replace") for text in found.values()]


def ask(run: Run, command: Sequence[str], **options: Any) -> tuple[str | None, str]:
    """(output, "") of a tool, or (None, why there is none). Raises FileNotFoundError where it is not installed."""
    try:
        done = run(command, **options)
    except TimeoutExpired as error:
        return None, str(ToolTimeout(command, error.timeout))
    except PermissionError as error:
        return None, "%s failed: %s" % (" ".join(command), error)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        return None, "%s failed with exit status %d: %s" % (" ".join(command), done.returncode, printable(said[:200]))
    return done.stdout, ""
