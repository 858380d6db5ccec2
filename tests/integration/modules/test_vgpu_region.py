# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read tenants' usage that a program writes in the library's format.

The tests compile the program with the library's header.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import model as vgpu_model
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import observe as vgpu_observe
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuUsage, VgpuUse

SOURCES = Path(__file__).resolve().parents[3] / "roles" / "vgpu_limiter" / "files" / "src"

#: Three processes: one is alive, one is dead, and one is alive and has a context only on the second GPU. The program
#: never closes the mapping.
WRITER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "formats/region.h"
#include "formats/turnstile.h"

int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT, 0666);
	struct region *r;

	if (argc != 2 || fd < 0 || ftruncate(fd, sizeof *r))
		return 1;
	r = mmap(0, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	for (int gpu = 0; gpu < 2; gpu++) {
		for (int byte = 0; byte < 16; byte++)
			r->gpus[gpu].uuid[byte] = 16 * gpu + byte;
		r->gpus[gpu].taken = 1;
		r->gpus[gpu].total = 1;
		r->gpus[gpu].peak = 1000 + gpu;
		r->gpus[gpu].refused = 7 * gpu;
	}
	for (int slot = 0; slot < 3; slot++) {
		struct flock lock = {F_WRLCK, SEEK_SET, LOCK_SLOTS + slot, 1, 0};

		r->slots[slot].state = SLOT_USED;
		r->slots[slot].used[0] = slot < 2 ? 100 << slot : 0;
		r->slots[slot].context[1] = 3;
		if (slot != 1 && fcntl(fd, F_OFD_SETLK, &lock))
			return 2;
	}
	r->slots[3].used[0] = 5000;	/* nobody's */
	r->version = REGION_VERSION;
	r->size = sizeof *r;
	r->slot_limit = 4;
	r->magic = REGION_MAGIC;
	printf("%d %d %d\n", REGION_GPUS, TURNSTILE_SEATS, REGION_VERSION);
	fflush(stdout);
	return getchar() == EOF ? 0 : 3;
}
"""


@pytest.fixture(name="writer", scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("region")
    (folder / "writer.c").write_text(WRITER)
    command = ["cc", "-std=gnu11", "-I", str(SOURCES), "-o", str(folder / "writer"), str(folder / "writer.c")]
    subprocess.run(command, check=True)
    return str(folder / "writer")


def test_usage_of_live_processes_is_read(writer, tmp_path):
    region = tmp_path / "region.1"
    region.touch()
    assert vgpu_observe.read_region(region) == VgpuUsage(), "a region is empty until a process has come"
    with subprocess.Popen([writer, str(region)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        gpus, seats, version = map(int, process.stdout.readline().split())
        assert (gpus, seats, version) == (vgpu_model.MOST_GPUS, vgpu_model.SEATS, vgpu_files.REGION_VERSION)
        first, second = (
            "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
            "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f",
        )
        assert vgpu_observe.read_region(region) == VgpuUsage(
            2, (VgpuUse(first, 100, 1000, 0), VgpuUse(second, 6, 1001, 7))
        )
        process.stdin.close()
    assert process.returncode == 0
    gone = vgpu_observe.read_region(region)
    assert (gone.processes, [use.used_bytes for use in gone.gpus]) == (0, [0, 0])


@pytest.mark.parametrize("data", [b"x" * 64, b"\0OFVGPU1"[::-1] + b"\2" * 400000, b"\0" * 7 + b"1"])
def test_invalid_region_is_ignored(tmp_path, data):
    (tmp_path / "region.1").write_bytes(data)
    assert vgpu_observe.read_region(tmp_path / "region.1") is None


def test_missing_region_is_ignored(tmp_path):
    assert vgpu_observe.read_region(tmp_path / "region.1") is None
    (tmp_path / "link").symlink_to("/dev/zero")
    assert vgpu_observe.read_region(tmp_path / "link") is None
