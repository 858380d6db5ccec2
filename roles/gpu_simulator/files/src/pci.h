/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * PCI addresses.
 */
#ifndef PCI_H
#define PCI_H

#include "host.h"
#include "nvml_abi.h"

typedef struct { unsigned domain, bus, device, function; } pci_address_t;

/* Parses "00000000:1B:00.0", "0000:1b:00.0" or "1B:00.0", in upper or lower case. */
bool pci_parse(const char *text, pci_address_t *address);

/* Returns whether the GPU has this address. The text may have any of these formats. */
bool pci_is_at(const gpu_t *gpu, const char *text);

void pci_fill(const gpu_t *gpu, nvmlPciInfo_t *info);

#endif
