#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

# Disable MIG mode on an Ampere GPU. The repair must reset the GPU.
nvidia-smi mig -i 1 -dci
nvidia-smi mig -i 1 -dgi
nvidia-smi -i 1 -mig 0
