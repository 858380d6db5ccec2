# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library and its clients under sanitizers, and many threads at once with and without one.

The driver stub is built without; so are loader.c and resolve.c, since the sanitizers look their own functions up through them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from account import PITCH
from limiter_lab import DEADLINE, Built, Tenant
from test_sequences import SEED, run

MIB = 1 << 20
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}


def sanitized(folder: Path, sanitizer: str) -> Built:
    """Built with it, or the test is skipped where gcc has not got its library."""
    name = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_absolute():
        pytest.skip(f"this gcc has no {name}")
    return Built(folder / sanitizer.split(",")[0], sanitizer)


def test_sequences_under_address_and_undefined_behaviour_sanitizer(build_folder: Path) -> None:
    run(sanitized(build_folder, "address,undefined"), 4, 30, SEED * 100 + 70)


#: Bits of client/all_ways.c. With pools or rows only the driver knows what a call takes, once it has taken it.
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
    """With a quota so small that many calls are refused. What does not fit is handed back at once where it is known only
    afterwards, and until then the card sees it."""
    tenant.quota(quota)
    threads(tenant, built, quota, THREADS, 3000, ways)
    assert quota <= tenant.peak() <= quota + beyond


# The leg `threads` of the thorough run has every launch of several threads under the second.
@pytest.mark.parametrize("sanitizer", ["address,undefined", pytest.param("thread", marks=pytest.mark.thorough)])
def test_threads_under_a_sanitizer(tenant: Tenant, build_folder: Path, sanitizer: str) -> None:
    built = sanitized(build_folder, sanitizer)
    tenant.built = built
    tenant.quota(40 * MIB)
    threads(tenant, built, 40 * MIB, 6, 400)
