// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Pages of programs in device memory: device-private pages, which the
 * processor cannot reach. Whoever touches one, a program, the kernel or an
 * adapter that registered it on demand, has it brought home.
 *
 * Page n of the range that the kernel gives us stands for page n of device
 * memory.
 */
#include <linux/dma-mapping.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "pgpu.h"

/* Pages that move at a time. */
#define PIECE 64
/* Of device memory that can hold such pages. Each byte costs the machine 1/64 of its own. */
#define MOST SZ_1G

/* What a page of device memory holds once it is nobody's. */
#define POISON 0xdeaddeaddeaddeadull

/* A page that is in use, as its folio's data. */
struct pgpu_page {
	struct drm_mm_node node;
	struct llist_node gone;
};

static unsigned long pgpu_pages_first(struct pgpu *gpu)
{
	return PHYS_PFN(gpu->pagemap.range.start);
}

/* Where in device memory a page lies. */
static u64 pgpu_page_offset(struct pgpu *gpu, struct page *page)
{
	return PFN_PHYS(page_to_pfn(page) - pgpu_pages_first(gpu));
}

static int pgpu_page_find(struct pgpu *gpu, struct pgpu_page *own)
{
	int ret;

	mutex_lock(&gpu->vram_lock);
	ret = drm_mm_insert_node_in_range(&gpu->vram, &own->node, PAGE_SIZE, PAGE_SIZE, 0, 0,
					  min(gpu->memory_size, MOST), DRM_MM_INSERT_BEST);
	mutex_unlock(&gpu->vram_lock);
	return ret;
}

/* A page of device memory, locked; none when it is full. */
static struct page *pgpu_page_take(struct pgpu *gpu)
{
	struct pgpu_page *own = kzalloc(sizeof(*own), GFP_KERNEL);
	struct page *page;

	if (!own)
		return NULL;
	if (pgpu_page_find(gpu, own)) {
		/* What was let go may not have been given back yet. */
		flush_work(&gpu->pages_gone_work);
		if (pgpu_page_find(gpu, own)) {
			kfree(own);
			return NULL;
		}
	}
	page = pfn_to_page(pgpu_pages_first(gpu) + PHYS_PFN(own->node.start));
	zone_device_page_init(page, &gpu->pagemap, 0);
	folio_set_zone_device_data(page_folio(page), own);
	atomic_long_inc(&gpu->pages_there);
	return page;
}

/* The last user of a page has gone. It may hold a spin lock. */
static void pgpu_page_free(struct folio *folio)
{
	struct pgpu *gpu = folio->pgmap->owner;
	struct pgpu_page *own = folio_zone_device_data(folio);

	if (llist_add(&own->gone, &gpu->pages_gone))
		schedule_work(&gpu->pages_gone_work);
	atomic_long_dec(&gpu->pages_there);
}

static void pgpu_pages_give_back(struct work_struct *work)
{
	struct pgpu *gpu = container_of(work, struct pgpu, pages_gone_work);
	struct pgpu_page *own, *next;

	llist_for_each_entry_safe(own, next, llist_del_all(&gpu->pages_gone), gone)
	{
		/* Without a device there is nobody left who could read it. */
		(void)pgpu_engine_fill(gpu, own->node.start, PAGE_SIZE, POISON);
		mutex_lock(&gpu->vram_lock);
		drm_mm_remove_node(&own->node);
		mutex_unlock(&gpu->vram_lock);
		kfree(own);
	}
}

/* Between a page of device memory and one of the system's. */
static int pgpu_page_copy(struct pgpu *gpu, struct page *there, struct page *home, bool in)
{
	enum dma_data_direction direction = in ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	struct device *device = &gpu->pdev->dev;
	u64 offset = pgpu_page_offset(gpu, there);
	dma_addr_t address = dma_map_page(device, home, 0, PAGE_SIZE, direction);
	int ret;

	if (dma_mapping_error(device, address))
		return -EIO;
	ret = in ? pgpu_engine_copy_in(gpu, offset, address, PAGE_SIZE)
		 : pgpu_engine_copy_out(gpu, address, offset, PAGE_SIZE);
	dma_unmap_page(device, address, PAGE_SIZE, direction);
	return ret;
}

