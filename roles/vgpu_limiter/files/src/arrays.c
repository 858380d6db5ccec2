/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Arrays. Their layout is the driver's secret; they are counted by what their description comes to:
 * width x height x depth x channels x the format's size, with 0 for a dimension that is not there.
 */
#include "allocations.h"
#include "tenant.h"

/* Bits of an element: of one channel, or of all where the format says how many there are. Numbers of
 * CUarray_format, as the CUDA driver API reference lists them. */
static uint64_t element_bits(unsigned format, unsigned channels)
{
	switch (format) {
	case 0x01: case 0x08:				/* 8-bit integers */
		return 8 * (uint64_t)channels;
	case 0x02: case 0x09: case 0x10:		/* 16-bit integers, half */
		return 16 * (uint64_t)channels;
	case 0x03: case 0x0a: case 0x20:		/* 32-bit integers, float */
		return 32 * (uint64_t)channels;
	case 0x91: case 0x92: case 0x97: case 0x98:	/* BC1, BC4: 8 bytes for 4 x 4 elements */
		return 4;
	case 0x93: case 0x94: case 0x95: case 0x96:	/* BC2, BC3, BC5, BC6H, BC7: 16 bytes */
	case 0x99: case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e:
		return 8;
	case 0xb0:					/* video, all planes: NV12 */
		return 12;
	case 0xa2: case 0xa5:				/* NV16, YUY2 */
		return 16;
	case 0x9f: case 0xa1: case 0xb2: case 0xb4:	/* P010, P016, Y444 of 8 bits */
		return 24;
	case 0xb3: case 0xb5:				/* Y444 of more */
		return 48;
	case 0xb1:					/* Y416 */
		return 64;
	case 0xc0: case 0xc6: return 8;			/* normalised: 8 bits x 1, 2, 4 */
	case 0xc1: case 0xc7: return 16;
	case 0xc2: case 0xc8: return 32;
	case 0xc3: case 0xc9: return 16;		/* and 16 bits */
	case 0xc4: case 0xca: return 32;
	case 0xc5: case 0xcb: return 64;
	default:					/* among them those of 32 bits in all: 10-10-10-2, P210, P216, Y210, Y216, AYUV, Y410 */
		return 32;
	}
}

static uint64_t at_least_one(uint64_t value) { return value ? value : 1; }

/* UINT64_MAX: more than there can be. */
static uint64_t level_bytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t bits)
{
	uint64_t elements, all;
	if (__builtin_mul_overflow(width, at_least_one(height), &elements)
	    || __builtin_mul_overflow(elements, at_least_one(depth), &elements)
	    || __builtin_mul_overflow(elements, bits, &all))
		return UINT64_MAX;
	return all / 8 + (all % 8 != 0);
}

/* Each level has half of each dimension of the one before, but as many layers or faces. There are no
 * more than it takes to come to one element, and there is at least one. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
	/* Memory is created and mapped apart from the array. */
	if (what->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	bool layered = what->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t width = what->width, height = what->height, depth = what->depth, sum = 0;
	uint64_t bits = element_bits(what->format, what->channels);
	for (unsigned level = 0; level < (levels ? levels : 1); level++) {
		if (__builtin_add_overflow(sum, level_bytes(width, height, depth, bits), &sum))
			return UINT64_MAX;
		if (width <= 1 && height <= 1 && (depth <= 1 || layered))
			break;
		width = at_least_one(width / 2);
		height = height > 1 ? height / 2 : height;
		depth = depth > 1 && !layered ? depth / 2 : depth;
	}
	return sum;
}

static CUresult keep(enum table_kind kind, const struct target *target, void *array, uint64_t bytes)
{
	CUcontext context = NULL;
	REAL(cuCtxGetCurrent)(&context);
	struct entry entry = { .bytes = bytes, .with = (uintptr_t)context, .gpu = (int16_t)target->gpu };
	if (remember(vgpu_state(), kind, (uintptr_t)array, &entry)) {
		tenant_note_peak(vgpu_state(), target->gpu);
		return CUDA_SUCCESS;
	}
	if (kind == T_ARRAY)
		REAL(cuArrayDestroy)(array);
	else
		REAL(cuMipmappedArrayDestroy)(array);
	uncharge(target->gpu, bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The same around each of the three calls. `bytes` may look at the description only when it is there. */
#define CREATE(kind, array, described, bytes_of, call) do { \
	struct target target = target_of_context(); \
	uint64_t bytes = target.gpu != NOT_COUNTED && (array) && (described) ? (bytes_of) : 0; \
	if (bytes == 0) \
		return call; \
	if (!charge(&target, bytes)) \
		return CUDA_ERROR_OUT_OF_MEMORY; \
	CUresult result = call; \
	if (result == CUDA_SUCCESS) \
		return keep(kind, &target, *(array), bytes); \
	uncharge(target.gpu, bytes); \
	return result; \
} while (0)

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what)
{
	CREATE(T_ARRAY, array, what, level_bytes(what->width, what->height, 1, element_bits(what->format, what->channels)),
	       REAL(cuArrayCreate_v2)(array, what));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
	CREATE(T_ARRAY, array, what, array_bytes(what, 1), REAL(cuArray3DCreate_v2)(array, what));
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *what)
{
	CREATE(T_ARRAY, array, what, level_bytes(what->width, what->height, 1, element_bits(what->format, what->channels)),
	       REAL(cuArrayCreate)(array, what));
}

static uint64_t old_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v1 *what)
{
	return array_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){ .width = what->width, .height = what->height, .depth = what->depth,
	                                               .format = what->format, .channels = what->channels, .flags = what->flags }, 1);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *what)
{
	CREATE(T_ARRAY, array, what, old_array_bytes(what), REAL(cuArray3DCreate)(array, what));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
	CREATE(T_MIPMAP, array, what, array_bytes(what, levels), REAL(cuMipmappedArrayCreate)(array, what, levels));
}

CUresult cuArrayDestroy(CUarray array)
{
	FREE_OF(T_ARRAY, cuArrayDestroy, array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	FREE_OF(T_MIPMAP, cuMipmappedArrayDestroy, array);
}
