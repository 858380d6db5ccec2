#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

# The GPU instance of a GPU that starts at a memory slice: nvidia-smi's rows end with "| GI-ID  START:SIZE |".
instance_at() { nvidia-smi mig -i "$1" -lgi | sed -n -E "s/^.* ([0-9]+) +$2:[0-9]+ +\|$/\1/p"; }

# GPU 0: one of three instances is lost; the two others must be left alone when it is put back.
lost=$(instance_at 0 0)
nvidia-smi mig -i 0 -gi "$lost" -dci
nvidia-smi mig -i 0 -gi "$lost" -dgi

# GPU 3: MIG mode off, with all that stood on it.
nvidia-smi mig -i 3 -dci
nvidia-smi mig -i 3 -dgi
nvidia-smi -i 3 -mig 0

# GPU 4: short time slices were set manually. MIG mode would be drift too.
nvidia-smi compute-policy -i 4 --set-timeslice=1

# GPU 5: one of two compute instances is lost, but its GPU instance exists.
split=$(instance_at 5 0)
nvidia-smi mig -i 5 -gi "$split" -ci 1 -dci

# GPU 2 has its seven instances, and the daemon of GPU 1 was stopped manually.
systemctl stop openfleet-mps@inference

# GPU 6, to be exclusive: anyone may use it. GPU 7, to be shared: in MIG mode.
nvidia-smi -i 6 -c DEFAULT
nvidia-smi -i 7 -mig 1

# Some tool wrote another pynvml.
echo '# altered' >>/usr/local/lib/openfleet-gpu/python/pynvml.py
