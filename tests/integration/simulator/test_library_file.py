# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the state file.

The tests cover concurrent creation, replacement while threads use the file, and use after a fork.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.patience import PATIENCE_SECONDS

SOURCE = Path(__file__).resolve().parents[3] / "roles" / "gpu_simulator" / "files" / "src"
HOST_WITHOUT_GPUS = "host\ndriver_version 580.65.06\ncuda_version 13000\n"


def ended(child):
    child.wait(PATIENCE_SECONDS)
    return child.returncode


def test_child_recovers_after_it_could_open_no_file(simulator):
    simulator.create("h100", "h100")
    code = """
import resource
few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
if not (pid := os.fork()):
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    nvmlInit()
    os._exit(nvmlDeviceGetCount())
print(os.waitpid(pid, 0)[1] >> 8)
"""
    assert simulator.python(code).stdout.readline() == "2\n"


@pytest.mark.parametrize("before", [None, b"another schema"])
def test_concurrent_inits_share_one_file(simulator, tmp_path, before):
    """Create the file concurrently.

    If one process replaced the other's file, the GPUs in the replaced file would be visible only to their creator.
    """
    code = f"""
import ctypes, os, sys, time
library = ctypes.CDLL({str(simulator.path)!r})
for path in sys.stdin.read().split():
    while time.monotonic() < float(path.rsplit("-", 1)[1]):
        pass
    os.environ["GPUSIM_STATE"] = path
    assert library.gpusimCreate({HOST_WITHOUT_GPUS.encode()!r}) == 0
    opened = [f"/proc/self/fd/{{number}}" for number in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in opened if os.path.islink(link)]
    assert path in names, names
"""
    start = time.monotonic() + 0.5
    paths = [tmp_path / f"state-{start + 0.005 * n}" for n in range(200)]
    if before:
        for path in paths:
            path.write_bytes(before)
    for _ in range(2):
        simulator.children.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True))
    for client in simulator.children:
        client.stdin.write(" ".join(map(str, paths)))
        client.stdin.close()
    assert [ended(client) for client in simulator.children] == [0, 0]
    assert sorted(tmp_path.iterdir()) == sorted(paths), "nothing else is left"


REPLACED_UNDER_A_THREAD = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "gpusim.h"

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *);

static _Atomic int over;

static void *call(void *none)
{
	unsigned count;
	while (!over)
		nvmlDeviceGetCount_v2(&count);
	return none;
}

int main(int count, char **configuration)
{
	pthread_t caller;
	if (count != 2 || gpusimCreate(configuration[1]) || nvmlInit_v2() || pthread_create(&caller, NULL, call, NULL))
		return 1;
	for (int i = 0; i < 200; i++)
		if (remove(getenv("GPUSIM_STATE")) || gpusimCreate(configuration[1]))
			return 2;
	over = 1;
	return pthread_join(caller, NULL);
}
"""


@pytest.mark.parametrize("watch", ["", pytest.param("-fsanitize=thread -g -O1", marks=pytest.mark.thorough)])
def test_thread_can_call_while_another_handles_a_replaced_file(simulator, tmp_path, watch):
    """Replace the file while two threads use it.

    The thorough run uses ThreadSanitizer, because the race has a window of a few instructions and depends on the
    compiler.
    """
    (tmp_path / "main.c").write_text(REPLACED_UNDER_A_THREAD)
    library = simulator.path
    if watch:
        (tmp_path / "probe.c").write_text("int main(void) { return 0; }\n")
        probe = f"cc {watch} {tmp_path}/probe.c -o {tmp_path}/probe && {tmp_path}/probe"
        if subprocess.run(probe, shell=True, capture_output=True).returncode != 0:
            pytest.skip("the compiler has no ThreadSanitizer that runs on this machine")
        make = ["make", "-s", "-j2", "-C", str(SOURCE), f"BUILD={tmp_path}"]
        subprocess.run([*make, f"CFLAGS={watch}", "LDFLAGS=-fsanitize=thread"], check=True)
        library = tmp_path / "libnvidia-ml.so.1"
    compile_ = f"cc {watch} -I{SOURCE} {tmp_path}/main.c {library} -o {tmp_path}/main -pthread"
    subprocess.run(compile_, shell=True, check=True)
    environment = {**simulator.environment, "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run([tmp_path / "main", HOST_WITHOUT_GPUS], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
