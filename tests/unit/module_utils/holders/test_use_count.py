# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the driver's use count with the open files that a scan finds."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.use_count import Found, Verdict, compare, references

OLD = "Character devices:\n  1 mem\n195 nvidia-frontend\n508 nvidia-caps\n510 nvidia-uvm\n"
NEW = (
    "Character devices:\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n507 nvidia-caps-imex-channels\n508 nvidia-caps\n"
    "510 nvidia-uvm\n"
)
LINE = "nvidia 56717312 %s %s Live 0xffffffffc0a00000 (POE)\n"
OTHERS = "nvidia_uvm 1736704 4 - Live 0x0000000000000000 (OE)\next4 995328 2 - Live 0x0000000000000000\n"
NOTHING = Found(0, 0, complete=True, uses=False)


@pytest.mark.parametrize(
    ("number", "listed", "count"),
    [
        ((195, 0), NEW, 1),
        ((195, 255), NEW, 1),
        ((195, 254), NEW, 0),
        ((508, 1), NEW, 2),
        ((507, 0), NEW, 2),
        ((510, 0), NEW, 0),
        ((0, 0), NEW, 1),
        ((195, 0), OLD, 3),
        ((195, 255), OLD, 3),
        ((195, 254), OLD, 2),
        ((508, 1), OLD, 2),
        ((1, 3), OLD, 0),
    ],
)
def test_references_per_node_match_the_drivers_source(number, listed, count):
    assert references(number, listed) == count


def text(count, users="-", others=OTHERS):
    return LINE % (count, users) + others


@pytest.mark.parametrize(
    ("before", "after", "found", "verdict"),
    [
        # No file is open. Each dependent module adds one to the use count.
        (text(0), text(0), NOTHING, Verdict(0, True)),
        (text(2, "nvidia_uvm,nvidia_modeset,"), text(2, "nvidia_uvm,nvidia_modeset,"), NOTHING, Verdict(0, True)),
        (text(3, "nvidia_uvm,nvidia_modeset,"), text(3, "nvidia_uvm,nvidia_modeset,"), NOTHING, Verdict(1, False)),
        # The open files explain the count fully. Or the count lies between the number of open files and the number that
        # includes mappings.
        (text(11, "nvidia_uvm,"), text(11, "nvidia_uvm,"), Found(10, 10, True, True), Verdict(0, True)),
        (text(12, "nvidia_uvm,"), text(12, "nvidia_uvm,"), Found(10, 40, True, True), Verdict(0, False)),
        (text(42, "nvidia_uvm,"), text(42, "nvidia_uvm,"), Found(10, 40, True, True), Verdict(1, False)),
        # The count changed because files were opened or closed during the scan.
        (text(5), text(0), NOTHING, Verdict(0, False)),
        (text(0), text(5), NOTHING, Verdict(0, False)),
        (text(7), text(5), NOTHING, Verdict(5, False)),
        # The number of shared open files is unknown. Only a count above the maximum proves hidden users.
        (text(4), text(4), Found(None, 4, True, True), Verdict(0, False)),
        (text(5), text(5), Found(None, 4, True, True), Verdict(1, False)),
        # The scan did not read all processes.
        (text(5), text(5), Found(0, 0, False, False), Verdict(0, False)),
        # The driver is not loaded, the kernel keeps no use counts (CONFIG_MODULE_UNLOAD), or /proc/modules is empty.
        (OTHERS, OTHERS, NOTHING, Verdict(0, False)),
        (text("-"), text("-"), NOTHING, Verdict(0, False)),
        ("", "", NOTHING, Verdict(0, False)),
        # The simulator prints this line.
        ("nvidia 0 0 - Live 0x0000000000000000 (POE)\n",) * 2 + (Found(1, 1, True, True), Verdict(0, False)),
    ],
)  # fmt: skip
def test_higher_count_means_hidden_users_and_equal_count_none(before, after, found, verdict):
    assert compare(before, after, found) == verdict


@pytest.mark.parametrize("module", ["nvidia_fs", "efa", "gdrdrv"])
def test_other_modules_with_references_invalidate_the_count(module):
    other = text(9, others=OTHERS + "%s 1 0 - Live 0x0 (OE)\n" % module)
    assert compare(other, other, NOTHING) == Verdict()


def test_rdma_keeps_buffers_of_processes_that_use_the_driver():
    rdma = text(9, others=OTHERS + "ib_core 1 0 - Live 0x0\n")
    assert compare(rdma, rdma, Found(4, 4, True, True)) == Verdict()
    assert compare(rdma, rdma, NOTHING) == Verdict(9, False)
