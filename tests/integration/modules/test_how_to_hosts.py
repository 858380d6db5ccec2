# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the how-to pages about hosts and GPUs word for word on simulated hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.how_to import blocks, commands
from tests.integration.how_to_site import Site
from tests.integration.modules.test_accept import stand_in_dcgmi
from tests.integration.patience import wait_until

HALVES = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
SEVENTHS = [{"gpus": [0, 1], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}]
TWO_HALVES = [("3g.40gb", 0), ("3g.40gb", 4)]


def words(text):
    return " ".join(text.split())


def general(text):
    """Return a page's line as a regular expression that matches any GPU UUID."""
    return re.sub(r"GPU\\-[0-9a-f]{8}", "GPU-[0-9a-f]{8}", re.escape(words(text)))


def test_adopt_a_fleet(host, library, tmp_path):
    site = Site(tmp_path, library, ["gpu-01", "gpu-02"])
    for each in site.fleet.hosts.values():
        assert each.module("mig", layout=HALVES)["changed"]
    before = site.seen()
    preview, write, check, add, commit = commands("adopt-a-fleet.md", "$")
    written, planned = blocks("adopt-a-fleet.md", "text")
    assert words(written) in site.follow(preview)
    assert list((site.folder / "host_vars").iterdir()) == []
    site.follow(write)
    assert words(planned) in site.follow(check)
    site.follow(add)
    assert "Adopt" in site.follow(commit)
    assert site.git("ls-files").split() == [f"host_vars/gpu-0{n}/gpu_layout.yml" for n in (1, 2)]
    assert site.seen() == before


@pytest.mark.thorough
def test_add_a_node(host, library, tmp_path):
    (listed,) = blocks("add-a-node.md", "yaml")
    names = list(yaml.safe_load(listed)["gpu_hosts"]["hosts"])
    site = Site(tmp_path, library, names)
    for name in names[:2]:
        assert site.fleet.hosts[name].module("layout", layout=HALVES)["changed"]
    site.write("group_vars/gpu_hosts.yml", yaml.safe_dump({"gpu_layout": HALVES}))
    before = site.seen()
    check, apply, everywhere = commands("add-a-node.md", "$")
    site.follow(check)
    assert site.seen() == before
    (applied,) = blocks("add-a-node.md", "text")
    assert words(applied) in site.follow(apply)
    assert site.seen() == {name: {0: TWO_HALVES} for name in names}
    assert "nothing to do: gpu-01, gpu-02, gpu-03" in site.follow(everywhere)


@pytest.mark.thorough
def test_accept_a_node(host, library, tmp_path):
    site = Site(tmp_path, library, ["gpu-01", "gpu-07"], gpus=8)
    for each in site.fleet.hosts.values():
        stand_in_dcgmi(each, "Pass")
    site.fleet.hosts["gpu-07"].gpusim("set", "3", "remap_pending", "on")
    site.write("group_vars/gpu_hosts.yml", yaml.safe_dump({"gpu_layout": HALVES}))
    inventory = yaml.safe_load((site.folder / "hosts.yml").read_text())
    inventory["new_hosts"] = {"hosts": {"gpu-01": None, "gpu-07": None}}
    site.write("hosts.yml", yaml.safe_dump(inventory))
    check, serve = commands("accept-a-node.md", "$")
    (failure,) = blocks("accept-a-node.md", "text")
    assert words(failure) in site.follow(check, status=2)
    site.follow(serve)
    seen = site.seen()
    assert all(instances == TWO_HALVES for instances in seen["gpu-01"].values())
    assert not any(seen["gpu-07"].values())
    assert (site.folder / "acceptance" / "gpu-07" / "gpu-check.html").is_file()


def test_change_one_gpu(host, library, tmp_path):
    site = Site(tmp_path, library, ["gpu-01"], gpus=2)
    machine = site.fleet.hosts["gpu-01"]
    assert machine.module("layout", layout=SEVENTHS)["changed"]
    first = machine.module("gpu_info")["gpus"][0]["mig"]["instances"][0]
    job = machine.popen(["gpusim", "run", "--gpu", f"0/{first['id']}", "--memory", "1MiB", "--", "sleep", "3600"])

    def runs():
        assert job.poll() is None
        return json.loads(machine.gpusim("show", "--json"))["processes"]

    try:
        wait_until(runs, "the job")
        (layout,) = blocks("change-one-gpu.md", "yaml")
        site.write("host_vars/gpu-01.yml", layout)
        check, apply = commands("change-one-gpu.md", "$")
        plan, applied = blocks("change-one-gpu.md", "text")
        assert re.search(general(plan), site.follow(check))
        assert words(applied) in site.follow(apply)
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()
    assert site.seen()["gpu-01"][1] == TWO_HALVES


