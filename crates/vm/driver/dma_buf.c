// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Buffers for other devices: dynamic dma-bufs. A device that may reach our
 * memory directly gets bus addresses of it, any other makes the buffer move to
 * system memory.
 */
#include <drm/drm_prime.h>
#include <linux/dma-buf-mapping.h>
#include <linux/dma-mapping.h>

#include "pgpu.h"

static struct pgpu_bo *pgpu_of(struct dma_buf *dma_buf) { return to_bo(dma_buf->priv); }

static int pgpu_attach(struct dma_buf *dma_buf, struct dma_buf_attachment *attachment)
{
	struct pgpu *gpu = to_pgpu(pgpu_of(dma_buf)->base.dev);

	if (attachment->peer2peer && pci_p2pdma_distance(gpu->pdev, attachment->dev, true) < 0)
		attachment->peer2peer = false;
	return 0;
}

/* Has the buffer where this importer can reach it. */
static int pgpu_bring(struct pgpu_bo *bo, struct dma_buf_attachment *attachment)
{
	if (!bo->place)
		return -ENODEV;
	if (attachment->peer2peer || bo->place->domain == PGPU_SYSTEM)
		return 0;
	return pgpu_bo_move(bo, PGPU_SYSTEM);
}

static int pgpu_pin(struct dma_buf_attachment *attachment)
{
	struct pgpu_bo *bo = pgpu_of(attachment->dmabuf);
	int ret = pgpu_bring(bo, attachment);

	if (!ret)
		bo->pins++;
	return ret;
}

static void pgpu_unpin(struct dma_buf_attachment *attachment)
{
	pgpu_of(attachment->dmabuf)->pins--;
}

static struct sg_table *pgpu_map_place(struct dma_buf_attachment *attachment,
				       struct pgpu_place *place, enum dma_data_direction direction)
{
	struct phys_vec range = { .len = place->size };

	if (place->domain == PGPU_SYSTEM)
		return pgpu_place_pages(place, attachment->dev, direction);
	range.paddr = pgpu_place_address(place, 0);
	return dma_buf_phys_vec_to_sgt(attachment, place->gpu->provider, &range, 1, place->size,
				       direction);
}

static void pgpu_unmap_place(struct dma_buf_attachment *attachment, struct pgpu_place *place,
			     struct sg_table *table, enum dma_data_direction direction)
{
	if (place->domain == PGPU_SYSTEM)
		pgpu_place_pages_done(table, attachment->dev, direction);
	else
		dma_buf_free_sgt(attachment, table, direction);
}

static struct sg_table *pgpu_map(struct dma_buf_attachment *attachment,
				 enum dma_data_direction direction)
{
	struct pgpu_bo *bo = pgpu_of(attachment->dmabuf);
	struct sg_table *table;
	int ret;

	ret = pgpu_bring(bo, attachment);
	if (ret)
		return ERR_PTR(ret);
	table = pgpu_map_place(attachment, bo->place, direction);
	if (IS_ERR(table))
		return table;
	ret = xa_err(xa_store(&bo->maps, (unsigned long)table, bo->place, GFP_KERNEL));
	if (ret) {
		pgpu_unmap_place(attachment, bo->place, table, direction);
		return ERR_PTR(ret);
	}
	pgpu_place_get(bo->place);
	bo->map_count++;
	return table;
}

/* The table may be of a place that the buffer has left. */
static void pgpu_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
		       enum dma_data_direction direction)
{
	struct pgpu_bo *bo = pgpu_of(attachment->dmabuf);
	struct pgpu_place *place = xa_erase(&bo->maps, (unsigned long)table);

	bo->map_count--;
	pgpu_unmap_place(attachment, place, table, direction);
	pgpu_place_put(place);
}

static void pgpu_release(struct dma_buf *dma_buf)
{
	struct pgpu_bo *bo = pgpu_of(dma_buf);

	dma_resv_lock(bo->base.resv, NULL);
	bo->dma_buf = NULL;
	dma_resv_unlock(bo->base.resv);
	drm_gem_dmabuf_release(dma_buf);
}

static const struct dma_buf_ops pgpu_dma_buf_ops = {
	.attach = pgpu_attach,
	.pin = pgpu_pin,
	.unpin = pgpu_unpin,
	.map_dma_buf = pgpu_map,
	.unmap_dma_buf = pgpu_unmap,
	.mmap = drm_gem_dmabuf_mmap,
	.release = pgpu_release,
};

struct dma_buf *pgpu_dma_buf_export(struct drm_gem_object *obj, int flags)
{
	struct pgpu_bo *bo = to_bo(obj);
	struct dma_buf_export_info info = {
		.exp_name = KBUILD_MODNAME,
		.owner = THIS_MODULE,
		.ops = &pgpu_dma_buf_ops,
		.size = obj->size,
		.flags = flags,
		.resv = obj->resv,
		.priv = obj,
	};
	struct dma_buf *dma_buf = drm_gem_dmabuf_export(obj->dev, &info);

	if (!IS_ERR(dma_buf)) {
		dma_resv_lock(obj->resv, NULL);
		bo->dma_buf = dma_buf;
		dma_resv_unlock(obj->resv);
	}
	return dma_buf;
}

/* Our own buffers only. */
struct drm_gem_object *pgpu_dma_buf_import(struct drm_device *drm, struct dma_buf *dma_buf)
{
	struct drm_gem_object *obj = dma_buf->priv;

	if (dma_buf->ops != &pgpu_dma_buf_ops || obj->dev != drm)
		return ERR_PTR(-EINVAL);
	drm_gem_object_get(obj);
	return obj;
}