/*
 * A page of device memory with the bytes of `home`; with zeros for one that no program has touched
 * yet.
 */
static unsigned long pgpu_page_away(struct pgpu *gpu, struct page *home)
{
	struct page *there = pgpu_page_take(gpu);
	int ret;

	if (!there)
		return 0;
	ret = home ? pgpu_page_copy(gpu, there, home, true)
		   : pgpu_engine_fill(gpu, pgpu_page_offset(gpu, there), PAGE_SIZE, 0);
	if (!ret)
		return migrate_pfn(page_to_pfn(there));
	unlock_page(there);
	put_page(there);
	return 0;
}

/* How many of these pages move. */
static unsigned long pgpu_pages_counted(const unsigned long *pages, unsigned long count)
{
	unsigned long i, moving = 0;

	for (i = 0; i < count; i++)
		moving += !!(pages[i] & MIGRATE_PFN_MIGRATE);
	return moving;
}

/* Moves what can move of a piece; how many pages did. */
static long pgpu_pages_piece(struct pgpu *gpu, struct vm_area_struct *vma, unsigned long start,
			     unsigned long end)
{
	unsigned long from[PIECE] = {}, to[PIECE] = {}, i;
	struct migrate_vma migrate = {
		.vma = vma,
		.start = start,
		.end = end,
		.src = from,
		.dst = to,
		.pgmap_owner = gpu,
		.flags = MIGRATE_VMA_SELECT_SYSTEM,
	};
	long moved;

	/* Of hardware, or what cannot move for another reason. */
	if (migrate_vma_setup(&migrate))
		return 0;
	for (i = 0; i < migrate.npages; i++)
		if (from[i] & MIGRATE_PFN_MIGRATE)
			to[i] = pgpu_page_away(gpu, migrate_pfn_to_page(from[i]));
	migrate_vma_pages(&migrate);
	moved = pgpu_pages_counted(from, migrate.npages);
	migrate_vma_finalize(&migrate);
	atomic64_add(moved, &gpu->pages_taken);
	return moved;
}

/* Moves the caller's pages in [start, end) to device memory; how many went. */
long pgpu_pages_take(struct pgpu *gpu, unsigned long start, unsigned long end)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	long moved = 0;
	bool found = false;

	mutex_lock(&gpu->pages_lock);
	mmap_read_lock(mm);
	while (start < end && !gpu->pages_closed) {
		unsigned long next;

		vma = find_vma_intersection(mm, start, end);
		if (!vma)
			break;
		found = true;
		start = max(start, vma->vm_start);
		next = min3(start + PIECE * PAGE_SIZE, end, vma->vm_end);
		moved += pgpu_pages_piece(gpu, vma, start, next);
		start = next;
		if (fatal_signal_pending(current))
			break;
	}
	mmap_read_unlock(mm);
	if (gpu->pages_closed)
		moved = -ENODEV;
	else if (!found)
		moved = -EFAULT;
	mutex_unlock(&gpu->pages_lock);
	return moved;
}

