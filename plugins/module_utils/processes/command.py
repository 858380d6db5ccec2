# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands on the host with a fixed search path, language and time limit.

`run_tool` is for commands that must answer soon. `run_to_end` is also for commands that must not be interrupted, such
as package managers, and has a time limit for each kind of command (docs/limits.md).
"""

# Modules and programs without Ansible run commands here.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Mapping, Sequence

from ..errors import CommandTimeoutError
from ..printable import printable

#: Default time limit for a tool. A scheduler's tool may wait this long for a controller that is down.
TOOL_TIMEOUT_SECONDS = 10
#: Time limits for queries, and for commands that start or stop something. For example, Docker's unit has no limit
#: itself.
QUESTION_SECONDS, CHANGE_SECONDS = 120, 600
#: Programs that install, remove or build something. An interruption may require a manual repair.
_TO_END = {
    *("apt-get", "apt-mark", "dpkg", "dpkg-deb", "dnf", "yum", "rpm", "dkms", "dracut", "update-initramfs", "mkinitrd"),
    *("semodule", "setsebool", "restorecon", "make", "sh", "nvidia-installer", "nvidia-uninstall", "ansible-galaxy"),
}
#: Arguments with which a package manager only runs a query. It may load large lists first.
_ASKING = {"-q", "-qa", "-qp", "--query", "--test", "--audit", "repoquery", "history", "check", "--simulate"}
#: Programs that start or stop something, except with the arguments below. Their callers handle failures.
_STARTING = {"systemctl", "modprobe", "docker", "podman", "nvidia-smi"}
_ASKING_OF_STARTING = {"info", "version"}
#: Exit status for a command that exceeded its time limit, as in timeout(1).
_TIMEOUT_STATUS = 124
#: Maximum output of a tool in bytes, and bytes per read. The output of a controller with ten thousand jobs is smaller.
_MOST_BYTES, _CHUNK_BYTES = 1 << 25, 1 << 16
#: Seconds for a killed process to end.
_REAP_SECONDS = 2.0
#: Folders with root's programs, which are always searched.
_ROOTS_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

#: Done is the result of a command, and TimeoutExpired the error of a command that does not end. FAILURES are all errors
#: of commands that cannot be run.
Done, TimeoutExpired = subprocess.CompletedProcess, subprocess.TimeoutExpired
FAILURES = (OSError, TimeoutExpired)


class ToolTimeout(TimeoutExpired):
    """A tool did not end in time.

    The error's text shows the command as it would be typed, not as a Python list.
    """

    def __str__(self) -> str:
        return "%s timed out after %.0f s" % (" ".join(self.cmd), self.timeout)


#: Signature: run(command, input=text, env=additional variables). `run_tool` also takes timeout_seconds.
Run = Callable[..., Done]


def search_path() -> str:
    """Return the search path for programs. It never includes the current folder."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([folder for folder in (*folders, *_ROOTS_FOLDERS) if folder])


def program(name: str) -> str | None:
    """Return the path of a program, or None if it is not installed."""
    # Import shutil here, because it loads all compression libraries.
    import shutil

    return shutil.which(name, path=search_path())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a command.

    Sets English output, disables prompts, and adds the variables in `more`.
    """
    rules = {"LANG": "C", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    return dict(os.environ, PATH=search_path(), **{**rules, **(more or {})})


def seconds_for(command: Sequence[str]) -> float | None:
    """Return the time limit for a command in seconds.

    Returns None if the command must never be interrupted.
    """
    name = os.path.basename(command[0])  # noqa: PTH119
    if name in _TO_END or name.startswith("python"):
        return None if _ASKING.isdisjoint(command[1:]) else CHANGE_SECONDS
    return CHANGE_SECONDS if _starts(command) else QUESTION_SECONDS


def _starts(command: Sequence[str]) -> bool:
    """Return whether a command starts or stops something."""
    return os.path.basename(command[0]) in _STARTING and _ASKING_OF_STARTING.isdisjoint(command[1:])  # noqa: PTH119


def run_to_end(command: Sequence[str], input: str = "", env: Mapping[str, str] | None = None) -> Any:
    """Run a command and return its exit status and output.

    The time limit is `seconds_for(command)`. The status is 127 if the command is not installed, and 124 if a command
    that starts or stops something exceeds its limit. Raises CommandTimeoutError if a query exceeds its limit, because a
    missing answer must not look like an empty one.
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
        raise CommandTimeoutError("this host", problem, "Find out why it hangs, and run again.") from None


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
    """Run a tool on the host and return its exit status and output.

    `input` may have at most a few lines. Raises FileNotFoundError if the tool is not installed. If it hangs or prints
    too much, kills it with its children and raises TimeoutExpired.
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
        texts = _read((process.stdout, process.stderr), deadline)
        if texts is None:
            raise ToolTimeout(command, timeout_seconds)
        process.wait(max(0.0, deadline - time.monotonic()))
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # The process may hang in the kernel.
        with contextlib.suppress(TimeoutExpired):
            process.wait(_REAP_SECONDS)
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            stream.close()
    return Done(command, process.returncode, *texts)


def _read(streams: Sequence[Any], deadline: float) -> list[str] | None:
    """Return the content of the streams.

    Returns None after the deadline, or if the output exceeds the size limit.
    """
    contents = {stream: bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                contents[key.fileobj] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(contents[key.fileobj]) > _MOST_BYTES:
                    return None
    return [text.decode(errors="replace") for text in contents.values()]


def ask(run: Run, command: Sequence[str], **options: Any) -> tuple[str | None, str]:
    """Run a tool. Return (output, "") or (None, problem).

    Raises FileNotFoundError if the tool is not installed.
    """
    try:
        done = run(command, **options)
    except TimeoutExpired as error:
        return None, str(ToolTimeout(command, error.timeout))
    except PermissionError as error:
        return None, "%s failed: %s" % (" ".join(command), error)
    if done.returncode != 0:
        message = " ".join((done.stderr or done.stdout).split())
        return None, "%s failed with exit status %d: %s" % (
            " ".join(command),
            done.returncode,
            printable(message[:200]),
        )
    return done.stdout, ""
