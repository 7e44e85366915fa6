// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The driver itself: finding the device, and what programs ask of it.
 */
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>
#include <drm/drm_managed.h>
#include <drm/drm_vma_manager.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/module.h>

#include "pgpu.h"

/* The registers that say what it is. */
enum { IDENTITY = 0x00, MEMORY_SIZE = 0x08 };
#define PGPU_IDENTITY 0x55504750

static int pgpu_create_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu_create *create = data;
	struct pgpu *gpu = to_pgpu(drm);
	struct pgpu_bo *bo;
	u32 handle;
	int ret;

	if (create->flags || create->alignment > PAGE_SIZE || !create->size_or_handle ||
	    create->size_or_handle > gpu->memory_size ||
	    (create->domains != PGPU_VRAM && create->domains != PGPU_SYSTEM))
		return -EINVAL;
	bo = pgpu_bo_new(gpu, create->domains, PAGE_ALIGN(create->size_or_handle));
	if (IS_ERR(bo))
		return PTR_ERR(bo);
	ret = drm_gem_handle_create(file, &bo->base, &handle);
	drm_gem_object_put(&bo->base);
	if (!ret)
		create->size_or_handle = handle;
	return ret;
}

static int pgpu_mmap_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	union pgpu_mmap *map = data;
	struct drm_gem_object *obj = drm_gem_object_lookup(file, map->handle);

	if (!obj)
		return -ENOENT;
	map->offset = drm_vma_node_offset_addr(&obj->vma_node);
	drm_gem_object_put(obj);
	return 0;
}

/* A buffer by its handle, locked. */
static struct pgpu_bo *pgpu_take(struct drm_file *file, u32 handle)
{
	struct drm_gem_object *obj = drm_gem_object_lookup(file, handle);
	int ret;

	if (!obj)
		return ERR_PTR(-ENOENT);
	ret = dma_resv_lock_interruptible(obj->resv, NULL);
	if (ret) {
		drm_gem_object_put(obj);
		return ERR_PTR(ret);
	}
	return to_bo(obj);
}

static void pgpu_give(struct pgpu_bo *bo)
{
	dma_resv_unlock(bo->base.resv);
	drm_gem_object_put(&bo->base);
}

static int pgpu_move_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu_move *move = data;
	struct pgpu_bo *bo;
	int ret;

	if (move->domain != PGPU_VRAM && move->domain != PGPU_SYSTEM)
		return -EINVAL;
	bo = pgpu_take(file, move->handle);
	if (IS_ERR(bo))
		return PTR_ERR(bo);
	ret = pgpu_bo_move(bo, move->domain);
	pgpu_give(bo);
	return ret;
}

static int pgpu_revoke_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu_revoke *revoke = data;
	struct pgpu_bo *bo = pgpu_take(file, revoke->handle);
	int ret;

	if (IS_ERR(bo))
		return PTR_ERR(bo);
	ret = pgpu_bo_revoke(bo, false);
	pgpu_give(bo);
	return ret;
}

static int pgpu_info_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu_info *info = data;
	struct pgpu_bo *bo = pgpu_take(file, info->handle);

	if (IS_ERR(bo))
		return PTR_ERR(bo);
	*info = (struct pgpu_info){
		.handle = info->handle,
		.domain = bo->place ? bo->place->domain : 0,
		.offset = bo->place ? bo->place->node.start : 0,
		.size = bo->base.size,
		.pins = bo->pins,
		.maps = bo->map_count,
		.moves = bo->moves,
	};
	pgpu_give(bo);
	return 0;
}

static int pgpu_fill_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu_fill *fill = data;
	struct pgpu_bo *bo = pgpu_take(file, fill->handle);
	int ret;

	if (IS_ERR(bo))
		return PTR_ERR(bo);
	ret = bo->place ? pgpu_place_fill(bo->place, fill->pattern) : -ENODEV;
	pgpu_give(bo);
	return ret;
}

static int pgpu_take_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu_take *take = data;
	u64 end;
	long pages;

	if (!take->length || !PAGE_ALIGNED(take->address | take->length) ||
	    check_add_overflow(take->address, take->length, &end))
		return -EINVAL;
	pages = pgpu_pages_take(to_pgpu(drm), take->address, end);
	if (pages < 0)
		return pages;
	take->pages = pages;
	return 0;
}

static int pgpu_pages_ioctl(struct drm_device *drm, void *data, struct drm_file *file)
{
	struct pgpu *gpu = to_pgpu(drm);
	struct pgpu_pages *pages = data;

	*pages = (struct pgpu_pages){
		.there = atomic_long_read(&gpu->pages_there),
		.taken = atomic64_read(&gpu->pages_taken),
		.returned = atomic64_read(&gpu->pages_returned),
	};
	return 0;
}

static const struct drm_ioctl_desc pgpu_ioctls[] = {
	DRM_IOCTL_DEF_DRV(PGPU_CREATE, pgpu_create_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_MMAP, pgpu_mmap_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_MOVE, pgpu_move_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_REVOKE, pgpu_revoke_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_INFO, pgpu_info_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_FILL, pgpu_fill_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_TAKE, pgpu_take_ioctl, DRM_RENDER_ALLOW),
	DRM_IOCTL_DEF_DRV(PGPU_PAGES, pgpu_pages_ioctl, DRM_RENDER_ALLOW),
};

