# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send commands to an MPS control daemon, and read its replies.

The replies were recorded with the daemons of Debian's drivers 535.261.03 and 550.163.01. molecule/sharing queries a
real daemon.
"""

from __future__ import annotations

import subprocess
import threading
import time

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import mps_control
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.mps_control import (
    Control,
    MpsError,
    limit_command,
    rounded_limit,
)

MIB = 2**20


def answering(text, status=0, asked=None):
    def run(command, input, env):
        assert command == ["nvidia-cuda-mps-control"]
        if asked is not None:
            asked.append((input, env))
        stdout, stderr = ("", text) if status else (text, "")
        return subprocess.CompletedProcess(command, status, stdout, stderr)

    return Control(run, "/run/mps")


@pytest.mark.parametrize(
    ("method", "arguments", "command"),
    [
        ("servers", (), "get_server_list"),
        ("clients", (7,), "get_client_list 7"),
        ("percentage", (), "get_default_active_thread_percentage"),
        ("percentage", (7,), "get_active_thread_percentage 7"),
        ("set_percentage", (25,), "set_default_active_thread_percentage 25"),
        ("set_percentage", (25, 7), "set_active_thread_percentage 7 25"),
        ("limit", (1,), "get_default_device_pinned_mem_limit 1"),
        ("limit", (1, 7), "get_device_pinned_mem_limit 7 1"),
        ("set_limit", (1, 512 * MIB), "set_default_device_pinned_mem_limit 1 512M"),
        ("set_limit", (1, 512 * MIB, 7), "set_device_pinned_mem_limit 7 1 512M"),
    ],
)
def test_commands(method, arguments, command):
    asked = []
    getattr(answering("7", asked=asked), method)(*arguments)
    assert asked == [(command + "\n", {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})]


@pytest.mark.parametrize(
    ("method", "arguments", "text", "value"),
    [
        ("servers", (), "", ()),
        ("servers", (), "580\n601\n", (580, 601)),
        # This reply lists no clients. The number 5 belongs to the error message.
        ("clients", (5,), "Server 5 not found\n", ()),
        ("clients", (580,), "712\n", (712,)),
        ("percentage", (), "33.5\n", 33.5),
        ("percentage", (), "100.0\n", 100.0),
        # The daemon gives this reply while the server starts.
        ("percentage", (580,), "", None),
        ("set_percentage", (40, 5), "Server 5 not found\n", None),
        ("limit", (0,), "", None),
        ("limit", (0,), "2G\n", 2048 * MIB),
        ("limit", (0,), "700M\n", 700 * MIB),
    ],
)
def test_answers(method, arguments, text, value):
    assert getattr(answering(text), method)(*arguments) == value


@pytest.mark.parametrize(
    "text",
    [
        "Not enough privilege to execute quit command\n",
        "Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user started it or by "
        "the root user.\n",
        'Unknown command "get_server_list"\n',
        "Invalid device ordinal!\n",
    ],
)
def test_refusal_is_an_error_despite_exit_status_0(text):
    with pytest.raises(MpsError, match="refuses") as error:
        answering(text).servers()
    assert "/run/mps" in error.value.where


def test_missing_daemon():
    with pytest.raises(MpsError, match="exit status 1: Cannot find MPS control daemon process"):
        answering("Cannot find MPS control daemon process\n", 1).percentage()

    def missing(command, **_options):
        raise FileNotFoundError(2, "No such file or directory", command[0])

    with pytest.raises(MpsError, match=r"default pipe directory.*nvidia-cuda-mps-control.*Install"):
        Control(missing, None).servers()


def answering_each(*answers):
    """Return a control with these replies, and the list of the commands that it gets."""
    left, asked = list(answers), []

    def run(command, input="", **_options):
        asked.append(input.strip())
        status, text = left.pop(0)
        return subprocess.CompletedProcess(command, status, text if status == 0 else "", "" if status == 0 else text)

    return Control(run, "/run/mps"), asked


LOST = "Cannot send command to MPS control daemon process\n"


@pytest.mark.parametrize("collision", [(1, LOST), (1, ""), (0, "")])
def test_colliding_tool_is_retried(collision):
    control, asked = answering_each(collision, collision, (0, "25.0\n"))
    assert control.percentage() == 25
    assert len(asked) == 3
    control, _asked = answering_each(*[collision] * 4)
    if collision[0]:
        with pytest.raises(MpsError, match="exit status 1"):
            control.percentage()
    else:
        assert control.percentage() is None


def test_empty_server_list_needs_a_second_answer():
    control, asked = answering_each((0, ""), (0, "100.0\n"), (0, "580\n"))
    assert control.servers() == (580,)
    assert asked == ["get_server_list", "get_default_active_thread_percentage", "get_server_list"]


def test_other_failures_are_not_retried():
    control, asked = answering_each((1, "Cannot find MPS control daemon process\n"))
    with pytest.raises(MpsError, match="Cannot find"):
        control.servers()
    assert len(asked) == 1


def test_readers_of_daemons_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(mps_control, "_LOCK", str(tmp_path / "lock"))
    inside, most = [], []

    def run(command, **_options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return subprocess.CompletedProcess(command, 0, "1.0\n", "")

    readers = [threading.Thread(target=Control(run, "/run/openfleet-mps/one").percentage) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert most == [1] * 8


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (None, None),
        (700, 700),
        (1023, 1023),
        (1024, 1024),
        (1500, 1024),
        (2047, 1024),
        (2048, 2048),
        (81559, 79 * 1024),
    ],
)
def test_limits_from_one_gibibyte_are_reported_rounded(limit, shown):
    in_bytes = [None if size is None else size * MIB for size in (limit, shown)]
    assert rounded_limit(in_bytes[0]) == in_bytes[1]


def test_limit_is_sent_in_mebibytes():
    assert limit_command(0, 18 * 1024 * MIB) == "set_default_device_pinned_mem_limit 0 18432M"
