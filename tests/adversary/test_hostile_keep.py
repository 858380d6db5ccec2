# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attack a real service of `gpu-layout keep` as users with other user ids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cli import keep as cli_keep
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import server as keep_server
from ansible_collections.openfleet.gpu.plugins.module_utils.keep.keeps import KeepError
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import passed_files
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.child_process import readable
from tests.adversary.attackers import ALICE, BOB, PYTHON, process, public_folder
from tests.adversary.keep_host import PATIENCE_SECONDS, KeepHost, heard, wait_for
from tests.integration.simulated_host import SimulatedHost

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="processes of several users are started as root")
#: A user whose primary group has no other members on any machine.
DAEMON = 1


@pytest.fixture(scope="module")
def library():
    with public_folder() as folder:
        yield SimulatedHost.build(folder).library


@pytest.fixture(scope="module")
def shared(library):
    with public_folder() as folder:
        made = KeepHost(folder, library, groups=("daemon", "of-no-host"))
        yield made
        made.close()


@pytest.fixture
def host(shared):
    yield shared
    assert shared.service.poll() is None, shared.log.read_text()
    assert "Traceback" not in shared.log.read_text()
    for row in shared.kept():
        assert shared.keep("--end", row["name"].rpartition(" ")[2]).returncode == 0


@pytest.fixture
def pid(host):
    with host.holder(ALICE) as found:
        yield found


def test_owner_can_keep_list_renew_and_end(host, pid):
    done = host.keep(pid, "3d", user=ALICE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"pid {pid} is kept until ") and f"gpu-layout keep --end {pid}" in done.stdout
    (first,) = host.kept()
    assert (first["uid"], first["kind"], first["identity"].split()[0]) == (ALICE, "process", str(pid))
    assert first["until"] == pytest.approx(first["made"] + 3 * 86400)
    assert host.state.joinpath("reclaim/keeps.json").stat().st_mode & 0o077 == 0
    assert host.keep(pid, "12h", user=ALICE).returncode == 0
    (renewed,) = host.kept()
    assert renewed["until"] < first["until"]
    assert f"pid {pid}  until " in host.keep("--list", user=ALICE).stdout
    assert "is no longer kept" in host.keep("--end", pid, user=ALICE).stdout
    assert host.kept() == []
    assert host.keep("--list", user=ALICE).stdout == "Nothing of yours is kept on this host.\n"


def test_other_users_can_neither_keep_nor_end_nor_see_it(host, pid):
    done = host.keep(pid, "3d", user=BOB)
    assert done.returncode == 1 and f"it belongs to uid {ALICE}" in done.stderr
    assert "Ask a member of the group daemon or of-no-host" in done.stderr and host.kept() == []
    assert host.keep(pid, "3d", user=ALICE).returncode == 0
    assert "you have no keep with this name" in host.keep("--end", pid, user=BOB).stderr
    assert "Nothing of yours" in host.keep("--list", user=BOB).stdout
    assert [row["uid"] for row in host.kept()] == [ALICE]


@pytest.mark.parametrize("user", [0, DAEMON])
def test_root_and_members_of_the_groups_can_keep_for_others(host, pid, user):
    assert host.keep(pid, "1d", user=user).returncode == 0
    assert [row["uid"] for row in host.kept()] == [user]
    assert f"pid {pid}  until " in host.keep("--list", user=user).stdout


def test_process_without_gpu_is_not_kept(host, pid):
    with subprocess.Popen([str(PYTHON), "-c", "input()"], stdin=subprocess.PIPE, user=BOB) as mine:
        done = host.keep(mine.pid, "3d", user=BOB)
        mine.kill()
    assert done.returncode == 1 and "no process with this pid holds a GPU" in done.stderr
    for name in ("none", "none.service", "999999999"):
        assert host.keep(name, "3d", user=ALICE).returncode == 1
    assert host.kept() == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("x", "8d"), "lasts at most 7 days"),
        (("x", "3"), "not a duration"),
        (("x", "0d"), "not a duration"),
        (("x",), "it needs a name and a length of time"),
        ((), "it needs a name and a length of time"),
        (("x", "3d", "--list"), "it needs a name and a length of time"),
        (("x" * 256, "3d"), "names no service"),
        (("x" * 5000, "3d"), "too long"),
        (("../../etc", "3d"), "names no service"),
        (("x\ny", "3d"), "names no service"),
        (("-- x", "3d"), "names no service, container or process|no service or container"),
    ],
)
def test_errors_say_what_to_do(host, words, why):
    import re

    done = host.keep(*(["--"] if words and words[0][:1] == "-" else []), *words, user=DAEMON)
    assert done.returncode == 1 and re.search(why, done.stderr), done.stderr
    assert "Traceback" not in done.stderr and host.kept() == []


