#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

nvidia-smi -i 1 -c PROHIBITED

# The pynvml that root runs, for anyone to write.
chmod 0666 /usr/local/lib/openfleet-gpu/python/pynvml.py
