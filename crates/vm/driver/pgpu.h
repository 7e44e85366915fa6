/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The driver for peerdma's virtual GPU, a device that a hypervisor takes over
 * vfio-user: its parts, and what they share.
 *
 * A buffer (struct pgpu_bo) lies in one place (struct pgpu_place) at a time.
 * Its reservation lock guards which. A place lives as long as somebody maps
 * it: a move or a revocation gives the buffer another place, or none, and the
 * old one goes with its last mapping.
 */
#ifndef PGPU_H
#define PGPU_H

#include <drm/drm_device.h>
#include <drm/drm_drv.h>
#include <drm/drm_gem.h>
#include <drm/drm_mm.h>
#include <drm/drm_print.h>
#include <linux/completion.h>
#include <linux/dma-buf.h>
#include <linux/kref.h>
#include <linux/llist.h>
#include <linux/memremap.h>
#include <linux/mutex.h>
#include <linux/pci-p2pdma.h>
#include <linux/pci.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "peerdma_gpu_drm.h"

#define PGPU_VENDOR_ID 0x1234
#define PGPU_DEVICE_ID 0x7067

/* Its windows. */
enum { PGPU_REGISTERS = 0, PGPU_MEMORY = 2 };

struct pgpu {
	struct drm_device drm;
	struct pci_dev *pdev;

	/* The engine: one command at a time. */
	void __iomem *registers;
	struct mutex engine_lock;
	struct completion engine_done;
	bool engine_dead;

	/* Device memory, of which vram is the allocator. */
	phys_addr_t memory;
	u64 memory_size;
	struct p2pdma_provider *provider;
	struct mutex vram_lock;
	struct drm_mm vram;

	/* Pages of programs that lie in device memory. */
	struct dev_pagemap pagemap;
	/* Guards pages_closed, and is held while pages go there. */
	struct mutex pages_lock;
	bool pages_closed;
	atomic_long_t pages_there;
	atomic64_t pages_taken;
	atomic64_t pages_returned;
	/* Those that nobody has any more, until their memory is free. */
	struct llist_head pages_gone;
	struct work_struct pages_gone_work;

	/* Every buffer. */
	struct mutex buffers_lock;
	struct list_head buffers;
};

struct pgpu_place {
	struct kref ref;
	struct pgpu *gpu;
	u32 domain;
	size_t size;
	/* In VRAM. */
	struct drm_mm_node node;
	/* In system memory. */
	struct page **pages;
};

struct pgpu_bo {
	struct drm_gem_object base;
	struct list_head link;
	/* None once it is revoked. The lock of base.resv guards it and what follows. */
	struct pgpu_place *place;
	/* Who exports it, while anybody has that. */
	struct dma_buf *dma_buf;
	/* By scatter table: the place that it maps. */
	struct xarray maps;
	unsigned int map_count;
	unsigned int pins;
	unsigned int moves;
};

static inline struct pgpu *to_pgpu(struct drm_device *drm)
{
	return container_of(drm, struct pgpu, drm);
}

static inline struct pgpu_bo *to_bo(struct drm_gem_object *obj)
{
	return container_of(obj, struct pgpu_bo, base);
}

/* engine.c: commands that sleep until they have ended. While it is held none starts. */
int pgpu_engine_init(struct pgpu *gpu);
void pgpu_engine_hold(struct pgpu *gpu);
void pgpu_engine_release(struct pgpu *gpu);
int pgpu_engine_copy(struct pgpu *gpu, u64 target, u64 source, u64 length);
int pgpu_engine_copy_in(struct pgpu *gpu, u64 target, dma_addr_t source, u64 length);
int pgpu_engine_copy_out(struct pgpu *gpu, dma_addr_t target, u64 source, u64 length);
int pgpu_engine_fill(struct pgpu *gpu, u64 target, u64 length, u64 pattern);

/* place.c: memory for buffers. */
struct pgpu_place *pgpu_place_new(struct pgpu *gpu, u32 domain, size_t size);
struct pgpu_place *pgpu_place_get(struct pgpu_place *place);
void pgpu_place_put(struct pgpu_place *place);
int pgpu_place_copy(struct pgpu_place *to, struct pgpu_place *from);
int pgpu_place_fill(struct pgpu_place *place, u64 pattern);
phys_addr_t pgpu_place_address(struct pgpu_place *place, size_t offset);
struct sg_table *pgpu_place_pages(struct pgpu_place *place, struct device *device,
				  enum dma_data_direction direction);
void pgpu_place_pages_done(struct sg_table *table, struct device *device,
			   enum dma_data_direction direction);

/* buffer.c: buffers, with their reservation locked where not said otherwise. */
struct pgpu_bo *pgpu_bo_new(struct pgpu *gpu, u32 domain, size_t size); /* unlocked */
int pgpu_bo_move(struct pgpu_bo *bo, u32 domain);
int pgpu_bo_revoke(struct pgpu_bo *bo, bool by_force);
void pgpu_revoke_all(struct pgpu *gpu); /* unlocked */

/* dma_buf.c: buffers for other devices. */
struct dma_buf *pgpu_dma_buf_export(struct drm_gem_object *obj, int flags);
struct drm_gem_object *pgpu_dma_buf_import(struct drm_device *drm, struct dma_buf *dma_buf);

/* private.c: pages of programs in device memory. */
int pgpu_pages_init(struct pgpu *gpu);
long pgpu_pages_take(struct pgpu *gpu, unsigned long start, unsigned long end);
void pgpu_pages_close(struct pgpu *gpu);
void pgpu_pages_open(struct pgpu *gpu);

#endif
