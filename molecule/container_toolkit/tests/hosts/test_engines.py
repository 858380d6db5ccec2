# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker and containerd, both running: what they are told, and how they take it without ending a container."""

from __future__ import annotations

import json
import shlex

import pytest
from role_runs import run_role

from ansible_collections.openfleet.gpu.plugins.module_utils.holders_docker import LIST, parse

DAEMON = "/etc/docker/daemon.json"
TOML = "/etc/containerd/config.toml"
#: Docker's unit counts starts, and these tests start it more often than a host does.
RESTART = "systemctl reset-failed docker containerd && systemctl restart containerd docker"


def docker(host) -> dict:
    return json.loads(host.check_output("docker info --format '{{json .}}'"))


def starts(host) -> list[str]:
    return host.check_output("systemctl show --value --property=InvocationID docker containerd").split()


@pytest.fixture
def container(engines):
    """A container that runs, and must go on doing so: one program that needs nothing, and nothing else."""
    program = "int main(void) { for (;;) __builtin_ia32_pause(); }"
    engines.check_output(f"printf '{program}' | gcc -static -x c -o /tmp/wait -")
    engines.check_output("tar -C /tmp -cf - wait | docker import - localhost/wait")
    # There is no group of control groups here that is docker's.
    options = "--detach --network=none --cgroupns=private"
    made = engines.check_output(f"docker run {options} localhost/wait /wait")
    assert running(engines, made).startswith("true")
    yield made
    engines.run(f"docker rm --force {made}; docker image rm --force localhost/wait")


def running(host, container: str) -> str:
    return host.check_output(f"docker inspect --format '{{{{.State.Running}}}} {{{{.State.Pid}}}}' {container}")


def test_engines_have_the_runtime_and_all_that_was_there(engines):
    info = docker(engines)
    assert {"nvidia", "other", "runc"} <= set(info["Runtimes"]) and info["Labels"] == ["site=lab"]
    config = json.loads(engines.check_output(f"cat {DAEMON}"))
    assert config["storage-driver"] == "vfs" and config["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    effective = engines.check_output("containerd config dump")
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in effective
    assert 'sandbox_image = "registry.example.org/pause:3.9"' in effective
    assert '"/etc/containerd/site.d/*.toml"' in engines.check_output(f"cat {TOML}")


def test_a_run_that_changes_nothing_restarts_nothing(engines):
    before = starts(engines)
    run = run_role("engines")
    assert (run.steps, run.executions) == ([], 1)
    assert starts(engines) == before


def test_containers_go_on_while_engines_forget_the_toolkit_and_learn_of_it_again(engines, container):
    before, there = starts(engines), running(engines, container)
    foretold = run_role("engines", "--check", playbook="reset.yml")
    assert run_role("engines", playbook="reset.yml").steps == foretold.steps
    assert "nvidia" not in docker(engines)["Runtimes"] and "other" in docker(engines)["Runtimes"]
    assert "nvidia" not in engines.check_output(
        "containerd config dump | grep -v imports; cat /etc/containerd/config.toml"
    )
    foretold = run_role("engines", "--check")
    assert run_role("engines").steps == foretold.steps
    assert "nvidia" in docker(engines)["Runtimes"]
    assert running(engines, container) == there, "no container has ended or started anew"
    assert starts(engines)[0] == before[0], "docker was told, and not restarted"
    assert starts(engines)[1] != before[1]


def test_docker_tells_its_containers_names_as_holders_are_told(engines, container):
    engines.check_output(f"docker rename {container} billing-api")
    assert parse(engines.check_output(shlex.join(LIST))) == {container[:12]: "billing-api"}


def test_what_would_end_containers_waits_and_says_so_until_it_may(engines, container):
    """Docker takes CDI when it starts; a restart of it ends what runs, for it has no live-restore."""
    asked = {"container_toolkit_runtime_cdi": True}
    before, there = starts(engines), running(engines, container)
    run = run_role("engines", **asked)
    assert (
        run.result["restart_pending"] == ["docker"]
        and "runs on with its former configuration" in run.result["notes"][0]
    )
    assert json.loads(engines.check_output(f"cat {DAEMON}"))["features"]["cdi"] is True
    again = run_role("engines", **asked)
    assert (again.changed, again.result["restart_pending"]) == (False, ["docker"])
    assert running(engines, container) == there and starts(engines)[0] == before[0]
    run = run_role("engines", container_toolkit_restart="always", **asked)
    assert run.steps == ["restart docker.service"] and run.result["restart_pending"] == []
    assert running(engines, container).startswith("false")
    assert run_role("engines", **asked).result["restart_pending"] == []
    # The way back knows what a later run has added.
    run_role("engines", playbook="reset.yml")
    assert "features" not in json.loads(engines.check_output(f"cat {DAEMON}"))
    run_role("engines")


def test_a_restart_that_never_may_be_is_left_to_others(engines):
    run_role("engines", playbook="reset.yml")
    before = starts(engines)
    run = run_role("engines", container_toolkit_restart="never")
    assert run.result["restart_pending"] == ["docker", "containerd"] and starts(engines) == before
    engines.check_output(RESTART)
    run = run_role("engines", container_toolkit_restart="never")
    assert (run.steps, run.result["restart_pending"]) == ([], [])


@pytest.mark.parametrize(
    ("path", "text", "version", "message"),
    [
        (DAEMON, "{,}", "1.18.2", f"{DAEMON}: nvidia-ctk cannot configure docker"),
        (
            TOML,
            'version = 2\nimports = ["/etc/containerd/site.d/*.toml"]\n',
            "1.18.0",
            f"{TOML}: nvidia-ctk would drop",
        ),
    ],
)
def test_a_configuration_that_would_suffer_stays_as_it_is(engines, path, text, version, message):
    kept = engines.check_output(f"cat {path}")
    engines.check_output(f"cat >{path} <<'END'\n{text}\nEND")
    before = engines.check_output(f"cat {path}")
    try:
        said = run_role("engines", fails=True, container_toolkit_version=version)
        assert said.startswith(message), said
        assert engines.check_output(f"cat {path}") == before
    finally:
        engines.check_output(f"cat >{path} <<'END'\n{kept}\nEND")
        run_role("engines")


def test_an_engine_that_does_not_come_back_gets_its_former_configuration(engines):
    """A unit that refuses the new configuration: the site's own check."""
    run_role("engines", playbook="reset.yml")
    former = engines.check_output(f"cat {TOML}")
    check = "/etc/systemd/system/containerd.service.d/check.conf"
    engines.check_output(
        f"mkdir -p $(dirname {check}) && printf '[Service]\\nExecStartPre=/bin/sh -c \"! grep -q nvidia "
        f"{TOML}\"\\n' >{check} && systemctl daemon-reload"
    )
    try:
        said = run_role("engines", fails=True)
        assert said.startswith("containerd.service: it does not take its new configuration")
        assert "It runs with its former configuration" in said
        assert engines.check_output("systemctl is-active containerd") == "active"
        assert engines.check_output(f"cat {TOML}") == former
    finally:
        engines.check_output(f"rm -r $(dirname {check}) && systemctl daemon-reload && {RESTART}")
    run_role("engines")
    assert run_role("engines").steps == []
