# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the tenant's quota file.

The tests cover valid and invalid content, untrusted files, and when a new file takes effect.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.limiter.account import MIB
from tests.limiter.limiter_lab import DEADLINE, OUT, Client, Tenant

UUID = "GPU-5c890000-0000-4000-8000-000000000001"
GOOD = f"version 1\ntenant tenant-a\ngpu {UUID} memory {8 * MIB} sm 100 seat 0\n"


def until(answer: Callable[[], object], wanted: object) -> object:
    """Repeat a query until it returns the wanted answer or times out.

    The library checks the file once a second.
    """
    end = time.monotonic() + DEADLINE
    while answer() != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return answer()


def total(client: Client) -> int:
    return client.memory()[1]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.upper().lower().replace("gpu-", "GPU-"),
        "# A comment.\n\n   \t\n" + GOOD.replace("\n", "   # more\n").replace(" ", "\t "),
        GOOD.replace("\n", "\r\n"),
        GOOD.rstrip("\n"),
        f"version 1\ngpu {UUID} seat 3 sm 20 memory {8 * MIB}\npolicy burst\npriority -5\ntenant tenant-a\n",
        GOOD + "counted_as tenant-a\n",
        f"gpu {UUID.replace('5c89', '5C89')} memory {8 * MIB}\nversion 1\n",
    ],
    ids=["plain", "lower", "comments", "crlf", "no newline", "order", "counted as itself", "short"],
)
def test_what_is_understood(tenant: Tenant, text: str) -> None:
    tenant.write(text)
    with tenant.client() as client:
        assert total(client) == 8 * MIB
    assert "line" not in tenant.logged()


def test_unknown_keys_are_passed_over_and_logged(tenant: Tenant) -> None:
    tenant.write(GOOD.replace("seat 0", "seat 0 colour green") + "future yes it is\n")
    with tenant.client() as client:
        assert total(client) == 8 * MIB
    assert "`colour`" in tenant.logged() and "`future`" in tenant.logged()


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("version 1", "version 2", 1, "version"),
        ("version 1\n", "", 3, "version 1"),
        ("tenant tenant-a", "tenant tenant-b", 2, "another tenant's"),
        ("tenant tenant-a", "tenant", 2, "without a value"),
        ("gpu ", "counted_as ../tenant-b\ngpu ", 3, "counted_as must be a name"),
        ("gpu ", f"counted_as {64 * 'x'}\ngpu ", 3, "counted_as must be a name"),
        ("gpu ", "policy free\ngpu ", 3, "fixed, contended, burst or colocate"),
        ("gpu ", "priority high\ngpu ", 3, "whole number"),
        ("gpu ", "managed free\ngpu ", 3, "counted or oversubscribed"),
        (UUID, "0", 3, "UUID"),
        (UUID, UUID + "0", 3, "UUID"),
        (UUID, "GPU-xyz", 3, "UUID"),
        (str(8 * MIB), "8GiB", 3, "bytes"),
        (str(8 * MIB), "-1", 3, "bytes"),
        (str(8 * MIB), "99999999999999999999999", 3, "bytes"),
        (f"memory {8 * MIB} ", "", 3, "memory"),
        ("sm 100", "sm 0", 3, "1 to 100"),
        ("sm 100", "sm 101", 3, "1 to 100"),
        ("sm 100 seat 0", "sm 50", 3, "seat"),
        ("seat 0", "seat 64", 3, "0 to 63"),
        ("seat 0", f"seat 0\ngpu {UUID} memory 1", 4, "twice"),
    ],
)
def test_what_is_not_understood(tenant: Tenant, old: str, new: str, line: int, says: str) -> None:
    """Limit nothing and log the error if the first quota file cannot be parsed.

    The log names the file, the line and the error.
    """
    assert old in GOOD
    tenant.write(GOOD.replace(old, new, 1))
    with tenant.client() as client:
        assert total(client) == tenant.card.memory
    found = [text for text in tenant.logged().splitlines() if f"line {line}:" in text]
    assert found and says in found[0], tenant.logged()


def test_more_gpus_than_there_is_room_for(tenant: Tenant) -> None:
    others = "".join(f"gpu GPU-{number:032x} memory 1\n" for number in range(16))
    tenant.write(GOOD + others)
    with tenant.client() as client:
        assert total(client) == tenant.card.memory
    assert "more than 16 GPUs" in tenant.logged()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write(tenant: Tenant, mode: int) -> None:
    tenant.write(GOOD)
    (tenant.folder / "quota").chmod(mode)
    with tenant.client() as client:
        assert total(client) == tenant.card.memory
        assert "users other than its owner may write it" in tenant.logged()
        quota = tenant.folder / "quota"
        seen = quota.stat().st_ctime_ns
        # Wait for another timestamp: file systems of some kernels have a resolution of 4 ms or more.
        while quota.stat().st_ctime_ns == seen:
            quota.chmod(0o644)
        assert until(lambda: total(client), 8 * MIB) == 8 * MIB


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else(tenant: Tenant) -> None:
    tenant.write(GOOD)
    os.chown(tenant.folder / "quota", 12345, 12345)
    with tenant.client() as client:
        assert total(client) == tenant.card.memory
    assert "does not belong to root" in tenant.logged()


@pytest.mark.parametrize("what", ["folder", "pipe", "long"])
def test_what_is_no_quota_file(tenant: Tenant, what: str) -> None:
    path = tenant.folder / "quota"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(GOOD + "#" * 20000)
    with tenant.client() as client:
        assert total(client) == tenant.card.memory
    assert {"folder": "regular file", "pipe": "regular file", "long": "16 KiB"}[what] in tenant.logged()


def test_a_new_file_holds_for_running_processes(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        address = client.alloc(6 * MIB)
        tenant.quota(4 * MIB)
        assert until(client.memory, (0, 4 * MIB)) == (0, 4 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == 2
        tenant.quota(16 * MIB)
        assert until(client.memory, (10 * MIB, 16 * MIB)) == (10 * MIB, 16 * MIB)
        client.alloc(10 * MIB)
        client.free(address)
        assert client.memory() == (6 * MIB, 16 * MIB)


def test_a_worse_file_or_none_leaves_the_one_before(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        assert total(client) == 8 * MIB
        tenant.write("version 1\nnonsense\n")
        assert until(lambda: (total(client), "still applies" in tenant.logged())[1], True)
        assert total(client) == 8 * MIB
        (tenant.folder / "quota").unlink()
        assert until(lambda: (total(client), "cannot read" in tenant.logged())[1], True)
        assert total(client) == 8 * MIB


def test_a_file_that_comes_later_holds_from_then_on(tenant: Tenant) -> None:
    with tenant.client() as client:
        assert total(client) == tenant.card.memory
        tenant.quota(8 * MIB)
        assert until(lambda: total(client), 8 * MIB) == 8 * MIB
        client.alloc(8 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == 2
