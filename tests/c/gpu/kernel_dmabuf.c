/*
 * Registers a buffer that the kernel exports (a DRM dumb buffer as a dma-buf, a udmabuf, a
 * dma-heap's) and moves data into and out of it by RDMA, each byte compared through the kernel's
 * own mapping.
 *
 *   kernel_dmabuf /dev/dri/card0
 *   kernel_dmabuf /dev/udmabuf
 *   kernel_dmabuf /dev/dma_heap/system
 */
#include "rows.h"

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 1 << 20, PAGE = 4096 };

/* From the kernel's drm.h and drm_mode.h, which not every machine has installed. */
struct create_dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct prime_handle {
	uint32_t handle, flags;
	int32_t fd;
};
#define CREATE_DUMB _IOWR('d', 0xb2, struct create_dumb)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_handle)

static unsigned char pattern(unsigned seed, unsigned at)
{
	return (seed * 31 + at * 7 + (at >> 8)) & 0xff;
}

static int of_dumb_buffer(int card)
{
	struct create_dumb dumb = { .width = 1024, .height = LENGTH / 4096, .bpp = 32 };
	if (ioctl(card, CREATE_DUMB, &dumb))
		fail("create a dumb buffer");
	struct prime_handle prime = { .handle = dumb.handle, .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(card, PRIME_HANDLE_TO_FD, &prime))
		fail("export it");
	return prime.fd;
}

static int of_memfd(int udmabuf)
{
	const char *source = "kernel-facts section 9, udmabuf";
	int memfd = memfd_create("pages", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	if (memfd < 0 || ftruncate(memfd, LENGTH))
		fail("memfd");
	struct udmabuf_create create = { .memfd = memfd,
					 .flags = UDMABUF_FLAGS_CLOEXEC,
					 .size = LENGTH };
	equal(source, (unsigned long)-1, ioctl(udmabuf, UDMABUF_CREATE, &create),
	      "of a memfd that may shrink");
	row(source, EINVAL, errno, "of a memfd that may shrink");
	if (fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		fail("seal");
	struct udmabuf_create odd = create;
	odd.size = LENGTH - 1;
	equal(source, (unsigned long)-1, ioctl(udmabuf, UDMABUF_CREATE, &odd),
	      "of a part of a page");
	row(source, EINVAL, errno, "of a part of a page");
	odd = create;
	odd.memfd = udmabuf;
	equal(source, (unsigned long)-1, ioctl(udmabuf, UDMABUF_CREATE, &odd),
	      "of what is no memfd");
	row(source, EBADFD, errno, "of what is no memfd");
	int fd = ioctl(udmabuf, UDMABUF_CREATE, &create);
	if (fd < 0)
		fail("UDMABUF_CREATE");
	close(memfd);
	return fd;
}

static int of_heap(int heap)
{
	struct dma_heap_allocation_data allocation = { .len = LENGTH,
						       .fd_flags = O_CLOEXEC | O_RDWR };
	if (ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &allocation))
		fail("DMA_HEAP_IOCTL_ALLOC");
	return (int)allocation.fd;
}

/* A dma-buf of at least LENGTH bytes that the device's driver exports. */
static int export_buffer(const char *device)
{
	int node = open(device, O_RDWR | O_CLOEXEC);
	if (node < 0)
		fail(device);
	int fd = strstr(device, "udmabuf") ? of_memfd(node)
		 : strstr(device, "heap")  ? of_heap(node)
					   : of_dumb_buffer(node);
	close(node);
	return fd;
}

static void move(struct pair pair, enum ibv_wr_opcode opcode, void *local, uint32_t lkey,
		 uint64_t remote, uint32_t rkey, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)local, length, lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { remote, rkey } };
	post(pair.a, &wr);
	completes("ibv_post_send(3)", pair.a_cq, 1, IBV_WC_SUCCESS,
		  opcode == IBV_WR_RDMA_WRITE ? "write" : "read");
}

int main(int argc, char **argv)
{
	const int access =
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	int fd = export_buffer(argc > 1 ? argv[1] : "/dev/dri/card0");
	unsigned char *seen = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (seen == MAP_FAILED)
		fail("map the dma-buf");
	open_first_device();
	const char *source = "kernel-facts section 3";
	equal(source, 0,
	      (unsigned long)ibv_reg_dmabuf_mr(pd, 0, (size_t)LENGTH * 64, 0, fd, access),
	      "beyond its size");
	row(source, EINVAL, errno, "beyond its size");
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, PAGE, LENGTH - PAGE, PAGE, fd, access);
	if (!mr)
		fail("register the dma-buf");
	close(fd);
	unsigned char *host = malloc(LENGTH);
	struct ibv_mr *host_mr = ibv_reg_mr(pd, host, LENGTH, access);
	struct pair pair = new_pair(IBV_QPT_RC);
	for (unsigned i = 0; i < LENGTH; i++)
		host[i] = pattern(1, i);
	memset(seen, 0, LENGTH);
	move(pair, IBV_WR_RDMA_WRITE, host, host_mr->lkey, PAGE, mr->rkey, LENGTH - PAGE);
	unsigned different = 0;
	for (unsigned i = PAGE; i < LENGTH; i++)
		different += seen[i] != pattern(1, i - PAGE);
	equal("D9", 0, different, "bytes of the kernel's buffer that a WRITE left wrong");
	different = 0;
	for (unsigned i = 0; i < PAGE; i++)
		different += seen[i] != 0;
	equal("D9", 0, different, "bytes before the registration that it touched");
	for (unsigned i = 0; i < LENGTH; i++)
		seen[i] = pattern(2, i);
	memset(host, 0, LENGTH);
	move(pair, IBV_WR_RDMA_READ, host, host_mr->lkey, PAGE, mr->rkey, LENGTH - PAGE);
	different = 0;
	for (unsigned i = 0; i < LENGTH - PAGE; i++)
		different += host[i] != pattern(2, i + PAGE);
	equal("D9", 0, different, "bytes that a READ brought wrong");
	end_pair(pair);
	ibv_dereg_mr(mr);
	ibv_dereg_mr(host_mr);
	free(host);
	return finish();
}
