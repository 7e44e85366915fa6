/*
 * GPU memory as a program of amdgpu's gets it: a buffer by its handle, mapped or exported.
 */
#ifndef GPU_H
#define GPU_H

#include "rows.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

/* From the kernel's drm.h and amdgpu_drm.h, which not every machine has installed. */
struct gem_create {
	uint64_t size_or_handle, alignment, domains, flags;
};
struct prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
union gem_mmap {
	uint32_t handle;
	uint64_t offset;
};
#define GEM_CREATE _IOWR('d', 0x40, struct gem_create)
#define GEM_MMAP _IOWR('d', 0x41, union gem_mmap)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)
enum { DOMAIN_VRAM = 4 };

static inline int open_gpu(const char *node)
{
	int gpu = open(node, O_RDWR | O_CLOEXEC);
	if (gpu < 0)
		fail(node);
	return gpu;
}

/* A handle of zeroed GPU memory. */
static inline uint32_t new_buffer(int gpu, size_t length)
{
	struct gem_create create = { .size_or_handle = length, .domains = DOMAIN_VRAM };
	if (ioctl(gpu, GEM_CREATE, &create))
		fail("allocate GPU memory");
	return (uint32_t)create.size_or_handle;
}

static inline unsigned char *map_buffer(int gpu, uint32_t handle, size_t length)
{
	union gem_mmap map = { .handle = handle };
	if (ioctl(gpu, GEM_MMAP, &map))
		fail("ask where to map a GPU's buffer");
	void *mapped =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, gpu, (off_t)map.offset);
	if (mapped == MAP_FAILED)
		fail("map a GPU's buffer");
	return mapped;
}

static inline int export_buffer(const char *node, size_t length)
{
	int gpu = open_gpu(node);
	struct prime_handle prime = { .handle = new_buffer(gpu, length),
				      .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
		fail("export it");
	return prime.fd;
}

#endif
