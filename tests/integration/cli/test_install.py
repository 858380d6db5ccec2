# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installer of gpu-layout: once, again, taken away, and what the archive carries."""

from __future__ import annotations

import json
import subprocess
import zipfile

import pytest
from command_host import PYTHON, run_installer
from simulated_host import ROOT

LAYOUT = [{"gpus": "all", "sharing": "shared"}]


def modules() -> dict:
    utils = ROOT / "plugins" / "module_utils"
    files = [f for pattern in ("*.py", "cli/*.py", "models/*.json") for f in utils.glob(pattern)]
    return {str(f.relative_to(utils)): f.read_text() for f in files if f.name not in ("layout_module.py", "runner.py")}


@pytest.fixture
def install(tmp_path):
    def run(*arguments: str, **changes) -> dict:
        bundle = {"state": "present", "modules": modules(), "layout": LAYOUT, "unit": "[Unit]\n", "try": True}
        done = run_installer("--root", str(tmp_path), *arguments, input=json.dumps(dict(bundle, **changes)))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def installed(root) -> dict:
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


def test_it_installs_once_and_takes_all_away(install, tmp_path):
    assert len(install()["done"]) == 3
    there = installed(tmp_path)
    assert sorted(there) == [
        "etc/openfleet-gpu/layout.json",
        "etc/systemd/system/gpu-layout.service",
        "usr/local/bin/gpu-layout",
    ]
    assert json.loads(there["etc/openfleet-gpu/layout.json"]) == LAYOUT
    assert (tmp_path / "etc/openfleet-gpu/layout.json").stat().st_mode & 0o777 == 0o644
    assert install() == {"changed": False, "done": []}
    assert installed(tmp_path) == there
    assert install(state="absent")["changed"] and installed(tmp_path) == {}
    assert not install(state="absent")["changed"]


def test_check_foretells_and_changes_nothing(install, tmp_path):
    foretold = install("--check")
    assert installed(tmp_path) == {}
    assert install() == foretold
    there = installed(tmp_path)
    assert install("--check", state="absent")["changed"]
    assert installed(tmp_path) == there


def test_a_layout_on_trial_can_be_taken_back(install, tmp_path):
    path = tmp_path / "etc/openfleet-gpu/layout.json"
    install(state="former")
    assert installed(tmp_path) == {}, "nothing was on trial"
    install(**{"try": False})
    install(state="former")
    assert set(installed(tmp_path)) == {"usr/local/bin/gpu-layout"}, "there was no layout before"
    install()
    there = installed(tmp_path)
    for layout in ([{"gpus": [0], "sharing": "exclusive"}], [{"gpus": [1], "sharing": "exclusive"}]):
        install(layout=layout, unit="[Unit]\nDescription=of this layout\n", **{"try": False})
        assert json.loads(path.read_text()) == layout
    assert install(state="former")["changed"]
    assert installed(tmp_path) == there
    install(layout=[], **{"try": False})
    install(layout=[])
    assert json.loads(path.read_text()) == [], "it stands: nothing is kept"
    assert set(installed(tmp_path)) == set(there)


def test_a_change_of_one_part_writes_that_part(install, tmp_path):
    install()
    assert install(layout=[])["done"] == [f"write {tmp_path}/etc/openfleet-gpu/layout.json"]
    changed = dict(modules(), **{"sizes.py": modules()["sizes.py"] + "# later\n"})
    assert install(modules=changed, layout=[])["done"] == [f"write {tmp_path}/usr/local/bin/gpu-layout"]
    # What somebody else did to the file is mended.
    (tmp_path / "usr/local/bin/gpu-layout").write_text("#!/bin/sh\n")
    assert install(modules=changed, layout=[])["changed"]


def test_the_bytecode_is_what_runs_and_the_source_is_enough(install, tmp_path):
    install()
    command = tmp_path / "usr/local/bin/gpu-layout"
    question = ["fits", "A30-24GB", "4x1g.6gb"]
    answer = subprocess.run([str(command), *question], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("A30-24GB: 4x 1g.6gb fit")
    for name, keep in (("bytecode", ".pyc"), ("source", ".py")):
        copy = tmp_path / name
        with zipfile.ZipFile(command) as archive, zipfile.ZipFile(copy, "w") as other:
            for member in archive.infolist():
                if member.filename.endswith(keep):
                    other.writestr(member, archive.read(member))
                elif member.filename.endswith(".py"):
                    other.writestr(member, "raise SystemExit('the source was read')\n")
                elif not member.filename.endswith(".pyc"):
                    other.writestr(member, archive.read(member))
        done = subprocess.run([PYTHON, str(copy), *question], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (answer, ""), name
