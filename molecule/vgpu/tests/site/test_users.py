# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attack a host with tenants as two unprivileged users, with a real systemd.

tests/adversary contains the same attacks and many more, without systemd. There, cgroups are only texts, and units have
no sandbox.
"""

from __future__ import annotations

import contextlib
import json
import re

import pytest

ALICE, BOB = 61001, 61002
NODE = "/dev/nvidia0"
SHOWN = "/run/openfleet-gpu/vgpu/seats.1"


@pytest.fixture(scope="module")
def users(ada):
    """Create a user with a service manager (alice) and one without (bob).

    alice's manager runs as after a login.
    """
    for name, uid in (("alice", ALICE), ("bob", BOB)):
        ada.ask(f"id {name} 2>/dev/null || useradd --create-home --shell /bin/sh --uid {uid} {name}")
    # PAM sets this variable on hosts with libpam-systemd.
    environment = f"[Service]\\nEnvironment=XDG_RUNTIME_DIR=/run/user/{ALICE}\\n"
    drop_in = f"/run/systemd/system/user@{ALICE}.service.d"
    ada.ask(f"mkdir -p {drop_in} && printf '{environment}' >{drop_in}/environment.conf && systemctl daemon-reload")
    ada.ask(f"systemctl start user@{ALICE}.service && touch {NODE} && chmod 0666 {NODE}")
    yield
    ada.host.run(f"systemctl stop user@{ALICE}.service user-runtime-dir@{ALICE}.service; rm -f {NODE}")
    ada.host.run(f"userdel --remove alice; userdel --remove bob; rm -r {drop_in}; systemctl daemon-reload")


def by_alice(command: str) -> str:
    environment = f"env XDG_RUNTIME_DIR=/run/user/{ALICE} HOME=/home/alice"
    return f"setpriv --reuid=alice --regid=alice --init-groups {environment} {command}"


@contextlib.contextmanager
def unit(ada, name: str, starts: str, stops: str):
    """Run a unit whose main process has the GPU's node open."""
    ada.ask(f"{starts} --quiet --collect --unit={name} sh -c 'exec sleep 600 3<{NODE}'")
    try:
        yield
    finally:
        ada.host.run(f"{stops} stop {name}")


def holders(ada) -> list[dict]:
    told = json.loads(ada.ask("gpu-layout holders --json"))
    return [one for gpu in told["gpus"] for one in gpu["holders"]]


def test_user_unit_with_the_name_of_a_service_belongs_to_the_user(ada, users):
    """Do not confuse a user's unit with a service of the same name.

    Otherwise root would stop the wrong unit. The user's unit has a cgroup, for which the user can choose any name.
    """
    name = "postgresql.service"
    hers = unit(ada, name, by_alice("systemd-run --user"), by_alice("systemctl --user"))
    with unit(ada, name, "systemd-run", "systemctl"), hers:
        found = sorted(re.search(r"user .*?(?=\))", one["who"]).group() for one in holders(ada))
        assert found == [f"user alice, user@{ALICE}.service", f"user root, {name}"]


def test_user_can_keep_only_own_processes(ada, users):
    with unit(ada, "training.service", by_alice("systemd-run --user"), by_alice("systemctl --user")):
        (pid,) = [one["pid"] for one in holders(ada) if "user alice" in one["who"]]
        refused = ada.host.run(f"setpriv --reuid=bob --regid=bob --clear-groups gpu-layout keep {pid} 1h")
        assert refused.rc == 1 and "it belongs to " in refused.stderr
        assert "is kept until" in ada.ask(by_alice(f"gpu-layout keep {pid} 1h"))
        ada.ask(by_alice(f"gpu-layout keep --end {pid}"))


def test_mps_daemon_of_a_user_is_not_queried(ada, users):
    """Do not query a user's daemon, which could return any pid.

    A user's program has the daemon's name, and has the GPU open.
    """
    program = "/home/alice/nvidia-cuda-mps-control"
    ada.ask(f"cp /usr/bin/sleep {program} && chown alice {program}")
    run = f"CUDA_MPS_PIPE_DIRECTORY=/home/alice exec {program} 600 3<{NODE}"
    command = by_alice(f'systemd-run --user --quiet --collect --unit=mps.service sh -c "{run}"')
    ada.ask(command)
    try:
        ada.ask(f"timeout 60 sh -c 'until pgrep --full {program}; do sleep 0.1; done'")
        (found,) = holders(ada)
        assert found["kind"] == "device_handle" and "user alice" in found["who"]
    finally:
        ada.host.run(by_alice("systemctl --user stop mps.service"))


def test_users_see_only_what_the_agent_shows(ada, users):
    bob = "setpriv --reuid=bob --regid=bob --clear-groups "
    assert ada.ask(f"stat -c '%U %a' {SHOWN}") == "root 644"
    assert "Permission denied" in ada.host.run(f"{bob} sh -c ': >>{SHOWN}'").stderr
    shown = json.loads(ada.ask(f"{bob} vgpu-top --json"))["tenants"]
    assert {one["name"] for one in shown} == {"notebook-a", "batch", "pair"}
    # Only tenants have sockets. If a tenant has a group, only the group's members can connect.
    sockets = sorted(ada.ask("find /run/openfleet-gpu -type s").split())
    names = ("batch", "notebook-a", "pair")
    assert sockets == [f"/run/openfleet-gpu/vgpu/agent/{name}/turnstiles.1" for name in names]
    connect = "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('%s')"
    said = [ada.host.run(f'{bob} python3 -c "{connect % path}"').stderr for path in sockets]
    assert ["PermissionError" in text for text in said] == [True, False, False]


def test_locked_file_does_not_block_other_readers(ada, users):
    """Write the file although a user has locked it. The agent's sandbox allows this."""
    hold = f"setpriv --reuid=bob --regid=bob --clear-groups flock --shared {SHOWN} sleep 600"
    ada.ask(f"systemd-run --quiet --collect --unit=hold {hold}")
    try:
        before = ada.ask(f"stat -c %y {SHOWN}")
        ada.ask(f'timeout 60 sh -c \'while [ "$(stat -c %y {SHOWN})" = "{before}" ]; do sleep 0.1; done\'')
        shown = json.loads(ada.ask("gpu-layout show --json"))["vgpu_tenants"]
        assert {one["isolation"] for one in shown} == {"read_only"}
    finally:
        ada.host.run("systemctl stop hold")
