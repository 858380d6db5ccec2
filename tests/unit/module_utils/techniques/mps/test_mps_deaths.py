# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the deaths of MPS servers from the log of their daemon.

data/mps/*.log are logs of the daemon of release 535.261.03. no-driver.log is from a machine without a driver, on which
each server ends at once. For killed.log, `sleep` replaced the server program: a signal killed one server, and the other
server ended with the daemon.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.server_deaths import DIRECTORY, count, follow

DATA = Path(__file__).parents[3] / "data" / "mps"


def log(name):
    return (DATA / name).read_text().splitlines()


def lines(*texts, pid="64"):
    return ["[2024-12-10 06:38:01.120 Control %5s] %s" % (pid, text) for text in texts]


@pytest.mark.parametrize("name", ["no-driver.log", "killed.log"])
def test_only_unexpected_server_deaths_count(name):
    assert follow(log(name), {})["deaths"] == 1


def test_lines_read_twice_count_once():
    for name in ("no-driver.log", "killed.log"):
        for cut in range(len(log(name))):
            state = json.loads(json.dumps(follow(log(name)[:cut], {})))
            assert follow(log(name)[cut:], state) == follow(log(name), {}), cut


ONE = (
    "NEW CLIENT 0 from user 1001: Server is not ready, push client to pending list",
    "Starting new server 92 for user 1001",
)
FATAL = ("Server encountered a fatal exception. Shutting down", "Server 92 exited with status 1")
OTHER = "NEW CLIENT 7 from user 1002: Server is not ready, push client to pending list"


@pytest.mark.parametrize(
    ("texts", "deaths"),
    [
        ((*ONE, *FATAL), 1),
        # The daemon keeps running, and each server that it starts dies.
        ((*ONE, *FATAL, "Starting new server 95 for user 1001", FATAL[0], "Server 95 exited with status 1"), 2),
        # The daemon ended an idle server because another user has a client.
        ((*ONE, OTHER, "Server 92 exited with status 0", "Starting new server 99 for user 1002"), 0),
        # The same user has a client that waits, so the daemon did not end the server: it was killed.
        ((*ONE, ONE[0], "Server 92 exited with status 0"), 1),
        # A server that crashes while another user waits counts as a death.
        ((*ONE, OTHER, *FATAL), 1),
        ((*ONE, "Cmd:shutdown_server 92", "Server 92 exited with status 0"), 0),
        # The server started before the first scan. Its exit status 0 does not show whether it was killed.
        (("Server 92 exited with status 0",), 0),
        (("Server 92 exited with status 134",), 1),
        ((*ONE, "quit command issued with timeout of 10", "Server 92 exited with status 1"), 0),
        # Any user may send `quit`, but only root's takes effect.
        ((*ONE, "Cmd:quit", "Not enough privilege to execute quit command", "Server 92 exited with status 1"), 1),
        (("quit command issued", "Starting control daemon using socket /x", *ONE, *FATAL), 1),
        # These log lines have the same words, but are not about the end of a server.
        (("Cmd:Server 5 exited with status 1", 'Unknown command "Server 5 exited with status 1"'), 0),
    ],
)
def test_log_lines_that_count_as_a_death(texts, deaths):
    assert follow(lines(*texts), {})["deaths"] == deaths


def test_lines_of_other_processes_are_ignored():
    assert follow(["Server 5 exited with status 1", "[x Server 5] Server 5 exited with status 1"], {})["deaths"] == 0


def test_saved_state_is_limited():
    state = follow(lines(*("Starting new server %d for user 1" % pid for pid in range(500))), {})
    assert len(state["users"]) <= 64


class Journal:
    """The journal of a unit, queried like journalctl. An entry's number is its cursor."""

    def __init__(self):
        self.entries, self.broken, self.asked = [], False, []

    def __call__(self, command, **_options):
        assert command[0] == "journalctl"
        self.asked.append(command)
        if self.broken:
            return subprocess.CompletedProcess(command, 1, "", "Failed to open files")
        after = [word.partition("=")[2] for word in command if word.startswith("--after-cursor=")]
        new = self.entries[int(after[0]) if after else 0 :]
        shown = "".join(line + "\n" for line in new)
        return subprocess.CompletedProcess(
            command, 0, shown + ("-- cursor: %d\n" % len(self.entries) if new else ""), ""
        )


@pytest.fixture
def counted(tmp_path):
    journal = Journal()
    (tmp_path / DIRECTORY).mkdir(parents=True)

    def look(*names):
        return count(tmp_path, journal, names or ("inference",), now=1700000000)

    look.journal, look.folder = journal, tmp_path / DIRECTORY
    return look


def test_counter_continues_in_new_processes(counted):
    assert counted() == {"inference": 0}
    assert counted.journal.asked == []
    counted.journal.entries += lines(*ONE, *FATAL)
    assert counted() == {"inference": 1}
    assert "--since=@1700000000" in counted.journal.asked[-1]
    # Only lines count that journald attributes to root and to the daemon's unit.
    assert counted.journal.asked[-1][-2:] == ["_SYSTEMD_UNIT=openfleet-mps@inference.service", "_UID=0"]
    assert counted() == {"inference": 1}
    counted.journal.entries += lines("Starting new server 95 for user 1001", "Server 95 exited with status 1")
    assert counted() == {"inference": 2}
    assert counted() == {"inference": 2}


def test_message_like_a_cursor_is_ignored(counted):
    counted()
    counted.journal.entries += ["-- cursor: 7", *lines(*FATAL)]
    assert counted() == {"inference": 1} == counted()


def test_unreadable_journal_omits_the_counter_and_loses_nothing(counted):
    counted()
    counted.journal.entries += lines(*FATAL)
    counted.journal.broken = True
    assert counted() == {}
    counted.journal.broken = False
    assert counted() == {"inference": 1}


def test_unprivileged_scan_exports_no_counter(counted, tmp_path):
    counted()
    counted.journal.entries += lines(*FATAL)
    with (counted.folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert counted() == {}
    assert counted() == {"inference": 1}
    assert count(tmp_path / "other", counted.journal, ("inference",)) == {}


def test_damaged_counts_restart_and_removed_daemons_are_dropped(counted):
    counted("inference", "small")
    counted("inference")
    assert list(json.loads((counted.folder / "mps-servers.json").read_text())["daemons"]) == ["inference"]
    (counted.folder / "mps-servers.json").write_text("{")
    assert counted() == {"inference": 0}