DEFINE_DRM_GEM_FOPS(pgpu_fops);

static const struct drm_driver pgpu_driver = {
	.driver_features = DRIVER_GEM | DRIVER_RENDER,
	.name = KBUILD_MODNAME,
	.desc = "peerdma's virtual GPU",
	.major = 1,
	.fops = &pgpu_fops,
	.ioctls = pgpu_ioctls,
	.num_ioctls = ARRAY_SIZE(pgpu_ioctls),
	.gem_prime_import = pgpu_dma_buf_import,
};

static void pgpu_forget_vram(struct drm_device *drm, void *unused)
{
	drm_mm_takedown(&to_pgpu(drm)->vram);
}

static int pgpu_memory_init(struct pgpu *gpu)
{
	struct pci_dev *pdev = gpu->pdev;
	int ret;

	gpu->memory = pci_resource_start(pdev, PGPU_MEMORY);
	gpu->memory_size = readq(gpu->registers + MEMORY_SIZE);
	if (gpu->memory_size != pci_resource_len(pdev, PGPU_MEMORY))
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "its memory is not as large as its window\n");
	ret = pcim_request_region(pdev, PGPU_MEMORY, KBUILD_MODNAME);
	if (ret)
		return ret;
	ret = pcim_p2pdma_init(pdev);
	if (ret)
		return dev_err_probe(&pdev->dev, ret, "no peer-to-peer\n");
	gpu->provider = pcim_p2pdma_provider(pdev, PGPU_MEMORY);
	if (!gpu->provider)
		return -EINVAL;
	mutex_init(&gpu->vram_lock);
	drm_mm_init(&gpu->vram, 0, gpu->memory_size);
	return drmm_add_action_or_reset(&gpu->drm, pgpu_forget_vram, NULL);
}

static int pgpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct pgpu *gpu;
	int ret;

	gpu = devm_drm_dev_alloc(&pdev->dev, &pgpu_driver, struct pgpu, drm);
	if (IS_ERR(gpu))
		return PTR_ERR(gpu);
	gpu->pdev = pdev;
	mutex_init(&gpu->buffers_lock);
	INIT_LIST_HEAD(&gpu->buffers);
	pci_set_drvdata(pdev, gpu);
	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	gpu->registers = pcim_iomap_region(pdev, PGPU_REGISTERS, KBUILD_MODNAME);
	if (IS_ERR(gpu->registers))
		return PTR_ERR(gpu->registers);
	if (readl(gpu->registers + IDENTITY) != PGPU_IDENTITY)
		return dev_err_probe(&pdev->dev, -ENODEV, "this is no virtual GPU of peerdma's\n");
	ret = pgpu_memory_init(gpu);
	if (ret)
		return ret;
	pci_set_master(pdev);
	ret = pgpu_engine_init(gpu);
	if (ret)
		return ret;
	ret = pgpu_pages_init(gpu);
	if (ret)
		return ret;
	return drm_dev_register(&gpu->drm, 0);
}

static void pgpu_remove(struct pci_dev *pdev)
{
	struct pgpu *gpu = pci_get_drvdata(pdev);

	/* The device still answers: what lies there, or is mapped of it, goes first. */
	pgpu_pages_close(gpu);
	pgpu_revoke_all(gpu);
	drm_dev_unplug(&gpu->drm);
	/* What was made meanwhile. */
	pgpu_revoke_all(gpu);
	pci_clear_master(pdev);
}

/* A reset zeroes device memory: buffers lose their bytes, but pages of programs must not. */
static void pgpu_reset_prepare(struct pci_dev *pdev)
{
	struct pgpu *gpu = pci_get_drvdata(pdev);

	pgpu_pages_close(gpu);
	pgpu_engine_hold(gpu);
}

static void pgpu_reset_done(struct pci_dev *pdev)
{
	struct pgpu *gpu = pci_get_drvdata(pdev);

	pgpu_engine_release(gpu);
	pgpu_pages_open(gpu);
}

static const struct pci_error_handlers pgpu_error_handlers = {
	.reset_prepare = pgpu_reset_prepare,
	.reset_done = pgpu_reset_done,
};

static const struct pci_device_id pgpu_ids[] = { { PCI_DEVICE(PGPU_VENDOR_ID, PGPU_DEVICE_ID) },
						 {} };
MODULE_DEVICE_TABLE(pci, pgpu_ids);

static struct pci_driver pgpu_pci_driver = {
	.name = KBUILD_MODNAME,
	.id_table = pgpu_ids,
	.probe = pgpu_probe,
	.remove = pgpu_remove,
	.err_handler = &pgpu_error_handlers,
};
module_pci_driver(pgpu_pci_driver);

MODULE_DESCRIPTION("Driver for peerdma's virtual GPU");
MODULE_AUTHOR("The peerdma project");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_IMPORT_NS("DMA_BUF");
