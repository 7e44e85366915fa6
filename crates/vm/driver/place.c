// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Where a buffer's bytes lie: a range of device memory, or pages of the
 * system's.
 */
#include <linux/dma-mapping.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "pgpu.h"

/*
 * What a range of device memory holds once it is nobody's, so that whoever still reads it is found
 * out.
 */
#define POISON 0xdeaddeaddeaddeadull

static int pgpu_place_take_vram(struct pgpu_place *place)
{
	struct pgpu *gpu = place->gpu;
	int ret;

	mutex_lock(&gpu->vram_lock);
	ret = drm_mm_insert_node_generic(&gpu->vram, &place->node, place->size, PAGE_SIZE, 0,
					 DRM_MM_INSERT_BEST);
	mutex_unlock(&gpu->vram_lock);
	if (ret)
		return -ENOMEM;
	return pgpu_engine_fill(gpu, place->node.start, place->size, 0);
}

static int pgpu_place_take_pages(struct pgpu_place *place)
{
	size_t count = place->size >> PAGE_SHIFT, i;

	place->pages = kvcalloc(count, sizeof(*place->pages), GFP_KERNEL);
	if (!place->pages)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		place->pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO | __GFP_RETRY_MAYFAIL);
		if (!place->pages[i])
			return -ENOMEM;
	}
	return 0;
}

static void pgpu_place_release(struct kref *ref)
{
	struct pgpu_place *place = container_of(ref, struct pgpu_place, ref);
	struct pgpu *gpu = place->gpu;
	size_t i;

	if (drm_mm_node_allocated(&place->node)) {
		/* Without a device there is nobody left who could read it. */
		(void)pgpu_engine_fill(gpu, place->node.start, place->size, POISON);
		mutex_lock(&gpu->vram_lock);
		drm_mm_remove_node(&place->node);
		mutex_unlock(&gpu->vram_lock);
	}
	for (i = 0; place->pages && i < place->size >> PAGE_SHIFT && place->pages[i]; i++)
		__free_page(place->pages[i]);
	kvfree(place->pages);
	kfree(place);
	drm_dev_put(&gpu->drm);
}

/* Zeroed memory of whole pages. */
struct pgpu_place *pgpu_place_new(struct pgpu *gpu, u32 domain, size_t size)
{
	struct pgpu_place *place = kzalloc(sizeof(*place), GFP_KERNEL);
	int ret;

	if (!place)
		return ERR_PTR(-ENOMEM);
	kref_init(&place->ref);
	drm_dev_get(&gpu->drm);
	place->gpu = gpu;
	place->domain = domain;
	place->size = size;
	ret = domain == PGPU_VRAM ? pgpu_place_take_vram(place) : pgpu_place_take_pages(place);
	if (ret) {
		pgpu_place_put(place);
		return ERR_PTR(ret);
	}
	return place;
}

struct pgpu_place *pgpu_place_get(struct pgpu_place *place)
{
	kref_get(&place->ref);
	return place;
}

void pgpu_place_put(struct pgpu_place *place) { kref_put(&place->ref, pgpu_place_release); }

/* For the processor. */
phys_addr_t pgpu_place_address(struct pgpu_place *place, size_t offset)
{
	if (place->domain == PGPU_VRAM)
		return place->gpu->memory + place->node.start + offset;
	return page_to_phys(place->pages[offset >> PAGE_SHIFT]) + offset_in_page(offset);
}

/* Pages of system memory as a device reaches them. */
struct sg_table *pgpu_place_pages(struct pgpu_place *place, struct device *device,
				  enum dma_data_direction direction)
{
	struct sg_table *table = kzalloc(sizeof(*table), GFP_KERNEL);
	int ret;

	if (!table)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table_from_pages(table, place->pages, place->size >> PAGE_SHIFT, 0,
					place->size, GFP_KERNEL);
	if (ret)
		goto free;
	ret = dma_map_sgtable(device, table, direction, 0);
	if (!ret)
		return table;
	sg_free_table(table);
free:
	kfree(table);
	return ERR_PTR(ret);
}

void pgpu_place_pages_done(struct sg_table *table, struct device *device,
			   enum dma_data_direction direction)
{
	dma_unmap_sgtable(device, table, direction, 0);
	sg_free_table(table);
	kfree(table);
}

/* Between device memory and pages, either way. */
static int pgpu_place_exchange(struct pgpu_place *vram, struct pgpu_place *pages, bool in)
{
	enum dma_data_direction direction = in ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	struct device *device = &vram->gpu->pdev->dev;
	u64 at = vram->node.start;
	struct scatterlist *piece;
	struct sg_table *table;
	int i, ret = 0;

	table = pgpu_place_pages(pages, device, direction);
	if (IS_ERR(table))
		return PTR_ERR(table);
	for_each_sgtable_dma_sg(table, piece, i)
	{
		dma_addr_t address = sg_dma_address(piece);
		unsigned int length = sg_dma_len(piece);

		ret = in ? pgpu_engine_copy_in(vram->gpu, at, address, length)
			 : pgpu_engine_copy_out(vram->gpu, address, at, length);
		if (ret)
			break;
		at += length;
	}
	pgpu_place_pages_done(table, device, direction);
	return ret;
}

/* Between places of one size. */
int pgpu_place_copy(struct pgpu_place *to, struct pgpu_place *from)
{
	size_t i;

	if (to->domain == PGPU_VRAM && from->domain == PGPU_VRAM)
		return pgpu_engine_copy(to->gpu, to->node.start, from->node.start, to->size);
	if (to->domain == PGPU_VRAM)
		return pgpu_place_exchange(to, from, true);
	if (from->domain == PGPU_VRAM)
		return pgpu_place_exchange(from, to, false);
	for (i = 0; i < to->size >> PAGE_SHIFT; i++)
		copy_highpage(to->pages[i], from->pages[i]);
	return 0;
}

int pgpu_place_fill(struct pgpu_place *place, u64 pattern)
{
	size_t i;

	if (place->domain == PGPU_VRAM)
		return pgpu_engine_fill(place->gpu, place->node.start, place->size, pattern);
	for (i = 0; i < place->size >> PAGE_SHIFT; i++)
		memset64(page_address(place->pages[i]), pattern, PAGE_SIZE / sizeof(pattern));
	return 0;
}
