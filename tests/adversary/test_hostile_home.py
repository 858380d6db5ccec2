# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a notice into a hostile home.

The notice is written with the user's id or not at all, and never blocks root.
"""

from __future__ import annotations

import os
import pty
import shutil
import struct
import subprocess
import sys

import pytest

from tests.adversary.attackers import ALICE, BOB, ROOT, public_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files are several users'")
NAME = "gpu-notice-notebook.service.txt"
#: A program that sends a notice in a mount namespace with the test's accounts, and prints what failed.
TELL = """
import sys
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import tell
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
way, uid, text = sys.argv[1:]
try:
    tell.tell(way, {"kind": "unit", "name": "notebook.service"}, int(uid), text)
except FleetError as error:
    print(error)
"""


class Homes:
    """The accounts alice and bob. Their homes are folders of the test."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.alice = folder / "alice"
        for name, uid in (("alice", ALICE), ("bob", BOB)):
            home = folder / name
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        lines = ["root:x:0:0::/root:/bin/sh"]
        lines += [f"{name}:x:{uid}:{uid}::{folder}/{name}:/bin/sh" for name, uid in (("alice", ALICE), ("bob", BOB))]
        (folder / "passwd").write_text("\n".join(lines) + "\n")

    def tell(self, text="It will be stopped.\n", uid=ALICE, way="home", more="") -> str:
        """Send a notice, and return what failed, or ""."""
        script = f'mount --bind {self.folder}/passwd /etc/passwd{more} && exec "$@"'
        namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "-"]
        done = subprocess.run(
            [*namespace, sys.executable, "-c", TELL, way, str(uid), text],
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout

    def as_user(self, script: str, uid: int = ALICE) -> None:
        subprocess.run(
            ["sh", "-ec", script],
            cwd=self.alice if uid == ALICE else "/",
            user=uid,
            group=uid,
            extra_groups=[],
            check=True,
        )


@pytest.fixture
def homes():
    with public_folder() as folder:
        yield Homes(folder)


def test_file_belongs_to_the_user_and_is_replaced(homes):
    for text in ("It will be stopped.\n", "It was stopped.\n"):
        assert homes.tell(text) == ""
        (file,) = homes.alice.iterdir()
        status = file.lstat()
        assert (file.name, file.read_text()) == (NAME, text)
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (ALICE, ALICE, 0o600)


PREPARED = {
    "a link to root's file": "ln -s {victim} {name}",
    "a link to nowhere": "ln -s {victim}.new {name}",
    "a FIFO": "mkfifo {name}",
    "a directory": "mkdir {name}",
}


@pytest.mark.parametrize("script", PREPARED.values(), ids=PREPARED)
def test_link_or_pipe_at_the_path_is_neither_followed_nor_awaited(homes, script):
    victim = homes.folder / "victim"
    victim.write_text("root's")
    homes.as_user(script.format(victim=victim, name=NAME))
    before = (homes.alice / NAME).lstat()
    assert f"home: {NAME} exists and is not a regular file" in homes.tell()
    assert (homes.alice / NAME).lstat() == before or (homes.alice / NAME).lstat().st_ino == before.st_ino
    assert victim.read_text() == "root's" and not victim.with_suffix(".new").exists()
    assert [path.name for path in homes.alice.iterdir()] == [NAME]


def test_home_that_is_a_link_is_not_followed(homes):
    homes.alice.rmdir()
    homes.alice.symlink_to(homes.folder / "bob")
    assert "home: the file cannot be written" in homes.tell()
    assert list((homes.folder / "bob").iterdir()) == []


def test_home_that_is_a_fifo_is_not_awaited(homes):
    homes.alice.rmdir()
    os.mkfifo(homes.alice)
    assert "home: the file cannot be written" in homes.tell()


def test_home_of_another_user_gets_no_file(homes):
    homes.alice.chmod(0o777)
    os.chown(homes.alice, BOB, BOB)
    assert "does not belong to alice" in homes.tell()
    assert list(homes.alice.iterdir()) == []


def test_missing_home_is_reported(homes):
    homes.alice.rmdir()
    assert "home: the file cannot be written" in homes.tell()
    assert "uid 61009 has no account" in homes.tell(uid=61009)


def test_full_home_is_reported(homes):
    """Report a full home, and keep the previous file."""
    assert homes.tell("before\n") == ""
    homes.as_user("chmod 500 .")
    assert "home: the file cannot be written" in homes.tell("after\n")
    assert (homes.alice / NAME).read_text() == "before\n"


def test_stopped_writer_is_not_awaited(homes):
    """Do not wait for a stopped writer.

    The user can stop the child, because it has the user's id. It is killed at its timeout.
    """
    stopper = (
        "while :; do for p in /proc/[0-9]*; do grep -qs reclaim.import.tell $p/cmdline && kill -STOP ${p#/proc/}; "
        "done; done"
    )
    process = subprocess.Popen(
        ["sh", "-c", stopper], cwd="/", user=ALICE, group=ALICE, extra_groups=[], stderr=subprocess.DEVNULL
    )
    try:
        said = homes.tell()
    finally:
        process.kill()
        process.wait()
    # Either the child finished in time, or the run gave up.
    assert said == "" or "takes too long" in said


@pytest.mark.skipif(shutil.which("wall") is None, reason="wall is not installed")
def test_wall_reaches_a_terminal(homes):
    """Run the real program wall, with a terminal in the list of logins."""
    controller, terminal = pty.openpty()
    line = os.ttyname(terminal).removeprefix("/dev/").encode()
    # An entry of utmp(5) for a logged-in user.
    entry = (7, os.getpid(), line, b"0", b"alice", b"", 0, 0, 0, 1, 0, 0, 0, 0, 0, b"")
    (homes.folder / "utmp").write_bytes(struct.pack("=hxxi32s4s32s256shhiii4i20s", *entry))
    assert homes.tell(way="wall", more=f" && touch /run/utmp && mount --bind {homes.folder}/utmp /run/utmp") == ""
    os.set_blocking(controller, False)
    assert b"It will be stopped." in os.read(controller, 65536)
