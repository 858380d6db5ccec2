# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for the limiter tests: shared builds, and a card and tenants per test."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.limiter import turnstile_lab
from tests.limiter.card import Card
from tests.limiter.limiter_lab import Built, Tenant
from tests.limiter.sm import World

if TYPE_CHECKING:
    from tests.limiter.agent_lab import Agent


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a build folder that all test processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "limiter"


@pytest.fixture(scope="session")
def built(build_folder: Path) -> Built:
    """Build the release library, the stub and the client.

    OPENFLEET_SANITIZER selects a sanitizer for the build.
    """
    sanitizer = os.environ.get("OPENFLEET_SANITIZER", "")
    return Built(build_folder / (f"all-{sanitizer.replace(',', '-')}" if sanitizer else "release"), sanitizer)


@pytest.fixture(scope="session")
def library(build_folder: Path) -> ctypes.CDLL:
    """Return a library with only the turnstile's arithmetic functions."""
    return turnstile_lab.load(build_folder)


@pytest.fixture
def turnstile(library: ctypes.CDLL) -> turnstile_lab.Turnstile:
    """Return a turnstile in which no seat is taken."""
    new = turnstile_lab.Turnstile()
    assert library.turnstile_adopt(ctypes.byref(new))
    return new


@pytest.fixture
def world(tmp_path: Path, built: Built) -> World:
    """Return a GPU with a simulated clock."""
    return World(tmp_path, built)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Return the host's agent, not started yet."""
    from tests.limiter.agent_lab import Agent

    made = Agent(tmp_path / "root")
    yield made
    made.end()


@pytest.fixture
def card(tmp_path: Path) -> Card:
    """Return one card with 16 GiB."""
    return Card(tmp_path / "card")


@pytest.fixture
def tenant(tmp_path: Path, card: Card, built: Built) -> Tenant:
    """Return a tenant without a quota. `tenant.quota(1 << 30)` sets one."""
    return Tenant(tmp_path / "root", card, built)
