# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure running Docker and containerd without ending a container.

The tests run in order: one container runs until a test lets Docker end it.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

import pytest
from role_runs import Ask, run_roles

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.containers import LIST_DOCKER, parse_docker

DAEMON = "/etc/docker/daemon.json"
TOML = "/etc/containerd/config.toml"
#: Docker's unit limits how often Docker may start. These tests start Docker more often than a usual host does.
RESTART = "systemctl reset-failed docker containerd && systemctl restart containerd docker"


def docker(host) -> dict:
    return json.loads(host.check_output("docker info --format '{{json .}}'"))


#: A command that prints the state that the tests compare between runs: the engines' start times, their settings, and
#: the running container.
LOOK = (
    "systemctl show --value --property=InvocationID docker containerd | grep .; docker info --format '{{json .Runtimes}}'; "
    "containerd config dump | grep -v imports | grep -c nvidia || true; grep -c nvidia %s || true; tr -d '\\n' <%s; echo; "
    % (TOML, DAEMON)
    + "docker inspect --format '{{.State.Running}} {{.State.Pid}}' $(docker ps --all --quiet)"
)


@dataclass(frozen=True)
class Look:
    """The values that the command LOOK prints."""

    docker_start: str
    containerd_start: str
    runtimes: dict
    #: The number of lines with NVIDIA in containerd's running configuration and in its file.
    effective: int
    written: int
    daemon: dict
    container: str

    @classmethod
    def read(cls, text: str) -> Look:
        docker, containerd, runtimes, effective, written, daemon, container = text.splitlines()
        return cls(
            docker, containerd, json.loads(runtimes), int(effective), int(written), json.loads(daemon), container
        )


def starts(host) -> list[str]:
    return host.check_output("systemctl show --value --property=InvocationID docker containerd").split()


@pytest.fixture(scope="module")
def container(engines):
    """Start a container that must keep running.

    Its image has one program without dependencies.
    """
    program = "int pause(void); int main(void) { for (;;) pause(); }"
    engines.check_output(f"printf '{program}' | gcc -static -x c -o /tmp/wait -")
    engines.check_output("tar -C /tmp -cf - wait | docker import - localhost/wait")
    # Docker has no cgroup on this host.
    options = "--detach --network=none --cgroupns=private"
    made = engines.check_output(f"docker run {options} localhost/wait /wait")
    assert running(engines, made).startswith("true")
    yield made
    engines.run(f"docker rm --force {made}; docker image rm --force localhost/wait")


def running(host, container: str) -> str:
    return host.check_output(f"docker inspect --format '{{{{.State.Running}}}} {{{{.State.Pid}}}}' {container}")


