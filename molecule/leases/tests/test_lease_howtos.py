# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the how-to pages word for word."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.how_to import blocks, commands, expected
from tests.lab.toolkit_mirror.toolkit_stand_ins import CDI_HOOK

ROOT = Path(__file__).resolve().parents[3]
SCENARIO = ROOT / "molecule" / "leases"


def write(desk, path, text, owner="root", mode="644"):
    folder = shlex.quote(str(Path(path).parent))
    desk.ask(f"install -d -o {owner} {folder} && printf '%s' {shlex.quote(text)} >{path}")
    desk.ask(f"chown {owner} {path} && chmod {mode} {path}")


def test_shell(desk):
    start, *inside = commands("lease-shell.md", "$")
    assert len(inside) == 3 and inside[-1] == "exit"
    write(desk, "/home/alice/train.py", "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    done = desk.run("alice", f"printf '%s\\n' {shlex.join(inside)} | {start}")
    assert done.rc == 0, done.stderr
    assert re.fullmatch(expected("lease-shell.md", start), done.stderr)
    device, extended = done.stdout.splitlines()
    assert device.startswith("MIG-") and re.match(r"Lease \d+ .* until ", extended)
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")


@pytest.fixture
def inference(desk):
    (unit,) = blocks("lease-service.md", "ini")
    (path,) = re.findall(r"^# (/\S+)$", unit, re.M)
    write(desk, path, unit)
    write(desk, "/opt/inference/serve", "#!/bin/sh\nexec sleep 3600\n", mode="755")
    yield "systemctl show --property=MainPID --value inference"
    desk.host.run(f"systemctl disable --now inference; rm -f {path}; systemctl daemon-reload")


def test_service(desk, inference):
    *start, stop = commands("lease-service.md", "#")
    for command in start:
        desk.ask(command)
    (show,) = commands("lease-service.md", "$")
    (first,) = desk.wait_for(desk.numbers, "the lease of the service")
    assert re.fullmatch(expected("lease-service.md", show), desk.run("bob", show).stdout)
    desk.wait_for(lambda: "sleep" in desk.ask(f"cat /proc/$({inference})/comm"), "the program")
    # Restart= starts the program again, with another lease.
    desk.ask(f"kill -KILL $({inference})")
    desk.wait_for(lambda: desk.numbers() not in ([], [first]), "another lease")
    desk.ask(stop)
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")


#: A command that builds the image with the libraries that nvidia-smi needs. The image has no NVIDIA files, because the
#: CDI devices provide them.
MAKE_IMAGE = (
    "tar -chf /tmp/image.tar -C / "
    "$(ldd $(readlink -f /usr/bin/nvidia-smi) | grep -o '/lib[^ ]*' | grep -v libnvidia | sed 's,^/,,') && "
    "podman import --quiet /tmp/image.tar "
)


@pytest.fixture
def toolkit(desk):
    """Install the toolkit's programs, and write the CDI specification.

    Leases renew an existing specification.
    """
    (command,) = commands("lease-container.md", "$")
    (image,) = re.findall(r"registry\.\S+", command)
    write(desk, "/usr/bin/nvidia-ctk", (ROOT / "tests" / "lab" / "stand_in_nvidia_ctk.py").read_text(), mode="755")
    write(desk, "/usr/bin/nvidia-cdi-hook", CDI_HOOK, mode="755")
    # The specification lists GPU device nodes, which the simulated driver does not have.
    desk.ask("for n in 0 1 2 3; do mknod -m 0666 /dev/nvidia$n c 195 $n; done")
    desk.ask("[ -e /dev/nvidiactl ] || mknod -m 0666 /dev/nvidiactl c 195 255")
    desk.ask("mkdir -p /etc/cdi && nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
    desk.ask(MAKE_IMAGE + image)
    yield command
    desk.host.run(
        f"podman image rm --force {image}; cd /usr/bin && rm -f nvidia-ctk nvidia-cdi-hook /etc/cdi/nvidia.yaml /dev/nvidia[0-3]"
    )


def test_container(desk, toolkit):
    done = desk.host.run(toolkit)
    assert done.rc == 0 and "GPU 0: " in done.stdout, done.stdout + done.stderr
    # The image itself has neither the program nor the devices.
    words = re.search(r"podman run --rm (.*?)'$", toolkit, re.M).group(1)
    assert desk.host.run("podman run --rm " + words.partition(") ")[2]).rc != 0
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")
    assert desk.parts() == "[]"


#: A program that replaces Jupyter's kernel. It prints its arguments, and runs until it is ended.
KERNEL = "import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(3600)\n"


def test_jupyter_kernel(desk):
    (text,) = blocks("lease-jupyter.md", "json")
    kernel = json.loads(text)
    assert set(kernel) == {"display_name", "language", "argv"}
    write(desk, "/home/alice/ipykernel_launcher.py", KERNEL)
    words = [word.format(connection_file="/tmp/kernel.json") for word in kernel["argv"]]
    size, program = shlex.join(words[2 : words.index("--")]), shlex.join(words[words.index("--") + 1 :])
    assert words[:2] == ["gpu-layout", "lease"]
    started = desk.taken("alice", size, program)
    desk.wait_for(lambda: "/tmp/kernel.json" in desk.ask(f"cat {started.file}.out"), "the kernel")
    # Jupyter shuts a kernel down with a message, and then with SIGTERM.
    started.kill("TERM")
    assert started.status() == 143
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")


def test_team_quota(desk):
    create, join = commands("team-quota.md", "#")
    (entry,) = blocks("team-quota.md", "yaml")
    apply, take, more, show = commands("team-quota.md", "$")
    desk.ask(create)
    desk.ask(join)
    # site.yml has applied the page's entry.
    assert apply.startswith("ansible-playbook ")
    layout = yaml.safe_load((SCENARIO / "inventory" / "host_vars" / "desk.yml").read_text())["gpu_layout"]
    assert yaml.safe_load(entry)["gpu_layout"][0] in layout
    write(desk, "/home/alice/train.py", "import time\ntime.sleep(3600)\n", owner="alice")
    size, program = re.fullmatch(r"gpu-layout lease (.*) -- (.*)", take).groups()
    desk.taken("alice", size, program)
    refused = desk.run("alice", more)
    (message,) = blocks("team-quota.md", "text")
    assert refused.rc == 125 and message.strip() in refused.stderr
    assert "alice" in desk.run("alice", show).stdout
    # Other users are not in the group.
    assert desk.run("mallory", take).rc == 125


def test_kernel_of_a_hub_is_the_kernel_of_the_test():
    """Check that both pages show the kernel that test_jupyter_kernel runs."""
    assert blocks("jupyterhub.md", "json") == blocks("lease-jupyter.md", "json")
