# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hide an open device node from the main thread's file descriptors.

The program then waits until its standard input ends. Usage: hiding.py HOW NODE. HOW is a name from WAYS.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
CLONE_FILES = 0x400
READ, PRIVATE, SHARED, PAGE = 1, 2, 1, 4096
EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
# Numbers of io_uring's system calls (io_uring(7)), which are the same on all architectures.
SETUP, REGISTER = 425, 427
REGISTER_FILES, REGISTER_RING = 2, 20
# The offset for mapping a ring's submission queue (linux/io_uring.h, IORING_OFF_SQ_RING).
RING_OFFSET = 0
UNSUPPORTED = 77


def opened(node: str) -> int:
    return os.open(node, os.O_RDONLY)


def wait() -> None:
    os.write(1, b"open\n")
    while os.read(0, 4096):
        pass
    os._exit(0)


def in_a_thread(work) -> None:
    """Run `work` in a thread with its own descriptor table."""

    def run() -> None:
        assert libc.unshare(CLONE_FILES) == 0
        work()
        wait()

    threading.Thread(target=run).start()
    threading.Event().wait()


def thread(node: str) -> None:
    in_a_thread(lambda: opened(node))


def two_threads(node: str) -> None:
    """Open the node in a thread that shares its descriptor table with another thread."""

    def work() -> None:
        opened(node)
        other = threading.Thread(target=wait)
        other.start()
        threading.Event().wait()

    in_a_thread(work)


def main_ended(node: str) -> None:
    opened(node)
    threading.Thread(target=wait).start()
    # Use the system call, because pthread_exit() would wait for the other threads.
    libc.syscall(EXIT, 0)


def main_ended_and_thread(node: str) -> None:
    def work() -> None:
        assert libc.unshare(CLONE_FILES) == 0
        opened(node)
        wait()

    threading.Thread(target=work).start()
    libc.syscall(EXIT, 0)


def mapped(node: str) -> None:
    descriptor = opened(node)
    assert libc.mmap(None, PAGE, READ, PRIVATE, descriptor, 0) != ctypes.c_void_p(-1).value
    os.close(descriptor)
    wait()


def mapped_low(node: str) -> None:
    """Map the node below 4 GiB, where the kernel pads addresses with zeros."""
    descriptor = opened(node)
    low, fixed = 0x10000000, 0x10
    assert libc.mmap(low, PAGE, READ, PRIVATE | fixed, descriptor, 0) == low
    os.close(descriptor)
    wait()


def main_ended_and_mapped(node: str) -> None:
    descriptor = opened(node)
    assert libc.mmap(None, PAGE, READ, PRIVATE, descriptor, 0) != ctypes.c_void_p(-1).value
    os.close(descriptor)
    threading.Thread(target=wait).start()
    libc.syscall(EXIT, 0)


def send(near: socket.socket, descriptor: int) -> None:
    near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    os.close(descriptor)


def in_flight(node: str, kind: int = socket.SOCK_STREAM) -> list:
    pair = socket.socketpair(socket.AF_UNIX, kind)
    send(pair[0], opened(node))
    return [*pair]


def stream(node: str) -> None:
    _kept = in_flight(node)
    wait()


def datagram(node: str) -> None:
    _kept = in_flight(node, socket.SOCK_DGRAM)
    wait()


def not_accepted(node: str) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("")
        server.listen()
        client.connect(server.getsockname())
        send(client, opened(node))
        client.close()
        wait()


def socket_in_flight(node: str) -> None:
    """Send the socket that holds the node through another socket, and leave it queued."""
    inner = in_flight(node)
    outer = socket.socketpair()
    for one in inner:
        send(outer[0], os.dup(one.fileno()))
        one.close()
    wait()


def in_flight_of_thread(node: str) -> None:
    in_a_thread(lambda: kept.extend(in_flight(node)))


kept: list = []


def ring_with(node: str) -> int:
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(SETUP, 4, parameters)
    if ring < 0:
        # io_uring is missing, or disabled for users (kernel.io_uring_disabled).
        sys.exit(UNSUPPORTED)
    descriptors = array.array("i", [opened(node)])
    address, count = descriptors.buffer_info()
    assert libc.syscall(REGISTER, ring, REGISTER_FILES, ctypes.c_void_p(address), count) == 0
    os.close(descriptors[0])
    return ring


def ring(node: str) -> None:
    ring_with(node)
    wait()


def ring_of_thread(node: str) -> None:
    in_a_thread(lambda: ring_with(node))


def close_ring(number: int) -> None:
    """Close the descriptor of an io_uring, but keep the ring open.

    First registers the ring for the thread (IORING_REGISTER_RING_FDS), so that the kernel keeps it.
    """
    update = (ctypes.c_uint64 * 2)(0xFFFFFFFF, number)
    if libc.syscall(REGISTER, number, REGISTER_RING, update, 1) != 1:
        sys.exit(UNSUPPORTED)
    os.close(number)


def mapped_ring(node: str) -> None:
    """Leave a ring as programs with liburing's io_uring_close_ring_fd() do."""
    number = ring_with(node)
    assert libc.mmap(None, PAGE, READ, SHARED, number, RING_OFFSET) != ctypes.c_void_p(-1).value
    close_ring(number)
    wait()


def closed_ring(node: str) -> None:
    close_ring(ring_with(node))
    wait()


def nothing(node: str) -> None:
    wait()


WAYS = {
    way.__name__: way
    for way in (
        thread, two_threads, main_ended, main_ended_and_thread, mapped, mapped_low, main_ended_and_mapped, stream, datagram,
        not_accepted, socket_in_flight, in_flight_of_thread, ring, ring_of_thread, mapped_ring, closed_ring, nothing,
    )
}  # fmt: skip

if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2])
