# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attack a real service of `gpu-layout lease` with invalid and false requests.

molecule/leases attacks leases on a host with systemd.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.adversary.attackers import ALICE, PYTHON, public_folder
from tests.adversary.keep_host import PATIENCE_SECONDS
from tests.adversary.lease_host import LeaseHost
from tests.integration.simulated_host import SimulatedHost

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="processes of several users are started as root")


@pytest.fixture(scope="module")
def host():
    with public_folder() as folder:
        made = LeaseHost(folder, SimulatedHost.build(folder).library)
        yield made
        assert made.service.poll() is None and "Traceback" not in made.log.read_text(), made.log.read_text()
        made.close()


GOOD = {"op": "take", "shape": {"profile": "1g.10gb"}, "gpus": 1, "seconds": None, "wait": False, "number": None}
BAD = {
    "empty": b"\n",
    "no JSON": b"lease\n",
    "not UTF-8": b"\xff\xfe\n",
    "deep": b"[" * 4000 + b"\n",
    "a user of its choice": json.dumps({**GOOD, "uid": 0}).encode() + b"\n",
    "a pid of its choice": json.dumps({**GOOD, "pid": 1}).encode() + b"\n",
    "a group of its choice": json.dumps({**GOOD, "groups": ["daemon"]}).encode() + b"\n",
    "too many GPUs": json.dumps({**GOOD, "gpus": 10**9}).encode() + b"\n",
    "for ever": b'{"op": "extend", "number": 1, "seconds": 1e400}\n',
    "another's number": b'{"op": "end", "number": 1}\n',
    "too long": b'{"op": "end", "number": %s}\n' % (b"1" * 8192),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_invalid_request_is_refused(host, data):
    answer = host.say(data)
    # If a client sends more than is read, the kernel may reset the connection before the response arrives.
    assert set(answer) == {"error"} or (not answer and len(data) > 4096), answer
    assert host.bookings() == []


ASKS = """
import contextlib, socket, sys
made = socket.socket(socket.AF_UNIX)
made.connect(sys.argv[1])
with contextlib.suppress(BrokenPipeError):
    made.sendall(sys.argv[2].encode() + b"\\n")
print(made.recv(65536).decode().strip(), flush=True)
"""


def ask(host, *within: str, groups: tuple[int, ...] = ()) -> dict:
    done = subprocess.run(
        [*within, str(PYTHON), "-c", ASKS, str(host.socket), json.dumps(GOOD)], user=ALICE, group=ALICE,
        extra_groups=list(groups), cwd="/", capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    return json.loads(done.stdout)["error"]


def test_groups_of_the_process_are_no_evidence(host):
    """Ignore the groups that a process claims to have."""
    assert "no entry offers leases to uid:%d" % ALICE in ask(host, groups=(1,))["problem"]


def test_root_of_a_user_namespace_is_refused(host):
    problem = ask(host, "unshare", "--user", "--map-root-user")["problem"]
    assert problem == "requests from a user namespace are refused"
    assert host.bookings() == []
