# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the limiter's tests: what is built once, and a card and tenants of each test's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import turnstile_lab
from card import Card
from limiter_lab import Built, Tenant
from sm import World

if TYPE_CHECKING:
    from agent_lab import Agent


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all test processes of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "limiter"


@pytest.fixture(scope="session")
def built(build_folder: Path) -> Built:
    """The library as it is released, the stub and the client; with the sanitizer that OPENFLEET_SANITIZER names, if any."""
    sanitizer = os.environ.get("OPENFLEET_SANITIZER", "")
    return Built(build_folder / (f"all-{sanitizer.replace(',', '-')}" if sanitizer else "release"), sanitizer)


@pytest.fixture(scope="session")
def library(build_folder: Path) -> ctypes.CDLL:
    """The turnstile's arithmetic, by itself."""
    return turnstile_lab.load(build_folder)


@pytest.fixture
def turnstile(library: ctypes.CDLL) -> turnstile_lab.Turnstile:
    """An empty turnstile."""
    new = turnstile_lab.Turnstile()
    assert library.turnstile_adopt(ctypes.byref(new))
    return new


@pytest.fixture
def world(tmp_path: Path, built: Built) -> World:
    """A GPU in virtual time."""
    return World(tmp_path, built)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """The host's agent, to be started."""
    from agent_lab import Agent

    made = Agent(tmp_path / "root")
    yield made
    made.end()


@pytest.fixture
def card(tmp_path: Path) -> Card:
    """One card of 16 GiB."""
    return Card(tmp_path / "card")


@pytest.fixture
def tenant(tmp_path: Path, card: Card, built: Built) -> Tenant:
    """A tenant without a quota yet: `tenant.quota(1 << 30)`."""
    return Tenant(tmp_path / "root", card, built)