/* A processor's touch, or an adapter's by way of the kernel. */
static vm_fault_t pgpu_page_touched(struct vm_fault *vmf)
{
	struct pgpu *gpu = page_pgmap(vmf->page)->owner;
	unsigned long from = 0, to = 0;
	struct migrate_vma migrate = {
		.vma = vmf->vma,
		.start = vmf->address & PAGE_MASK,
		.end = (vmf->address & PAGE_MASK) + PAGE_SIZE,
		.src = &from,
		.dst = &to,
		.pgmap_owner = gpu,
		.fault_page = vmf->page,
		.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
	};
	vm_fault_t ret = 0;
	struct page *home;

	if (migrate_vma_setup(&migrate))
		return VM_FAULT_SIGBUS;
	if (from & MIGRATE_PFN_MIGRATE) {
		home = alloc_page_vma(GFP_HIGHUSER_MOVABLE, vmf->vma, vmf->address);
		if (!home) {
			ret = VM_FAULT_OOM;
		} else if (pgpu_page_copy(gpu, migrate_pfn_to_page(from), home, false)) {
			__free_page(home);
			ret = VM_FAULT_SIGBUS;
		} else {
			lock_page(home);
			to = migrate_pfn(page_to_pfn(home));
		}
	}
	migrate_vma_pages(&migrate);
	atomic64_add(pgpu_pages_counted(&from, 1), &gpu->pages_returned);
	migrate_vma_finalize(&migrate);
	return ret;
}

static const struct dev_pagemap_ops pgpu_pagemap_ops = {
	.folio_free = pgpu_page_free,
	.migrate_to_ram = pgpu_page_touched,
};

int pgpu_pages_init(struct pgpu *gpu)
{
	struct device *device = &gpu->pdev->dev;
	struct resource *range;
	void *pages;

	mutex_init(&gpu->pages_lock);
	init_llist_head(&gpu->pages_gone);
	INIT_WORK(&gpu->pages_gone_work, pgpu_pages_give_back);
	range = devm_request_free_mem_region(device, &iomem_resource, min(gpu->memory_size, MOST));
	if (IS_ERR(range))
		return dev_err_probe(device, PTR_ERR(range), "no room for pages of its memory\n");
	gpu->pagemap.type = MEMORY_DEVICE_PRIVATE;
	gpu->pagemap.range = (struct range){ .start = range->start, .end = range->end };
	gpu->pagemap.nr_range = 1;
	gpu->pagemap.ops = &pgpu_pagemap_ops;
	gpu->pagemap.owner = gpu;
	pages = devm_memremap_pages(device, &gpu->pagemap);
	return PTR_ERR_OR_ZERO(pages);
}

/* Brings home a piece of all pages, whoever has them. */
static void pgpu_pages_evict(struct pgpu *gpu, unsigned long first, unsigned long count)
{
	unsigned long from[PIECE] = {}, to[PIECE] = {}, i;

	migrate_device_range(from, first, count);
	for (i = 0; i < count; i++) {
		struct page *home;

		if (!(from[i] & MIGRATE_PFN_MIGRATE))
			continue;
		home = alloc_page(GFP_HIGHUSER_MOVABLE | __GFP_NOFAIL);
		lock_page(home);
		if (pgpu_page_copy(gpu, migrate_pfn_to_page(from[i]), home, false)) {
			drm_err(&gpu->drm, "a program's page is lost\n");
			clear_highpage(home);
		}
		to[i] = migrate_pfn(page_to_pfn(home));
	}
	migrate_device_pages(from, to, count);
	atomic64_add(pgpu_pages_counted(from, count), &gpu->pages_returned);
	migrate_device_finalize(from, to, count);
}

/* The device is about to forget its memory: no page goes there any more, and all come home. */
void pgpu_pages_close(struct pgpu *gpu)
{
	unsigned long count = PHYS_PFN(min(gpu->memory_size, MOST)), i;

	mutex_lock(&gpu->pages_lock);
	gpu->pages_closed = true;
	mutex_unlock(&gpu->pages_lock);
	/* One whose lock somebody else holds stays for the next round. */
	while (atomic_long_read(&gpu->pages_there)) {
		for (i = 0; i < count; i += PIECE)
			pgpu_pages_evict(gpu, pgpu_pages_first(gpu) + i,
					 min_t(unsigned long, PIECE, count - i));
		cond_resched();
	}
	flush_work(&gpu->pages_gone_work);
}

void pgpu_pages_open(struct pgpu *gpu)
{
	mutex_lock(&gpu->pages_lock);
	gpu->pages_closed = false;
	mutex_unlock(&gpu->pages_lock);
}