@pytest.mark.thorough
def test_replace_a_gpu(host, library, tmp_path):
    site = Site(tmp_path, library, ["gpu-01"], gpus=2)
    machine = site.fleet.hosts["gpu-01"]
    uuids = [gpu["uuid"] for gpu in machine.module("gpu_info")["gpus"]]
    layout = [{**HALVES[0], "gpus": [0]}, {**HALVES[0], "gpus": [uuids[1]]}]
    site.commit("gpu-01", layout, "one GPU by UUID")
    (old, new) = dict.fromkeys(re.findall(r"GPU-[0-9a-f-]{36}", Path("docs/how-to/replace-a-gpu.md").read_text()))
    skip, accept, find, replace, check, apply = commands("replace-a-gpu.md", "$")
    machine.gpusim("lose", "1")
    (lost,) = blocks("replace-a-gpu.md", "text")
    assert lost.strip() in site.follow(skip)
    (working,) = machine.module("gpu_info")["gpus"]
    assert [each["profile"] for each in working["mig"]["instances"]] == ["3g.40gb", "3g.40gb"]
    # The machine has two other cards.
    machine.create([{"model": "H100-80GB", "count": 2}], host="other cards")
    cards = [gpu["uuid"] for gpu in machine.module("gpu_info")["gpus"]]
    site.follow(accept)
    assert uuids[1] in site.follow("ansible-playbook -i hosts.yml openfleet.gpu.site --check", status=2)
    names = {old: uuids[1], new: cards[1]}
    find, replace = (re.sub("|".join(names), lambda found: names[found[0]], each) for each in (find, replace))
    assert site.follow(find) == "host_vars/gpu-01.yml\n"
    site.follow(replace)
    site.follow(check)
    site.follow(apply)
    assert machine.seen() == {0: TWO_HALVES, 1: TWO_HALVES}


def test_secrets(host, library, tmp_path):
    site = Site(tmp_path, library, ["gpu-01"])
    site.write("host_vars/gpu-01.yml", yaml.safe_dump({"gpu_layout": HALVES}))
    for text in blocks("secrets.md", "yaml"):
        site.write(re.match(r"# (\S+)\n", text)[1], text)
    Path(site.environment["HOME"], ".vault-password").write_text("of the vault\n")
    encrypt, readable, run, edit = commands("secrets.md", "$")
    assert edit.startswith("ansible-vault edit ")
    site.follow(encrypt)
    assert "change-me" not in (site.folder / "group_vars" / "all" / "vault.yml").read_text()
    assert site.follow(readable) == ""
    site.follow(run)
    # Without the password, nothing runs.
    assert "vault" in site.follow("ansible-playbook -i hosts.yml openfleet.gpu.site --check", status=4)


@pytest.mark.thorough
def test_ansible_pull(host, library, tmp_path):
    site = Site(tmp_path, library, ["gpu-01", "gpu-02"])
    for text in [*blocks("ansible-pull.md", "yaml"), *blocks("ansible-pull.md", "ini")[:1]]:
        name, content = re.match(r"# (\S+)\n(.*)", text, re.S).groups()
        site.write(name, content)
    for name in site.fleet.hosts:
        site.commit(name, HALVES, f"layout of {name}")
    checking, applying, *_timer = commands("ansible-pull.md", "#")
    unit = blocks("ansible-pull.md", "ini")[1]
    assert applying.replace("gpu-01", "%H") in unit

    def pull(command):
        copy = tmp_path / "copy"
        program, *arguments = command.replace("/srv/inventory", str(copy)).split()
        environment = {
            **site.environment,
            "PATH": f"{Path(sys.executable).parent}:{site.environment['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": str(Path("collections").resolve()),
            # The page has this repository's address.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{site.folder}.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://git.example.org/inventory.git",
        }
        environment.pop("ANSIBLE_CONFIG", None)
        done = subprocess.run(
            [program, *arguments, "-e", f"gpu_layout_nvml_directory={site.directory}"],
            cwd="/", env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return words(done.stdout)

    site.directory.mkdir(parents=True)
    assert "create 3g.40gb@0" in pull(checking)
    assert site.seen() == {"gpu-01": {0: []}, "gpu-02": {0: []}}
    pull(applying)
    assert site.seen() == {"gpu-01": {0: TWO_HALVES}, "gpu-02": {0: []}}