def test_engines_have_the_runtime_and_keep_their_settings(engines):
    info = docker(engines)
    assert {"nvidia", "other", "runc"} <= set(info["Runtimes"]) and info["Labels"] == ["site=lab"]
    config = json.loads(engines.check_output(f"cat {DAEMON}"))
    assert config["storage-driver"] == "vfs" and config["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    effective = engines.check_output("containerd config dump")
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in effective
    assert 'sandbox_image = "registry.example.org/pause:3.9"' in effective
    assert '"/etc/containerd/site.d/*.toml"' in engines.check_output(f"cat {TOML}")


def test_containers_continue_while_toolkit_is_removed_and_added(engines, container):
    before, there = starts(engines), running(engines, container)
    right, forgets, forgot, learns, learned = run_roles(
        "engines",
        Ask(then=LOOK),
        Ask(entry="reset", check=True, then=LOOK),
        Ask(entry="reset", then=LOOK),
        Ask(check=True),
        Ask(then=LOOK),
    )
    assert (right.steps, right.executions) == ([], 1)
    look = Look.read(right.seen)
    assert [look.docker_start, look.containerd_start] == before, "a run that changes nothing restarts nothing"
    assert forgets.seen == right.seen and forgets.steps == forgot.steps
    look = Look.read(forgot.seen)
    assert "nvidia" not in look.runtimes and "other" in look.runtimes
    assert (look.effective, look.written) == (0, 0)
    assert learns.steps == learned.steps
    look = Look.read(learned.seen)
    assert "nvidia" in look.runtimes and look.effective > 0
    assert look.container == running(engines, container) == there, "no container has ended or restarted"
    assert look.docker_start == before[0], "docker was configured without a restart"
    assert look.containerd_start != before[1]


def test_holders_show_dockers_container_names(engines, container):
    engines.check_output(f"docker rename {container} billing-api")
    assert parse_docker(engines.check_output(shlex.join(LIST_DOCKER))) == {container[:12]: "billing-api"}


def test_restart_that_ends_containers_waits_for_permission(engines, container):
    """Wait for permission if a restart would end containers.

    Docker reads CDI settings when it starts. Without live-restore, a restart ends its containers.
    """
    asked = {"container_toolkit_runtime_cdi": True}
    never = {"container_toolkit_restart": "never"}
    before, there = starts(engines), running(engines, container)
    first, again, always, last, reset, left, restarted = run_roles(
        "engines",
        Ask(asked, then=LOOK),
        Ask(asked, then=LOOK),
        Ask({**asked, "container_toolkit_restart": "always"}, then=LOOK),
        Ask(asked),
        Ask(entry="reset", then=LOOK),
        Ask(never, then=LOOK),
        Ask(never, first=RESTART),
    )
    assert first.result["restart_pending"] == ["docker"]
    assert "keeps running with its previous configuration" in first.result["notes"][0]
    assert Look.read(first.seen).daemon["features"]["cdi"] is True
    assert (again.changed, again.result["restart_pending"]) == (False, ["docker"])
    look = Look.read(again.seen)
    assert look.container == there and look.docker_start == before[0]
    assert always.steps == ["restart docker.service"] and always.result["restart_pending"] == []
    assert Look.read(always.seen).container.startswith("false")
    assert last.result["restart_pending"] == []
    # The removal also removes the settings that a later run added.
    look = Look.read(reset.seen)
    assert "features" not in look.daemon
    # If the policy never allows a restart, the operator must restart the engine.
    assert left.result["restart_pending"] == ["docker", "containerd"]
    after = Look.read(left.seen)
    assert (after.docker_start, after.containerd_start) == (look.docker_start, look.containerd_start)
    assert (restarted.steps, restarted.result["restart_pending"]) == ([], [])


BROKEN = {DAEMON: "{,}", TOML: 'version = 2\nimports = ["/etc/containerd/site.d/*.toml"]'}


def test_unsafe_configuration_is_kept_and_failed_engine_gets_its_old_one(engines):
    """Keep the configuration if it is unsafe or if the engine does not start with it.

    A check that the site added makes the engine's unit refuse the new configuration. The unit may start only once in
    ten minutes.
    """
    check = "/etc/systemd/system/containerd.service.d/check.conf"
    refuse = (
        f"cp {TOML} /tmp/former; mkdir -p $(dirname {check}) && "
        "printf '[Unit]\\nStartLimitIntervalSec=600\\nStartLimitBurst=1\\n[Service]\\n"
        f'ExecStartPre=/bin/sh -c "! grep -q nvidia {TOML}"\\n\' >{check} && systemctl daemon-reload'
    )

    def broken(path: str, version: str) -> Ask:
        put = f"cp -p {path} /tmp/kept; cat >{path} <<'END'\n{BROKEN[path]}\nEND"
        return Ask(
            {"container_toolkit_version": version}, first=put, then=f"cat {path}; mv /tmp/kept {path}", fails=True
        )

    daemon, toml, _reset, refused, brought, again = run_roles(
        "engines",
        broken(DAEMON, "1.18.2"),
        broken(TOML, "1.18.0"),
        Ask(entry="reset"),
        Ask(
            first=refuse,
            then=f"systemctl is-active containerd; cmp {TOML} /tmp/former; rm -r $(dirname {check}) /tmp/former; "
            f"systemctl daemon-reload; {RESTART}",
            fails=True,
        ),
        Ask(),
        Ask(),
    )
    assert daemon.failed.startswith(f"{DAEMON}: nvidia-ctk cannot configure docker"), daemon.failed
    assert daemon.seen == BROKEN[DAEMON]
    assert toml.failed.startswith(f"{TOML}: nvidia-ctk would drop"), toml.failed
    assert toml.seen == BROKEN[TOML]
    assert refused.failed.startswith("containerd.service: it does not start with its new configuration"), refused.failed
    assert "It runs with its previous configuration" in refused.failed
    assert refused.seen == "active"
    assert brought.steps and again.steps == []
