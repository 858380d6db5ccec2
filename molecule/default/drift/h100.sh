#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

# Print the GPU instance that starts at a memory slice. Rows of nvidia-smi end with "| GI-ID  START:SIZE |".
instance_at() { nvidia-smi mig -i "$1" -lgi | sed -n -E "s/^.* ([0-9]+) +$2:[0-9]+ +\|$/\1/p"; }

# GPU 0: destroy one of three instances. The repair must not touch the two others.
lost=$(instance_at 0 0)
nvidia-smi mig -i 0 -gi "$lost" -dci
nvidia-smi mig -i 0 -gi "$lost" -dgi

# GPU 3: destroy all instances, and disable MIG mode.
nvidia-smi mig -i 3 -dci
nvidia-smi mig -i 3 -dgi
nvidia-smi -i 3 -mig 0

# GPU 4: set short time slices manually. MIG mode would be drift too.
nvidia-smi compute-policy -i 4 --set-timeslice=1

# GPU 5: destroy one of two compute instances, but not their GPU instance.
split=$(instance_at 5 0)
nvidia-smi mig -i 5 -gi "$split" -ci 1 -dci

# GPU 2 keeps its seven instances. Stop the daemon of GPU 1 manually.
systemctl stop openfleet-mps@inference

# GPU 6 should be exclusive: allow shared use. GPU 7 should be shared: enable MIG mode.
nvidia-smi -i 6 -c DEFAULT
nvidia-smi -i 7 -mig 1

# Simulate a tool that overwrites pynvml.
echo '# altered' >>/usr/local/lib/openfleet-gpu/python/pynvml.py
