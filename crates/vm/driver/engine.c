// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The GPU's copy engine: commands by registers, an interrupt at their end.
 */
#include <linux/interrupt.h>
#include <linux/io.h>

#include "pgpu.h"

enum {
	SOURCE = 0x10,
	TARGET = 0x18,
	LENGTH = 0x20,
	PATTERN = 0x28,
	COMMAND = 0x30,
	STATUS = 0x34,
};

#define COPY 1
#define FILL 2
#define FROM_HOST BIT(8)
#define TO_HOST BIT(9)

#define DONE 2
#define INVALID 3

#define PATIENCE (30 * HZ)

static irqreturn_t pgpu_engine_ended(int irq, void *data)
{
	struct pgpu *gpu = data;

	complete(&gpu->engine_done);
	return IRQ_HANDLED;
}

int pgpu_engine_init(struct pgpu *gpu)
{
	int ret;

	mutex_init(&gpu->engine_lock);
	init_completion(&gpu->engine_done);
	ret = pci_alloc_irq_vectors(gpu->pdev, 1, 1, PCI_IRQ_MSIX);
	if (ret < 0)
		return ret;
	return devm_request_irq(&gpu->pdev->dev, pci_irq_vector(gpu->pdev, 0), pgpu_engine_ended, 0,
				KBUILD_MODNAME, gpu);
}

void pgpu_engine_hold(struct pgpu *gpu) { mutex_lock(&gpu->engine_lock); }

void pgpu_engine_release(struct pgpu *gpu) { mutex_unlock(&gpu->engine_lock); }

static int pgpu_engine_run(struct pgpu *gpu, u32 command, u64 target, u64 source, u64 length,
			   u64 pattern)
{
	int ret = -ENODEV, index;
	u32 status;

	mutex_lock(&gpu->engine_lock);
	if (gpu->engine_dead || !drm_dev_enter(&gpu->drm, &index))
		goto unlock;
	reinit_completion(&gpu->engine_done);
	writeq(source, gpu->registers + SOURCE);
	writeq(target, gpu->registers + TARGET);
	writeq(length, gpu->registers + LENGTH);
	writeq(pattern, gpu->registers + PATTERN);
	writel(command, gpu->registers + COMMAND);
	if (wait_for_completion_timeout(&gpu->engine_done, PATIENCE)) {
		status = readl(gpu->registers + STATUS);
		ret = status == DONE ? 0 : status == INVALID ? -EINVAL : -EFAULT;
	} else {
		/* It may still move bytes: nothing can be said of them. */
		gpu->engine_dead = true;
		drm_err(&gpu->drm, "command %#x has not ended\n", command);
		ret = -EIO;
	}
	drm_dev_exit(index);
unlock:
	mutex_unlock(&gpu->engine_lock);
	return ret;
}

/* Within device memory, between ranges that do not overlap. */
int pgpu_engine_copy(struct pgpu *gpu, u64 target, u64 source, u64 length)
{
	return pgpu_engine_run(gpu, COPY, target, source, length, 0);
}

int pgpu_engine_copy_in(struct pgpu *gpu, u64 target, dma_addr_t source, u64 length)
{
	return pgpu_engine_run(gpu, COPY | FROM_HOST, target, source, length, 0);
}

int pgpu_engine_copy_out(struct pgpu *gpu, dma_addr_t target, u64 source, u64 length)
{
	return pgpu_engine_run(gpu, COPY | TO_HOST, target, source, length, 0);
}

int pgpu_engine_fill(struct pgpu *gpu, u64 target, u64 length, u64 pattern)
{
	return pgpu_engine_run(gpu, FILL, target, 0, length, pattern);
}
