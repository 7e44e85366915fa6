// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Buffers: moved, revoked, mapped by programs.
 */
#include <drm/drm_vma_manager.h>
#include <linux/dma-resv.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "pgpu.h"

/* Takes every mapping away, of devices and of programs. They come again when they are needed. */
static int pgpu_bo_invalidate(struct pgpu_bo *bo)
{
	struct drm_device *drm = bo->base.dev;
	long left;

	if (bo->dma_buf)
		dma_buf_invalidate_mappings(bo->dma_buf);
	left = dma_resv_wait_timeout(bo->base.resv, DMA_RESV_USAGE_BOOKKEEP, false,
				     MAX_SCHEDULE_TIMEOUT);
	drm_vma_node_unmap(&bo->base.vma_node, drm->anon_inode->i_mapping);
	return left < 0 ? left : 0;
}

/* Pinned buffers stay. */
int pgpu_bo_move(struct pgpu_bo *bo, u32 domain)
{
	struct pgpu_place *place;
	int ret;

	dma_resv_assert_held(bo->base.resv);
	if (!bo->place)
		return -ENODEV;
	if (bo->pins)
		return -EBUSY;
	place = pgpu_place_new(to_pgpu(bo->base.dev), domain, bo->base.size);
	if (IS_ERR(place))
		return PTR_ERR(place);
	ret = pgpu_bo_invalidate(bo);
	if (!ret)
		ret = pgpu_place_copy(place, bo->place);
	if (!ret) {
		swap(place, bo->place);
		bo->moves++;
	}
	pgpu_place_put(place);
	return ret;
}

/* Whether every importer that pins it understands that it may lose it. */
static bool pgpu_bo_is_revocable(struct pgpu_bo *bo)
{
	struct dma_buf_attachment *attachment;

	if (!bo->pins || !bo->dma_buf)
		return true;
	list_for_each_entry(attachment, &bo->dma_buf->attachments,
			    node) if (!dma_buf_attach_revocable(attachment)) return false;
	return true;
}

/* By force: the device is going away. */
int pgpu_bo_revoke(struct pgpu_bo *bo, bool by_force)
{
	struct pgpu_place *place = bo->place;

	dma_resv_assert_held(bo->base.resv);
	if (!place)
		return 0;
	if (!by_force && !pgpu_bo_is_revocable(bo))
		return -EBUSY;
	/* From here on nobody maps it. */
	bo->place = NULL;
	(void)pgpu_bo_invalidate(bo);
	pgpu_place_put(place);
	return 0;
}

void pgpu_revoke_all(struct pgpu *gpu)
{
	struct pgpu_bo *bo;

	mutex_lock(&gpu->buffers_lock);
	list_for_each_entry(bo, &gpu->buffers, link)
	{
		dma_resv_lock(bo->base.resv, NULL);
		pgpu_bo_revoke(bo, true);
		if (bo->map_count)
			drm_warn(&gpu->drm, "%u mappings of a buffer outlive the device\n",
				 bo->map_count);
		dma_resv_unlock(bo->base.resv);
	}
	mutex_unlock(&gpu->buffers_lock);
}

static void pgpu_bo_free(struct drm_gem_object *obj)
{
	struct pgpu *gpu = to_pgpu(obj->dev);
	struct pgpu_bo *bo = to_bo(obj);

	mutex_lock(&gpu->buffers_lock);
	list_del(&bo->link);
	mutex_unlock(&gpu->buffers_lock);
	if (bo->place)
		pgpu_place_put(bo->place);
	xa_destroy(&bo->maps);
	drm_gem_object_release(obj);
	kfree(bo);
}

static vm_fault_t pgpu_bo_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct drm_gem_object *obj = vma->vm_private_data;
	struct pgpu_bo *bo = to_bo(obj);
	vm_fault_t ret = VM_FAULT_SIGBUS;
	pgprot_t protection;
	unsigned long pfn;
	size_t offset;

	/* A move may take long, and its thread may want this one's memory. */
	if (dma_resv_lock_interruptible(obj->resv, NULL))
		return VM_FAULT_NOPAGE;
	offset = (vmf->pgoff - drm_vma_node_start(&obj->vma_node)) << PAGE_SHIFT;
	if (bo->place && offset < obj->size) {
		pfn = PHYS_PFN(pgpu_place_address(bo->place, offset));
		protection = vm_get_page_prot(vma->vm_flags);
		if (bo->place->domain == PGPU_VRAM)
			protection = pgprot_writecombine(protection);
		ret = vmf_insert_pfn_prot(vma, vmf->address, pfn, protection);
	}
	dma_resv_unlock(obj->resv);
	return ret;
}

static const struct vm_operations_struct pgpu_bo_vm_ops = {
	.fault = pgpu_bo_fault,
	.open = drm_gem_vm_open,
	.close = drm_gem_vm_close,
};

static const struct drm_gem_object_funcs pgpu_bo_funcs = {
	.free = pgpu_bo_free,
	.export = pgpu_dma_buf_export,
	.vm_ops = &pgpu_bo_vm_ops,
};

struct pgpu_bo *pgpu_bo_new(struct pgpu *gpu, u32 domain, size_t size)
{
	struct pgpu_bo *bo = kzalloc(sizeof(*bo), GFP_KERNEL);
	struct pgpu_place *place;
	int ret;

	if (!bo)
		return ERR_PTR(-ENOMEM);
	place = pgpu_place_new(gpu, domain, size);
	if (IS_ERR(place)) {
		kfree(bo);
		return ERR_CAST(place);
	}
	bo->place = place;
	xa_init(&bo->maps);
	bo->base.funcs = &pgpu_bo_funcs;
	drm_gem_private_object_init(&gpu->drm, &bo->base, size);
	mutex_lock(&gpu->buffers_lock);
	list_add(&bo->link, &gpu->buffers);
	mutex_unlock(&gpu->buffers_lock);
	ret = drm_gem_create_mmap_offset(&bo->base);
	if (ret) {
		drm_gem_object_put(&bo->base);
		return ERR_PTR(ret);
	}
	return bo;
}
