# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the library and its clients under sanitizers and with many threads.

The driver stub, loader.c and resolve.c are built without sanitizers, because the sanitizers look up their own functions
through them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.limiter.account import PITCH
from tests.limiter.limiter_lab import DEADLINE, Built, Tenant
from tests.limiter.test_sequences import SEED, run

MIB = 1 << 20
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}


def sanitized(folder: Path, sanitizer: str) -> Built:
    """Build with a sanitizer. Skips the test if gcc lacks its library."""
    name = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_absolute():
        pytest.skip(f"this gcc has no {name}")
    return Built(folder / sanitizer.split(",")[0], sanitizer)


def test_sequences_under_address_and_undefined_behaviour_sanitizer(build_folder: Path) -> None:
    run(sanitized(build_folder, "address,undefined"), 4, 30, SEED * 100 + 70)


#: Flags of client/all_ways.c. The size of pools and rows is known only to the driver, and only after the allocation.
ALL_WAYS, POOLS, ROWS = 0xFF, 1 << 1, 1 << 6
THREADS, ROWS_AT_ONCE = 8, 2


def threads(tenant: Tenant, built: Built, quota: int, count: int, rounds: int, ways: int = ALL_WAYS) -> None:
    flags = [f"-fsanitize={built.sanitizer}"] if built.sanitizer else []
    program = built.program("all_ways", "-Wno-strict-prototypes", *flags)
    done = subprocess.run(
        [str(program), str(count), str(rounds), str(quota), str(ways)],
        env={**tenant.environment(), **OPTIONS},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ways", "quota", "beyond"),
    [
        (ALL_WAYS & ~POOLS & ~ROWS, 3 * MIB, 0),
        (ALL_WAYS & ~POOLS, 3 * MIB, THREADS * ROWS_AT_ONCE * (PITCH - 1)),
        (ALL_WAYS, 34 * MIB, 64 * MIB),
    ],
    ids=["known before", "with rows", "with pools"],
)
def test_threads(tenant: Tenant, built: Built, ways: int, quota: int, beyond: int) -> None:
    """Allocate in many threads, with a quota so small that many calls are refused.

    If the size is known only after the allocation, the limiter frees memory above the quota at once. Until then, the
    card holds this memory.
    """
    tenant.quota(quota)
    threads(tenant, built, quota, THREADS, 3000, ways)
    assert quota <= tenant.peak() <= quota + beyond


# In the thorough run, the leg `threads` uses the thread sanitizer and every kind of launch in several threads.
@pytest.mark.parametrize("sanitizer", ["address,undefined", pytest.param("thread", marks=pytest.mark.thorough)])
def test_threads_under_a_sanitizer(tenant: Tenant, build_folder: Path, sanitizer: str) -> None:
    built = sanitized(build_folder, sanitizer)
    tenant.built = built
    tenant.quota(40 * MIB)
    threads(tenant, built, 40 * MIB, 6, 400)
