# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check each source's files with systemd and Podman's generator.

If the generator is not where Podman 4.4 and later install it, OPENFLEET_QUADLET is its path. Podman on Debian 12 has no
generator.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook

REPOSITORY = Path(__file__).resolve().parents[3]
QUADLET = os.environ.get("OPENFLEET_QUADLET") or "/usr/libexec/podman/quadlet"
ETC = "etc/openfleet-gpu/exporter"
UNIT = "etc/systemd/system/dcgm-exporter.service"
CONTAINER = "etc/containers/systemd/dcgm-exporter.container"

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: openfleet.gpu.dcgm_exporter
"""


def run(folder: Path, hosts, *options):
    """Run the role on hosts that are subfolders of this folder.

    Return the exit status and the output.
    """
    play = folder / "play.yml"
    play.write_text(PLAY)
    for name in hosts:
        (folder / name).mkdir(exist_ok=True)
    python = str(interpreter(folder / "python3"))
    # The run must not install packages on this machine or use this machine's Python packages.
    inventory = {
        name: {
            "ansible_connection": "local",
            "ansible_python_interpreter": python,
            "dcgm_exporter_packages": [],
            "dcgm_exporter__root": str(folder / name),
            **variables,
        }
        for name, variables in hosts.items()
    }
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": inventory}}))
    command = [*warm_playbook.COMMAND, "-i", str(folder / "hosts.yml"), *options, str(play)]
    environment = dict(os.environ, ANSIBLE_CONFIG=str(REPOSITORY / "ansible.cfg"), NO_COLOR="1")
    environment["ANSIBLE_COLLECTIONS_PATH"] = str(REPOSITORY / "collections")
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def settings(unit: Path, section: str):
    """Return a section's (key, value) pairs.

    Join continued lines.
    """
    found, inside = [], False
    for line in unit.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            inside = line == f"[{section}]"
        elif inside and line and line[0] not in "#;":
            key, _, value = line.partition("=")
            found.append((key, value.strip()))
    return found


def verify(unit: Path):
    """Return systemd's complaints about a unit.

    Ignore programs that are missing on this machine.
    """
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    return [
        line
        for line in done.stderr.splitlines()
        if unit.name in line and "is not executable" not in line and "not found" not in line
    ]


TLS = {
    "dcgm_exporter_tls_source": "host",
    "dcgm_exporter_tls_certificate": "/etc/ssl/gpu.crt",
    "dcgm_exporter_tls_key": "/etc/ssl/private/gpu.key",
    "dcgm_exporter_basic_auth_users": {"prometheus": "a password"},
}


PRESENT = {
    "packages": {"dcgm_exporter_source": "packages", "dcgm_exporter_listen_address": "10.0.0.7", **TLS},
    "options": {
        "dcgm_exporter_source": "packages",
        "dcgm_exporter_listen_address": "fd00::7",
        "dcgm_exporter_remote_hostengine": "localhost:5555",
        "dcgm_exporter_hpc_job_mapping_dir": "/var/spool/gpu-jobs",
        "dcgm_exporter_kubernetes": True,
        "dcgm_exporter_kubernetes_virtual_gpus": True,
        "dcgm_exporter_extra_arguments": ["--xid-count-window-size", "300000", "100%$HOME"],
    },
    "docker": {"dcgm_exporter_source": "docker", "dcgm_exporter_hpc_job_mapping_dir": "/var/spool/gpu jobs", **TLS},
    "podman": {"dcgm_exporter_source": "podman", "dcgm_exporter_kubernetes": True, **TLS},
    # The role later removes the exporter from this host.
    "leaving": {"dcgm_exporter_source": "podman", **TLS},
}


@pytest.fixture(scope="module")
def present(tmp_path_factory):
    """Run the role once, and return the folder of the hosts with the exporter.

    Also check that the run printed no password.
    """
    folder = tmp_path_factory.mktemp("present")
    status, said = run(folder, PRESENT)
    assert status == 0, said
    assert "a password" not in said
    # One warning covers all hosts that use the default container image.
    warnings = [line for line in said.splitlines() if "dcgm_exporter_image" in line]
    assert len(warnings) == 1 and "WARNING" in warnings[0] and "has no digest" in warnings[0], said
    return folder


@pytest.mark.core
def test_packages(present):
    root = present / "packages"
    unit = root / UNIT
    (command,) = [value for key, value in settings(unit, "Service") if key == "ExecStart"]
    assert shlex.split(command) == [
        "/usr/bin/dcgm-exporter",
        *("--collectors", "/etc/openfleet-gpu/exporter/counters.csv"),
        *("--address", "10.0.0.7:9400"),
        *("--collect-interval", "30000"),
        *("--devices", "f"),
        *("--web-config-file", "/etc/openfleet-gpu/exporter/web-config.json"),
    ]
    web = json.loads((root / ETC / "web-config.json").read_text())
    assert web["tls_server_config"] == {"cert_file": "/etc/ssl/gpu.crt", "key_file": "/etc/ssl/private/gpu.key"}
    assert list(web["basic_auth_users"]) == ["prometheus"]
    assert verify(unit) == []
    # The package's own unit does not block because it is masked.
    assert os.readlink(root / "etc/systemd/system/nvidia-dcgm-exporter.service") == "/dev/null"


@pytest.mark.core
def test_a_second_run_changes_nothing_and_reset_leaves_nothing(present):
    leaving = dict(PRESENT["leaving"], dcgm_exporter_state="absent")
    status, said = run(present, {"packages": PRESENT["packages"], "leaving": leaving})
    assert status == 0, said
    assert re.search(r"^packages +: ok=\d+ +changed=0 ", said, re.MULTILINE), said
    assert [path for path in (present / "leaving").rglob("*") if not path.is_dir()] == []


def test_the_options_of_dcgm_exporter(present):
    root = present / "options"
    (command,) = [value for key, value in settings(root / UNIT, "Service") if key == "ExecStart"]
    words = shlex.split(command)
    for option, value in {
        "--address": "[fd00::7]:9400",
        "--remote-hostengine-info": "localhost:5555",
        "--hpc-job-mapping-dir": "/var/spool/gpu-jobs",
    }.items():
        assert words[words.index(option) + 1] == value
    assert {"--kubernetes=true", "--kubernetes-virtual-gpus=true"} <= set(words)
    assert words[-3:] == ["--xid-count-window-size", "300000", "100%%$$HOME"], "both mean something to systemd"
    assert (root / "var/spool/gpu-jobs").is_dir()
    assert ("Wants", "nvidia-dcgm.service") in settings(root / UNIT, "Unit")


def test_docker(present):
    root = present / "docker"
    unit = root / UNIT
    (command,) = [value for key, value in settings(unit, "Service") if key == "ExecStart"]
    words = shlex.split(command)
    assert words[:2] == ["/usr/bin/docker", "run"]
    image = next(i for i, word in enumerate(words) if word.startswith("nvcr.io/nvidia/k8s/dcgm-exporter:"))
    before, after = words[:image], words[image + 1 :]
    assert before[before.index("--gpus") + 1] == "all" and before[before.index("--network") + 1] == "host"
    assert before[before.index("--cap-add") + 1] == "SYS_ADMIN" and before[before.index("--cap-drop") + 1] == "ALL"
    volumes = {before[i + 1] for i, word in enumerate(before) if word == "--volume"}
    assert volumes == {
        "/etc/openfleet-gpu/exporter/counters.csv:/etc/openfleet-gpu/exporter/counters.csv:ro",
        "/etc/openfleet-gpu/exporter/web-config.json:/run/openfleet-gpu-exporter/web-config:ro",
        "/etc/ssl/gpu.crt:/run/openfleet-gpu-exporter/tls.crt:ro",
        "/etc/ssl/private/gpu.key:/run/openfleet-gpu-exporter/tls.key:ro",
        "/var/spool/gpu jobs:/var/spool/gpu jobs:ro",
    }
    assert after[after.index("--address") + 1] == "127.0.0.1:9400"
    assert after[after.index("--web-config-file") + 1] == "/run/openfleet-gpu-exporter/web-config"
    web = json.loads((root / ETC / "web-config.json").read_text())
    assert web["tls_server_config"]["key_file"] == "/run/openfleet-gpu-exporter/tls.key"
    assert verify(unit) == []


def test_podman(present):
    root = present / "podman"
    assert not (root / UNIT).exists()
    found = settings(root / CONTAINER, "Container")
    assert ("AddDevice", "nvidia.com/gpu=all") in found and ("Network", "host") in found
    assert ("AddCapability", "CAP_SYS_ADMIN") in found and ("DropCapability", "ALL") in found
    volumes = {value for key, value in found if key == "Volume"}
    assert "/etc/ssl/private/gpu.key:/run/openfleet-gpu-exporter/tls.key:ro" in volumes
    assert "/var/lib/kubelet/pod-resources:/var/lib/kubelet/pod-resources:ro" in volumes


@pytest.mark.skipif(
    not os.access(QUADLET, os.X_OK), reason="no quadlet here: Podman 4.4 or later has one, Debian 12's 4.3 not"
)
def test_podmans_generator_makes_a_unit_of_the_quadlet(present, tmp_path):
    environment = dict(os.environ, QUADLET_UNIT_DIRS=str((present / "podman" / CONTAINER).parent))
    done = subprocess.run([QUADLET, "-dryrun"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "dcgm-exporter.service"
    unit.write_text(done.stdout.partition("---dcgm-exporter.service---\n")[2])
    (command,) = [value for key, value in settings(unit, "Service") if key == "ExecStart"]
    words = shlex.split(command)
    image = next(i for i, word in enumerate(words) if word.startswith("nvcr.io/nvidia/k8s/dcgm-exporter:"))
    before, after = words[:image], words[image + 1 :]
    joined = " ".join(before).replace("=", " ")
    for option in (
        "--network host",
        "--device nvidia.com/gpu all",
        "--cap-drop all",
        "--cap-add cap_sys_admin",
        "--read-only",
    ):
        assert option in joined.lower(), option
    assert "/run/openfleet-gpu-exporter/tls.key:ro" in joined
    assert after[after.index("--address") + 1] == "127.0.0.1:9400"
    assert after[after.index("--web-config-file") + 1] == "/run/openfleet-gpu-exporter/web-config"
    assert verify(unit) == []


OWN_KEY = f"/{ETC}/gpu.key"
REFUSED = {
    "everywhere": (
        {"dcgm_exporter_source": "packages", "dcgm_exporter_listen_address": ""},
        ["dcgm_exporter_listen_address is empty"],
    ),
    "together": (
        {
            "dcgm_exporter_source": "embedded",
            "dcgm_exporter_kubernetes": True,
            "dcgm_exporter_tls_certificate": "/c",
            "dcgm_exporter_basic_auth_users": {"a:b": "c", "d": ""},
            "dcgm_exporter_embedded_packages": "wheels",
            "dcgm_exporter_repository_url": "https://fleet:s3cret@mirror.example.org/cuda",
        },
        [
            "dcgm_exporter_tls_certificate and dcgm_exporter_tls_key must be set together",
            "a name in dcgm_exporter_basic_auth_users contains a colon",
            "a password in dcgm_exporter_basic_auth_users is empty",
            "dcgm_exporter_source is embedded",
            "needs dcgm_exporter_embedded_wheels",
            "dcgm_exporter_repository_url contains a name or a password",
        ],
    ),
    # A site's own key must not be in a directory that the role deletes.
    "key": ({"dcgm_exporter_source": "docker", **TLS, "dcgm_exporter_tls_key": OWN_KEY}, [f"{OWN_KEY} is below"]),
}


def test_conflicting_options_are_refused_at_once(tmp_path):
    """Refuse conflicting options.

    An empty address must never mean all addresses.
    """
    status, output = run(tmp_path, {name: variables for name, (variables, _messages) in REFUSED.items()})
    assert status != 0
    assert "s3cret" not in output
    said = " ".join(output.split())
    for name, (_variables, messages) in REFUSED.items():
        assert f"fatal: [{name}]: FAILED!" in said
        assert [message for message in messages if message not in said] == [], said[-1500:]
        assert list((tmp_path / name).iterdir()) == []


def test_check_mode_shows_changes_and_writes_nothing(tmp_path):
    status, said = run(tmp_path, {"docker": {"dcgm_exporter_source": "docker", **TLS}}, "--check", "--diff")
    assert status == 0, said
    assert f"write {tmp_path / 'docker' / UNIT}" in said
    assert list((tmp_path / "docker").iterdir()) == []