GOOD = {"op": "keep", "name": "x", "seconds": 3600}
BAD = {
    "empty": b"\n",
    "no JSON": b"keep x 3d\n",
    "not UTF-8": b"\xff\xfe\n",
    "a NUL": b'{"op": "list"}\0\n',
    "no object": b"[]\n",
    "deep": b"[" * 4000 + b"\n",
    "another operation": b'{"op": "apply"}\n',
    "an operation of another type": b'{"op": ["keep"]}\n',
    "a user of its choice": json.dumps({**GOOD, "uid": 0}).encode() + b"\n",
    "a pid of its choice": json.dumps({**GOOD, "pid": 1}).encode() + b"\n",
    "seconds as text": json.dumps({**GOOD, "seconds": "3600"}).encode() + b"\n",
    "true for a number": json.dumps({**GOOD, "seconds": True}).encode() + b"\n",
    "no time": json.dumps({**GOOD, "seconds": 0}).encode() + b"\n",
    "less than none": json.dumps({**GOOD, "seconds": -86400}).encode() + b"\n",
    "for ever": b'{"op": "keep", "name": "x", "seconds": 1e400}\n',
    "a large number": b'{"op": "keep", "name": "x", "seconds": 1%s}\n' % (b"0" * 3000),
    "too long": b'{"op": "end", "name": "%s"}\n' % (b"x" * 8192),
    "endless": b"x" * 1_000_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_invalid_request_is_refused(host, data):
    said = host.say(data)
    # If a client sends more than is read, the kernel may reset the connection before the response arrives.
    assert set(said) == {"error"} or (not said and len(data) > 4096), said
    assert host.kept() == []


@pytest.fixture
def fresh(library):
    """Return a service before its first request."""
    with public_folder() as folder:
        made = KeepHost(folder, library)
        yield made
        made.close()
        assert "Traceback" not in made.log.read_text()


# A refused client can read the response, even if the service closed the connection before the request was sent.
SLOW = """
import contextlib, socket, sys
path, count = sys.argv[1], int(sys.argv[2])
held = [socket.socket(socket.AF_UNIX) for _ in range(count)]
for one in held:
    one.connect(path)
    with contextlib.suppress(BrokenPipeError):
        one.sendall(b'{"op": ')
print("open", flush=True)
for one in held:
    one.settimeout(120)
    print(one.recv(65536).decode().strip(), flush=True)
"""


def test_unfinished_request_does_not_block_others(fresh):
    with subprocess.Popen(
        [str(PYTHON), "-c", SLOW, str(fresh.socket), "5"], user=BOB, group=BOB, extra_groups=[],
        stdout=subprocess.PIPE, text=True,
    ) as slow:  # fmt: skip
        assert slow.stdout.readline() == "open\n"
        assert fresh.keep("--list", user=ALICE).returncode == 0
        said = [
            json.loads(line)["error"]["problem"] for line in slow.communicate(timeout=PATIENCE_SECONDS)[0].splitlines()
        ]
    assert sorted(said) == ["it did not arrive within 5 seconds"] * 2 + ["there are too many requests at once"] * 3


# Fills the socket's queue faster than the service empties it, and requests as much as possible.
FLOOD = """
import socket, sys, threading
path = sys.argv[1]

def fill():
    held = []
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        try:
            one.connect(path)
        except OSError:
            one.close()
            continue
        held.append(one)
        if len(held) > 200:
            held.pop(0).close()

for _number in range(4):
    threading.Thread(target=fill, daemon=True).start()
print("open", flush=True)
sys.stdin.read()
"""


def test_flood_of_one_user_fails_no_request_of_another(fresh):
    """Check that no other user's request fails.

    With a full queue, a client that does not wait is refused at once.
    """
    with process(PYTHON, "-c", FLOOD, fresh.socket, user=BOB):
        done = [fresh.keep("--list", user=ALICE) for _number in range(5)]
    assert [one.returncode for one in done] == [0] * 5, [one.stderr for one in done]


def test_rejected_request_is_sent_again(fresh):
    """Send a rejected request again.

    A script of the same user may be sending a request at the same time.
    """
    with subprocess.Popen(
        [str(PYTHON), "-c", SLOW, str(fresh.socket), "2"], user=ALICE, group=ALICE, extra_groups=[],
        stdout=subprocess.PIPE, text=True,
    ) as slow:  # fmt: skip
        assert slow.stdout.readline() == "open\n"
        done = fresh.keep("--list", user=ALICE)
        slow.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr


def test_unresponsive_service_is_an_error_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(cli_keep, "_SECONDS", 0.5)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        first.connect(str(tmp_path / "s"))
        with pytest.raises(KeepError, match=r"has too many requests, and accepted none for"):
            cli_keep._ask(str(tmp_path / "s"), {"op": "list"})


def test_frequent_requests_of_one_user_delay_only_that_user(fresh):
    done = [fresh.keep("--list", user=BOB) for _number in range(21)]
    assert [one.returncode for one in done] == [0] * 20 + [1]
    assert "you sent 20 requests within a minute" in done[-1].stderr
    assert fresh.keep("--list", user=ALICE).returncode == 0


def test_request_of_an_ended_process_is_refused(fresh):
    """Refuse an ended process's request.

    The process passed its connection to another process, and a third process may already have its pid.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        made = fresh.connected()
        socket.send_fds(theirs, [b"x"], [made.fileno()])
        os.kill(os.getpid(), 9)
    _data, (descriptor,), _flags, _address = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    with socket.socket(fileno=descriptor) as made:
        made.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            made.sendall(b'{"op": "list"}\n')
        said = heard(made)
    # The request is admitted only if the process was still alive.
    assert set(said) in ({"error"}, {"keeps", "log"})


@pytest.fixture
def refused():
    with socket.socket(socket.AF_UNIX) as made:
        if not passed_files.refuse(made):
            pytest.skip("this kernel passes files to every socket")


def test_file_sent_by_a_user_is_refused(fresh, refused):
    """Refuse a file that a user sends with a request.

    Closing the file may take any length of time and would block the service.
    """
    assert fresh.keep("--list", user=ALICE).returncode == 0
    with fresh.connected() as made:
        with pytest.raises(PermissionError):
            socket.send_fds(made, [b'{"op": "list"}\n'], [made.fileno()])
        made.sendall(b'{"op": "list"}\n')
        assert heard(made)["keeps"] == []


def test_file_sent_before_the_start_is_not_closed(tmp_path, refused):
    path = str(tmp_path / "keep.sock")
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with socket.socket(socket.AF_UNIX) as early:
            early.connect(path)
            socket.send_fds(early, [b"{}\n"], [writing])
        os.close(writing)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                keep_server.Server(listener, lambda _line, _uid: '{"keeps": []}').serve()
            os._exit(0)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(PATIENCE_SECONDS)
            made.connect(path)
            made.sendall(b"{}\n")
            assert heard(made) == {"keeps": []}
        assert not readable(reading, time.monotonic())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


ASKS = """
import contextlib, socket, sys
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[1])
with contextlib.suppress(BrokenPipeError):
    made.sendall(b'{"op": "list"}\\n')
