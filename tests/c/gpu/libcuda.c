/*
 * Stands in for CUDA's driver: host memory as if it were a GPU's, with the rules that the real one
 * has for the calls that the provider makes. What was called goes to the file that LIBCUDA_LOG
 * names. Its exports are memfds, which nobody can register.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	NO_DEVICE = 100,
	INVALID_CONTEXT = 201,
	NOT_SUPPORTED = 801
};
enum { PAGE = 4096 };

static int depth;
static char context;
static char *base;
static size_t room;

static void say(const char *format, ...)
{
	const char *name = getenv("LIBCUDA_LOG");
	FILE *file = name ? fopen(name, "a") : NULL;
	if (!file)
		return;
	va_list arguments;
	va_start(arguments, format);
	vfprintf(file, format, arguments);
	va_end(arguments);
	fclose(file);
}

static int is_inside(uint64_t address, size_t length)
{
	uint64_t start = (uintptr_t)base;
	return depth == 1 && address >= start && length <= room && address - start <= room - length;
}

int cuInit(unsigned flags)
{
	return flags ? INVALID_VALUE : getenv("LIBCUDA_NO_DEVICE") ? NO_DEVICE : SUCCESS;
}
int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
int cuDeviceGet(int *device, int ordinal)
{
	return *device = 7, ordinal == 0 ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetName(char *name, int length, int device)
{
	return snprintf(name, length, "Stand-in"), device == 7 ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetPCIBusId(char *id, int length, int device)
{
	return snprintf(id, length, "0000:1A:00.0"), device == 7 ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == 124 && !getenv("LIBCUDA_NO_DMA_BUF");
	return device == 7 ? SUCCESS : INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void **retained, int device)
{
	say("retain\n");
	return *retained = &context, device == 7 ? SUCCESS : INVALID_VALUE;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
	say("release\n");
	return device == 7 ? SUCCESS : INVALID_VALUE;
}
int cuCtxPushCurrent_v2(void *pushed)
{
	return pushed == &context && depth++ == 0 ? SUCCESS : INVALID_CONTEXT;
}
int cuCtxPopCurrent_v2(void **popped)
{
	return *popped = &context, depth-- == 1 ? SUCCESS : INVALID_CONTEXT;
}
int cuMemAlloc_v2(uint64_t *address, size_t length)
{
	if (depth != 1 || base)
		return INVALID_CONTEXT;
	/* as the real one: at 256 bytes, not at a page */
	room = length;
	base = (char *)aligned_alloc(PAGE, length + PAGE) + 256;
	*address = (uintptr_t)base;
	say("alloc %zu\n", length);
	return SUCCESS;
}
int cuMemFree_v2(uint64_t address)
{
	if (depth != 1 || address != (uintptr_t)base)
		return INVALID_VALUE;
	free(base - 256);
	base = NULL;
	say("free\n");
	return SUCCESS;
}
int cuPointerSetAttribute(const unsigned *value, int attribute, uint64_t address)
{
	return attribute == 6 && *value == 1 && is_inside(address, 1) ? SUCCESS : INVALID_VALUE;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t length)
{
	if (!is_inside(to, length))
		return INVALID_VALUE;
	memcpy((void *)(uintptr_t)to, from, length);
	return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t length)
{
	if (!is_inside(from, length))
		return INVALID_VALUE;
	memcpy(to, (void *)(uintptr_t)from, length);
	return SUCCESS;
}
int cuMemGetHandleForAddressRange(int *handle, uint64_t address, size_t length, int type,
				  unsigned long long flags)
{
	say("export %s\n", flags == 1 ? "pcie" : flags == 0 ? "default" : "wrong");
	if (type != 1 || !length || address % PAGE || length % PAGE || !is_inside(address, length))
		return INVALID_VALUE;
	if (flags)
		return NOT_SUPPORTED;
	*handle = memfd_create("no dma-buf", 0);
	return *handle < 0 || ftruncate(*handle, length) ? INVALID_VALUE : SUCCESS;
}
int cuGetErrorName(int code, const char **name)
{
	*name = code == NO_DEVICE	? "CUDA_ERROR_NO_DEVICE"
		: code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
					: NULL;
	return *name ? SUCCESS : INVALID_VALUE;
}
