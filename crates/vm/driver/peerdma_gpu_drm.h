/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * What programs ask of the driver for peerdma's virtual GPU.
 *
 * Buffers are allocated and mapped with the numbers and structures of
 * amdgpu's GEM_CREATE and GEM_MMAP, so that a program for either finds device
 * memory here; dma-bufs come from DRM_IOCTL_PRIME_HANDLE_TO_FD. The others
 * are this driver's own.
 */
#ifndef PEERDMA_GPU_DRM_H
#define PEERDMA_GPU_DRM_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Where a buffer lies. */
#define PGPU_SYSTEM 2
#define PGPU_VRAM 4

struct pgpu_create {
	/* In: bytes, rounded up to pages. Out: the handle. */
	__u64 size_or_handle;
	__u64 alignment;
	/* One of the places above. */
	__u64 domains;
	__u64 flags;
};

union pgpu_mmap {
	__u32 handle;
	/* For mmap(2) on the node. */
	__u64 offset;
};

/* Moves a buffer to another place; within VRAM, to another address. */
struct pgpu_move {
	__u32 handle;
	__u32 domain;
};

/* Takes the memory away from everybody who has the buffer, for good. */
struct pgpu_revoke {
	__u32 handle;
	__u32 pad;
};

struct pgpu_info {
	__u32 handle;
	/* 0 for a revoked buffer. */
	__u32 domain;
	/* In VRAM. */
	__u64 offset;
	__u64 size;
	/* Importers that pin it, and that map it. */
	__u32 pins;
	__u32 maps;
	/* How often it was moved. */
	__u32 moves;
	__u32 pad;
};

/* Fills the whole buffer with a pattern, by the GPU's engine. */
struct pgpu_fill {
	__u32 handle;
	__u32 pad;
	__u64 pattern;
};

/* Moves the caller's own pages of private memory to the GPU. They come home when they are touched.
 */
struct pgpu_take {
	/* In: whole pages. */
	__u64 address;
	__u64 length;
	/* Out: how many pages went. Those that are there already, or that others have too, stay. */
	__u64 pages;
};

/* Pages of programs in the GPU. */
struct pgpu_pages {
	/* There now. */
	__u64 there;
	/* That ever went there, and that were brought home. */
	__u64 taken;
	__u64 returned;
};

#define PGPU_CREATE 0
#define PGPU_MMAP 1
#define PGPU_MOVE 2
#define PGPU_REVOKE 3
#define PGPU_INFO 4
#define PGPU_FILL 5
#define PGPU_TAKE 6
#define PGPU_PAGES 7

/* DRM_IOW and DRM_IOWR of drm.h, which not every machine has installed. */
#define PGPU_IOW(number, type) _IOW('d', 0x40 + (number), type)
#define PGPU_IOWR(number, type) _IOWR('d', 0x40 + (number), type)

#define DRM_IOCTL_PGPU_CREATE PGPU_IOWR(PGPU_CREATE, struct pgpu_create)
#define DRM_IOCTL_PGPU_MMAP PGPU_IOWR(PGPU_MMAP, union pgpu_mmap)
#define DRM_IOCTL_PGPU_MOVE PGPU_IOW(PGPU_MOVE, struct pgpu_move)
#define DRM_IOCTL_PGPU_REVOKE PGPU_IOW(PGPU_REVOKE, struct pgpu_revoke)
#define DRM_IOCTL_PGPU_INFO PGPU_IOWR(PGPU_INFO, struct pgpu_info)
#define DRM_IOCTL_PGPU_FILL PGPU_IOW(PGPU_FILL, struct pgpu_fill)
#define DRM_IOCTL_PGPU_TAKE PGPU_IOWR(PGPU_TAKE, struct pgpu_take)
#define DRM_IOCTL_PGPU_PAGES PGPU_IOWR(PGPU_PAGES, struct pgpu_pages)

#endif