print(made.recv(65536).decode().strip(), flush=True)
"""


def test_user_namespace_does_not_raise_the_limits_of_a_user(fresh):
    """Count a namespace's user ids together.

    A user has tens of thousands of user ids there, each of which would otherwise have the full limits.
    """
    within = ["unshare", "--user", "--map-root-user"]
    done = subprocess.run(
        [*within, str(PYTHON), "-c", ASKS, str(fresh.socket)], user=BOB, group=BOB, extra_groups=[], cwd="/",
        capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert json.loads(done.stdout)["error"]["problem"] == "requests from a user namespace are refused"


#: Starts a service that uses this file as its host's /etc/subuid.
WITH_SUBUID = 'file=$1; shift; mount --bind "$file" /etc/subuid && exec "$@"'
SUBORDINATE = 300005


def test_subordinate_id_outside_of_its_namespace_does_not_raise_limits(library):
    """Count a subordinate id for its account also outside the user namespace.

    The namespace's root creates a setuid file for such an id, and the user runs this file outside the namespace.
    """
    with public_folder() as folder:
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("no file of this file system sets a user id")
        (folder / "subuid").write_text("no-account:1:2\nbroken\n%d:300000:65536\n" % BOB)
        program = folder / "python"
        shutil.copy(PYTHON, program)
        os.chown(program, SUBORDINATE, SUBORDINATE)
        program.chmod(0o4755)
        inside = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", WITH_SUBUID, "-")
        made = KeepHost(folder, library, within=(*inside, str(folder / "subuid")))
        try:
            done = [
                subprocess.run(
                    [*command, "-c", ASKS, str(made.socket)], user=BOB, group=BOB, extra_groups=[], cwd="/",
                    capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS,
                ) for command in ([str(program)], [str(PYTHON)])
            ]  # fmt: skip
            refused, answered = (json.loads(one.stdout) for one in done)
            assert refused["error"]["problem"] == "requests with a subordinate user id are refused"
            assert answered["keeps"] == []
        finally:
            made.close()


def test_without_a_service_the_command_says_so(host, tmp_path):
    done = host.keep("--socket", tmp_path / "none", "--list", user=ALICE)
    assert done.returncode == 1 and "set gpu_layout_keep: true" in done.stderr


def test_journal_names_users_and_kept_processes(host, pid):
    assert host.keep(pid, "1d", user=ALICE).returncode == 0
    wait_for(lambda: f"uid {ALICE} keeps pid {pid} until" in host.log.read_text(), "a line of the journal")
