# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test vgpu-top with running, killed, new and removed tenants, and invalid files."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import pty
import shutil
import struct
import subprocess
import tempfile
import termios
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes.child_process import readable
from tests.limiter.limiter_lab import DEADLINE, Built, Client, Tenant

MIB, GIB = 1 << 20, 1 << 30
SEAT_0_BUSY = (
    16 + 16 + 96 + 4096 + 104
)  # The offset of used_ns in the first seat of a turnstile. turnstile_lab.py has the layout.


@pytest.fixture
def top_program(built: Built) -> Path:
    return built.library.parent / "vgpu-top"


@pytest.fixture
def top(top_program: Path, tmp_path: Path):
    """Return a function that runs vgpu-top and returns its output.

    With --json, the output is returned as an object.
    """

    def run(*words: str) -> object:
        command = [str(top_program), "--interval", "0.01", *words]
        environment = {**os.environ, "OPENFLEET_VGPU_ROOT": str(tmp_path / "root")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return run


def only(shown: object) -> dict:
    assert len(shown["tenants"]) == 1
    return shown["tenants"][0]


def test_where_nothing_is_there_it_says_so(top):
    assert "No tenants on this host" in top("--once")
    assert "gpu_layout" in top("--once")
    assert top("--json") == {"version": 1, "tenants": []}


def test_a_tenant_without_processes(top, tenant, card):
    tenant.quota(8 * GIB, sm=30, policy="burst", priority=2, seat=7)
    shown = only(top("--json"))
    gpu = shown["gpus"][0]
    assert (shown["name"], shown["policy"], shown["priority"], shown["problem"]) == ("tenant-a", "burst", 2, None)
    assert (gpu["uuid"], gpu["quota_bytes"], gpu["sm_percent"]) == (card.uuid(), 8 * GIB, 30)
    assert (gpu["used_bytes"], gpu["peak_bytes"], gpu["actual_percent"], gpu["throttled_seconds"]) == (0, 0, None, None)
    assert shown["processes"] == []


def test_what_processes_use_and_what_was_refused(top, tenant):
    tenant.quota(GIB)
    with tenant.client() as one, tenant.client() as two:
        one.free(one.alloc(900 * MIB))
        one.alloc(100 * MIB)
        two.alloc(200 * MIB)
        assert two.call("cuMemAlloc_v2", "&", GIB)[0] == 2
        shown = only(top("--json"))
        gpu = shown["gpus"][0]
        assert (gpu["used_bytes"], gpu["peak_bytes"], gpu["refused"]) == (300 * MIB, 900 * MIB, 1)
        processes = {process["pid"]: process for process in shown["processes"]}
        assert set(processes) == {one.pid, two.pid}
        assert processes[two.pid]["used_bytes"] == [200 * MIB]
        assert processes[one.pid]["name"] == "client"
        table = top("--once", "--processes")
        assert "300.0 MiB" in table
        assert f"{two.pid}" in table
        two.kill()
        shown = only(top("--json"))
        assert [process["pid"] for process in shown["processes"]] == [one.pid]
        assert shown["gpus"][0]["used_bytes"] == 100 * MIB
    assert only(top("--json"))["processes"] == []


def test_a_renamed_tenant_is_shown_once_with_the_processes_of_both_names(top, tenant):
    tenant.quota(GIB, sm=50)
    quota = (tenant.folder / "quota").read_text()
    new = tenant.folder.with_name("tenant-b")
    new.mkdir()
    (new / "quota").write_text(quota.replace("tenant tenant-a", "tenant tenant-b\ncounted_as tenant-a"))
    (tenant.folder / "alias_of").write_text("tenant-b\n")
    with tenant.client() as one, tenant.client(OPENFLEET_VGPU="tenant-b") as two:
        one.alloc(100 * MIB)
        two.alloc(200 * MIB)
        for _ended in (False, True):
            shown = only(top("--json"))
            assert (shown["name"], shown["problem"]) == ("tenant-b", None)
            assert {process["pid"] for process in shown["processes"]} == {one.pid, two.pid}
            assert shown["gpus"][0]["used_bytes"] == 300 * MIB
            # The loop runs twice. In the second pass, the tenant no longer has its earlier name.
            (tenant.folder / "quota").unlink(missing_ok=True)
            (tenant.folder / "alias_of").unlink(missing_ok=True)


def test_a_process_of_another_pid_namespace_is_found_by_its_pid_here(top, tenant, built):
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    wrap = ["unshare", *user, "--pid", "--fork", "--kill-child"]
    if subprocess.run([*wrap, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a pid namespace")
    tenant.quota(GIB)
    with subprocess.Popen(
        [*wrap, str(built.client)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=tenant.environment(),
        bufsize=1,
    ) as process:
        client = Client.__new__(Client)
        client.process, client.pid = process, process.pid
        client._in, client._out = process.stdin, process.stdout
        client.start()
        client.alloc(MIB)
        (shown,) = only(top("--json"))["processes"]
        assert shown["own_pid"] == 1
        assert Path(f"/proc/{shown['pid']}/exe").resolve() == built.client.resolve()
        process.stdin.close()
        process.wait(DEADLINE)


def test_the_share_that_a_tenant_had_is_told_from_two_looks(top, tenant):
    """Check that vgpu-top shows a tenant's share, and 0 after the tenant stopped.

    The exact share of a running tenant depends on the machine.
    """
    tenant.quota(GIB, sm=30)
    path = next(tenant.gpus.iterdir())
    path.write_bytes(turnstile_of(tenant.name, 30))
    stop = threading.Event()

    def work() -> None:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            busy = 0
            while not stop.is_set():
                busy += 1000
                memory[SEAT_0_BUSY : SEAT_0_BUSY + 8] = busy.to_bytes(8, "little")

    worker = threading.Thread(target=work)
    worker.start()
    deadline = time.monotonic() + DEADLINE
    try:
        # Repeat if the worker did no work between the two readings.
        while (gpu := only(top("--json", "--interval", "0.2"))["gpus"][0])["actual_percent"] == 0:
            assert time.monotonic() < deadline
    finally:
        stop.set()
        worker.join()
    assert gpu["actual_percent"] > 0
    assert gpu["busy_seconds"] > 0
    assert only(top("--json"))["gpus"][0]["actual_percent"] == 0


def turnstile_of(name: str, percent: int) -> bytes:
    from tests.limiter.turnstile_lab import Turnstile

    turnstile = Turnstile(magic=0x5455504756464F00, version=1)
    turnstile.seats[0].tenant, turnstile.seats[0].percent = name.encode(), percent
    turnstile.seats[0].throttled_ns = 2_500_000_000
    assert Turnstile.seats.offset + type(turnstile.seats[0]).used_ns.offset == SEAT_0_BUSY
    return bytes(turnstile)


def test_waits_of_online_tenants_are_shown(top, tenant):
    from tests.limiter.turnstile_lab import Turnstile

    turnstile = Turnstile(magic=0x5455504756464F00, version=1)
    turnstile.seats[0].tenant, turnstile.seats[0].percent = tenant.name.encode(), 30
    colocated = (
        "version 1\ntenant %s\npolicy colocate\npriority %%d\nwaterline 80\ngpu %s memory 1073741824 sm 30 seat 0\n"
    )
    colocated %= (tenant.name, tenant.card.uuid())
    tenant.write(colocated % 0)
    path = next(tenant.gpus.iterdir())
    path.write_bytes(bytes(turnstile))
    assert "  has not waited for offline kernels\n" in top("--once")
    turnstile.seats[0].waits, turnstile.seats[0].waits_ns, turnstile.seats[0].late = 4, 50_000_000, 1
    turnstile.seats[0].gave_way = 7
    path.write_bytes(bytes(turnstile))
    waited = "  waits for the rest of an offline kernel: 4, 12.5 ms on average, longer than 20 ms: 1\n"
    assert waited in top("--once")
    gpu = only(top("--json"))["gpus"][0]
    assert (gpu["waits"], gpu["waits_seconds"], gpu["late"], gpu["gave_way"]) == (4, 0.05, 1, 7)
    tenant.write(colocated % 1)
    assert "  pauses for online tenants: 7\n" in top("--once")
    tenant.quota(GIB, sm=30, policy="burst")
    assert "waits" not in only(top("--json"))["gpus"][0]


def test_a_seat_of_another_tenant_is_not_taken_for_ones_own(top, tenant):
    tenant.quota(GIB, sm=30)
    path = next(tenant.gpus.iterdir())
    path.write_bytes(turnstile_of(tenant.name, 30))
    assert only(top("--json"))["gpus"][0]["throttled_seconds"] == 2.5
    path.write_bytes(turnstile_of("tenant-b", 30))
    assert only(top("--json"))["gpus"][0]["throttled_seconds"] is None


def test_files_that_are_not_right_are_named_with_what_is_wrong(top, tenant):
    tenant.quota(GIB)
    tenant.region.write_bytes(b"\x07" * (1 << 20))
    assert "region.1: has a format" in only(top("--json"))["problem"]
    tenant.region.unlink()
    assert "region.1: is missing" in only(top("--json"))["problem"]
    tenant.write("version 1\ntenant tenant-a\npolicy sometimes\n")
    assert "quota, line 3" in only(top("--json"))["problem"]
    (tenant.folder / "quota").unlink()
    assert "quota: is missing" in only(top("--json"))["problem"]
    assert "! " in top("--once")


def test_names_from_the_shared_region_cannot_write_to_the_terminal(top, tenant):
    tenant.quota(GIB)
    with tenant.client() as client:
        client.alloc(MIB)
        content = tenant.region.read_bytes()
        with tenant.region.open("r+b") as file:
            file.seek(content.index(b"client\0"))
            file.write(b"\x1b]0;\x07\n")
        table = top("--once", "--processes")
        assert "\x1b" not in table
        assert "\x07" not in table
        assert only(top("--json"))["processes"][0]["name"].startswith("?]0;??")


def test_any_user_that_may_read_the_files_may_use_it(top_program, card, built):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copy(top_program, root / "vgpu-top")
        tenant = Tenant(root / "root", card, built).quota(GIB)
        with tenant.client() as client:
            client.alloc(MIB)
            done = subprocess.run(
                [str(root / "vgpu-top"), "--json", "--interval", "0.01"],
                capture_output=True,
                text=True,
                env={"OPENFLEET_VGPU_ROOT": str(tenant.root)},
                user="nobody",
                timeout=DEADLINE,
            )
            shown = only(json.loads(done.stdout))
            assert shown["gpus"][0]["used_bytes"] == MIB
            (process,) = shown["processes"]
            assert (process["pid"], process["own_pid"]) == (None, client.pid), "other users' pids are not to be seen"


@pytest.mark.parametrize(
    "words", [["--what"], ["--interval"], ["--interval", "x"], ["--interval", "0"], ["--interval", "-1"]]
)
def test_words_that_it_does_not_know_end_it_with_2(top_program, words):
    done = subprocess.run([str(top_program), *words], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 2
    assert "vgpu-top --help" in done.stderr


def test_its_help_names_each_option(top_program):
    done = subprocess.run([str(top_program), "--help"], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0
    for word in ("--once", "--json", "--interval", "--processes", "usage: vgpu-top"):
        assert word in done.stdout


class Terminal:
    """Run vgpu-top in a pseudo-terminal."""

    def __init__(self, program: Path, root: Path) -> None:
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.environ["OPENFLEET_VGPU_ROOT"] = str(root)
            os.execv(program, [str(program), "--interval", "0.05"])
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))

    def read(self) -> bool:
        """Wait up to a second for output, and add it to `text`.

        Returns whether the program still runs.
        """
        if not readable(self.descriptor, time.monotonic() + 1):
            return True
        try:
            more = os.read(self.descriptor, 65536)
        except OSError:
            more = b""  # The program has ended.
        self.text += more.decode(errors="replace")
        return bool(more)

    def until(self, wanted: str) -> None:
        """Wait for a text in the output from now on."""
        deadline = time.monotonic() + DEADLINE
        while wanted not in self.text:
            assert time.monotonic() < deadline and self.read(), f"{wanted!r} never came: {self.text[-2000:]!r}"
        self.text = ""

    def end(self) -> tuple[int, str]:
        while self.read():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status), self.text


def test_the_view_follows_tenants_that_come_and_go_and_heeds_keys(top_program, tmp_path, card, built):
    root = tmp_path / "root"
    terminal = Terminal(top_program, root)
    terminal.until("No tenants")
    tenant = Tenant(root, card, built).quota(2 * GIB, sm=30)
    terminal.until("tenant-a")
    with tenant.client() as client:
        client.alloc(512 * MIB)
        terminal.until("512.0 MiB")
        os.write(terminal.descriptor, b"p")
        terminal.until(f"{client.pid}")
    tenant.quota(4 * GIB, sm=30)
    terminal.until("4.0 GiB")
    shutil.rmtree(tenant.folder)
    shutil.rmtree(tenant.region.parent)
    terminal.until("No tenants")
    os.write(terminal.descriptor, b"q")
    code, text = terminal.end()
    assert code == 0
    assert text.endswith("\x1b[?25h\x1b[?1049l"), "the terminal is left as it was"


def test_control_c_ends_the_view_too(top_program, tmp_path, card):
    terminal = Terminal(top_program, tmp_path / "root")
    terminal.until("q exit")
    os.write(terminal.descriptor, b"\x03")
    code, text = terminal.end()
    assert code == 0
    assert text.endswith("\x1b[?1049l")
