# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Place links, pipes and folders at paths where root writes.

The links' targets must not change. Folders that only root can change need no such protection, but a site can choose
other folders.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils import durable
from ansible_collections.openfleet.gpu.plugins.module_utils.cdi import nvidia_ctk
from ansible_collections.openfleet.gpu.plugins.module_utils.cli import metrics
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.install.files import Installation
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import host as vgpu_host
from tests.adversary.attackers import public_folder


def by_installation(path, text):
    Installation(path.parent, False).write(path.name, text.encode())


def by_specification(path, text):
    """Write a specification that nvidia-ctk has written before.

    Only such a specification is updated.
    """
    path.write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "0"}], "hooks": "nvidia-cdi-hook"}))
    text = json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": text}]})
    nvidia_ctk._replace(path, text)


#: For each writer: its function, its file name, and the temporary name of an incomplete file.
WRITERS = {
    "durable": (durable.write_text, "journal.json", "journal.json.new"),
    "metrics": (lambda path, text: metrics.write(path.parent, text), metrics.FILE, metrics.FILE + ".new"),
    "cdi": (by_specification, "nvidia.json", "nvidia.json.new"),
    "installation": (by_installation, "gpu-layout", "gpu-layout.new"),
}
each = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture
def folder():
    with public_folder() as made:
        yield made


@each
@pytest.mark.parametrize("trap", ["link", "hard link", "link to nothing"])
def test_link_at_the_path_is_not_followed(folder, name, trap):
    write, final, unfinished = WRITERS[name]
    victim = folder / "shadow"
    (folder / "in").mkdir()
    if trap != "link to nothing":
        victim.write_text("root:x:\n")
        victim.chmod(0o600)
    link = folder / "in" / unfinished
    os.link(victim, link) if trap == "hard link" else link.symlink_to(victim)
    write(folder / "in" / final, "written")
    assert "written" in (folder / "in" / final).read_text() and not (folder / "in" / final).is_symlink()
    if trap == "link to nothing":
        assert not victim.exists()
    else:
        assert victim.read_text() == "root:x:\n" and victim.stat().st_mode & 0o777 == 0o600


@each
def test_pipe_at_the_path_does_not_block(folder, name):
    write, final, unfinished = WRITERS[name]
    os.mkfifo(folder / unfinished)
    write(folder / final, "written")
    assert "written" in (folder / final).read_text()


@each
def test_folder_at_the_path_is_an_error_and_stays(folder, name):
    write, final, unfinished = WRITERS[name]
    (folder / unfinished).mkdir()
    (folder / unfinished / "kept").touch()
    with pytest.raises((FleetError, OSError)):
        write(folder / final, "written")
    assert (folder / unfinished / "kept").exists()


@each
def test_link_instead_of_the_file_is_replaced(folder, name):
    if name == "cdi":
        pytest.skip("an administrator may keep a specification elsewhere: such a link stays one")
    write, final, _unfinished = WRITERS[name]
    victim = folder / "shadow"
    victim.write_text("root:x:\n")
    (folder / final).symlink_to(victim)
    write(folder / final, "written")
    assert victim.read_text() == "root:x:\n" and (folder / final).read_text() == "written"


def test_installation_replaces_a_link_to_equal_content(folder):
    """Replace a link even if the linked file has the right content.

    Its owner could change the content later.
    """
    (folder / "theirs").write_text("written")
    (folder / "theirs").chmod(0o644)
    (folder / "ours").symlink_to(folder / "theirs")
    target = Installation(folder, False)
    assert target.write("ours", b"written") and not (folder / "ours").is_symlink()
    assert not target.write("ours", b"written") and len(target.done) == 1


def test_files_of_root_are_never_readable_temporarily(folder, monkeypatch):
    """Check that root's files are never readable, not even temporarily.

    A user who opens a file at once could keep it open.
    """
    made = []
    real = os.open

    def noted(path, flags, mode=0o777, **more):
        if flags & os.O_CREAT:
            made.append((Path(path).name, mode, flags & os.O_EXCL))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", noted)
    WRITERS["installation"][0](folder / "gpu-layout", "written")
    assert made == [("gpu-layout.new", 0o600, os.O_EXCL)]


@pytest.mark.parametrize("trap", ["link", "folder", "pipe"])
def test_link_instead_of_a_region_is_not_followed(folder, trap):
    """Check that a link is not followed.

    A region is created again, with access for the tenant's processes. Through a link, they would get access to the
    linked file.
    """
    victim, region = folder / "shadow", folder / "region.1"
    victim.write_text("root:x:\n")
    victim.chmod(0o600)
    if trap == "link":
        region.symlink_to(victim)
    elif trap == "folder":
        (region / "deep").mkdir(parents=True)
        (region / "deep/link").symlink_to(victim)
    else:
        os.mkfifo(region)
    vgpu_host._make_shared(region, vgpu_files.SharedFile("region.1", None, vgpu_files.REGION_BYTES))
    assert region.is_file() and not region.is_symlink()
    assert victim.read_text() == "root:x:\n" and victim.stat().st_mode & 0o777 == 0o600
