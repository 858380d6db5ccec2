/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of arrays. The driver does not document the memory layout of an array, so its size is calculated from its
 * description: width x height x depth x channels x size of the format. Dimensions of 0 are ignored.
 */
#include "account/holdings.h"
#include "driver/reals.h"
#include "process/state.h"
#include "process/target.h"

/* Return the bits of one channel, or of a whole element if the format fixes the number of channels. The values of
 * CUarray_format are from the CUDA driver API reference. */
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
	case 0xb0:					/* video formats, bits for all planes: NV12 */
		return 12;
	case 0xa2: case 0xa5:				/* NV16, YUY2 */
		return 16;
	case 0x9f: case 0xa1: case 0xb2: case 0xb4:	/* P010, P016, Y444 of 8 bits */
		return 24;
	case 0xb3: case 0xb5:				/* Y444 of more bits */
		return 48;
	case 0xb1:					/* Y416 */
		return 64;
	case 0xc0: case 0xc6: return 8;			/* normalised 8-bit formats with 1, 2 and 4 channels */
	case 0xc1: case 0xc7: return 16;
	case 0xc2: case 0xc8: return 32;
	case 0xc3: case 0xc9: return 16;		/* normalised 16-bit formats with 1, 2 and 4 channels */
	case 0xc4: case 0xca: return 32;
	case 0xc5: case 0xcb: return 64;
	default:					/* also formats with 32 bits in total: 10-10-10-2, P210, P216, Y210, Y216, AYUV, Y410 */
		return 32;
	}
}

static uint64_t at_least_one(uint64_t value) { return value ? value : 1; }

/* Return the bytes of a mipmap level. UINT64_MAX if the value is too large. */
static uint64_t level_bytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t bits)
{
	uint64_t elements, all;
	if (__builtin_mul_overflow(width, at_least_one(height), &elements)
	    || __builtin_mul_overflow(elements, at_least_one(depth), &elements)
	    || __builtin_mul_overflow(elements, bits, &all))
		return UINT64_MAX;
	return all / 8 + (all % 8 != 0);
}

/* Each level halves every dimension, but keeps the layers and faces. The last possible level has one element. There is
 * at least one level. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
	/* The memory is created separately and mapped into the array. */
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

/* An array that is being created. */
struct array { enum table_kind kind; struct target target; uint64_t bytes; };

static bool is_counted(const struct target *target, const void *array, const void *described)
{
	return target->gpu != NOT_COUNTED && array && described;
}

/* Reserve the array's memory. Return false if out of memory. An array of 0 bytes is not counted. */
static bool begins(struct array *a)
{
	return a->bytes == 0 || charge(vgpu_account(), &a->target, a->bytes);
}

/* Record the array if the driver created it. Return the driver's result. */
static CUresult ends(const struct array *a, CUresult result, void *array)
{
	if (a->bytes == 0)
		return result;
	if (result == CUDA_SUCCESS) {
		if (remember_allocation(vgpu_account(), a->kind, (uintptr_t)array, &a->target, a->bytes))
			return CUDA_SUCCESS;
		if (a->kind == T_ARRAY)
			REAL(cuArrayDestroy)(array);
		else
			REAL(cuMipmappedArrayDestroy)(array);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	uncharge(vgpu_account(), a->target.gpu, a->bytes);
	return result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what)
{
	struct array a = { .kind = T_ARRAY, .target = target_of_context() };
	if (is_counted(&a.target, array, what))
		a.bytes = level_bytes(what->width, what->height, 1, element_bits(what->format, what->channels));
	if (!begins(&a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuArrayCreate_v2)(array, what);
	return ends(&a, result, result == CUDA_SUCCESS && array ? *array : NULL);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
	struct array a = { .kind = T_ARRAY, .target = target_of_context() };
	if (is_counted(&a.target, array, what))
		a.bytes = array_bytes(what, 1);
	if (!begins(&a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuArray3DCreate_v2)(array, what);
	return ends(&a, result, result == CUDA_SUCCESS && array ? *array : NULL);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *what)
{
	struct array a = { .kind = T_ARRAY, .target = target_of_context() };
	if (is_counted(&a.target, array, what))
		a.bytes = level_bytes(what->width, what->height, 1, element_bits(what->format, what->channels));
	if (!begins(&a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuArrayCreate)(array, what);
	return ends(&a, result, result == CUDA_SUCCESS && array ? *array : NULL);
}

static uint64_t old_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v1 *what)
{
	return array_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){ .width = what->width, .height = what->height, .depth = what->depth,
	                                               .format = what->format, .channels = what->channels, .flags = what->flags }, 1);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *what)
{
	struct array a = { .kind = T_ARRAY, .target = target_of_context() };
	if (is_counted(&a.target, array, what))
		a.bytes = old_array_bytes(what);
	if (!begins(&a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuArray3DCreate)(array, what);
	return ends(&a, result, result == CUDA_SUCCESS && array ? *array : NULL);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
	struct array a = { .kind = T_MIPMAP, .target = target_of_context() };
	if (is_counted(&a.target, array, what))
		a.bytes = array_bytes(what, levels);
	if (!begins(&a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMipmappedArrayCreate)(array, what, levels);
	return ends(&a, result, result == CUDA_SUCCESS && array ? *array : NULL);
}

CUresult cuArrayDestroy(CUarray array)
{
	struct freeing freeing = freeing_begins(vgpu_account(), T_ARRAY, (uintptr_t)array);
	return freeing_ends(&freeing, REAL(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct freeing freeing = freeing_begins(vgpu_account(), T_MIPMAP, (uintptr_t)array);
	return freeing_ends(&freeing, REAL(cuMipmappedArrayDestroy)(array));
}
