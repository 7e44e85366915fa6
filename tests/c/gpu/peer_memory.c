/*
 * Peer-Direct: plain ibv_reg_mr of an address inside a mapping of GPU memory. argv[1] is the GPU's
 * node, argv[2] the setting: `after` and `before` register it, `off` does not.
 */
#include "gpu.h"

#include <unistd.h>

enum { LENGTH = 1 << 20, PAGE = 4096 };
#define MOFED "MOFED core/peer_mem.c"
#define HMM "kernel-facts 6, hmm_range_fault of VM_PFNMAP"
#define UMEM "ib_umem_get: pin_user_pages of a VM_PFNMAP mapping"

static unsigned long counter(const char *file)
{
	char path[200], text[40] = "";
	snprintf(path, sizeof(path), "/sys/kernel/mm/memory_peers/peerdma_gpu/%s", file);
	int fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		fail(path);
	close(fd);
	return strtoul(text, NULL, 10);
}

static struct pair pair;
static struct ibv_mr *host_mr;

static void transfer(enum ibv_wr_opcode opcode, size_t at, struct ibv_mr *gpu,
		     unsigned char *remote, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)host_mr->addr + at, length, host_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = opcode,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { (uintptr_t)remote, gpu->rkey } };
	post(pair.a, &wr);
}

static void refused(unsigned char *mapped)
{
	row(UMEM, EFAULT, POINTER(ibv_dereg_mr, ibv_reg_mr(pd, mapped, LENGTH, EVERYTHING)),
	    "GPU memory without clients");
	equal(MOFED, 0, counter("num_alloc_mrs"), "nobody was asked");
}

/* A write of the first page of an on-demand region, and how it ends. */
static void paged(struct ibv_mr *mr, unsigned char *at, enum ibv_wc_status want, const char *what)
{
	static unsigned char page[PAGE] = { 1 };
	host_mr = ibv_reg_mr(pd, page, PAGE, LOCAL);
	pair = new_pair(IBV_QPT_RC);
	transfer(IBV_WR_RDMA_WRITE, 0, mr, at, PAGE);
	completes(HMM, pair.a_cq, IBV_WR_RDMA_WRITE, want, "%s", what);
	end_pair(pair);
	ibv_dereg_mr(host_mr);
}

/* Registered on demand there is nothing that a fault could bring in. */
static void on_demand(int gpu)
{
	unsigned char *host =
		mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *mapped = map_buffer(gpu, new_buffer(gpu, LENGTH), LENGTH);
	memset(mapped, 3, LENGTH);
	struct ibv_mr *mr = ibv_reg_mr(pd, mapped, LENGTH, EVERYTHING | IBV_ACCESS_ON_DEMAND);
	row(HMM ", snapshot", 0, mr ? 0 : errno, "an on-demand region of GPU memory");
	if (!mr || host == MAP_FAILED)
		fail("regions");
	struct ibv_sge all = { (uintptr_t)mapped, LENGTH, mr->lkey };
	row(HMM, EFAULT,
	    ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &all, 1),
	    "prefetch it");
	row(HMM, 0,
	    ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH,
			  &all, 1),
	    "prefetch what is there");
	paged(mr, mapped, IBV_WC_REM_ACCESS_ERR, "write to it");
	holds(HMM, mapped[0] == 3, "nothing was written");
	munmap(mapped, LENGTH);
	if (mmap(mapped, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) != mapped)
		fail("host memory in its place");
	paged(mr, mapped, IBV_WC_SUCCESS, "write to host memory in its place");
	holds(HMM, mapped[0] == 1, "it is there");
	ibv_dereg_mr(mr);

	mr = ibv_reg_mr(pd, host, LENGTH, EVERYTHING | IBV_ACCESS_ON_DEMAND);
	paged(mr, host, IBV_WC_SUCCESS, "write to host memory on demand");
	union gem_mmap map = { .handle = new_buffer(gpu, LENGTH) };
	if (ioctl(gpu, GEM_MMAP, &map) ||
	    mmap(host, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, gpu,
		 (off_t)map.offset) != host)
		fail("map a GPU's buffer over it");
	paged(mr, host, IBV_WC_REM_ACCESS_ERR, "write after GPU memory was mapped over it");
	holds(HMM, host[0] == 0, "nothing was written there");
	ibv_dereg_mr(mr);
	munmap(host, LENGTH);
}

static void registered(unsigned char *mapped)
{
	unsigned char *host = malloc(2 * LENGTH);
	host_mr = ibv_reg_mr(pd, host, 2 * LENGTH, LOCAL);
	unsigned char *range = mapped + 100;
	struct ibv_mr *mr = ibv_reg_mr(pd, range, LENGTH - 200, EVERYTHING);
	if (!host_mr || !mr)
		fail("register GPU memory by its address");
	equal(MOFED, 1, counter("num_alloc_mrs"), "one region of the client's, host memory is not");
	equal(MOFED, LENGTH / PAGE, counter("num_reg_pages"), "pages of it");
	equal(MOFED, LENGTH, counter("num_reg_bytes"), "bytes of its pages");
	for (size_t i = 0; i < LENGTH; i++)
		host[i] = (unsigned char)(i * 7 + (i >> 8));
	pair = new_pair(IBV_QPT_RC);
	transfer(IBV_WR_RDMA_WRITE, 0, mr, range, LENGTH - 200);
	completes("rdma", pair.a_cq, IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS,
		  "write to GPU memory by its address");
	transfer(IBV_WR_RDMA_READ, LENGTH, mr, range, LENGTH - 200);
	completes("rdma", pair.a_cq, IBV_WR_RDMA_READ, IBV_WC_SUCCESS, "read from it");
	holds("rdma", !memcmp(host, host + LENGTH, LENGTH - 200), "what was written came back");
	holds("rdma", !memcmp(host, range, LENGTH - 200) && !range[-1] && !range[LENGTH - 200],
	      "the program sees it through its mapping, and nothing around it");

	row(UMEM, EFAULT, POINTER(ibv_dereg_mr, ibv_reg_mr(pd, mapped + PAGE, LENGTH, LOCAL)),
	    "beyond the end of a mapping");
	struct ibv_mr *again = ibv_reg_mr(pd, mapped, LENGTH, EVERYTHING);
	row("ib_uverbs_rereg_mr", 0,
	    ibv_rereg_mr(again, IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, LOCAL),
	    "rereg its access");
	row(MOFED, 0, ibv_dereg_mr(again), "deregister it");
	equal(MOFED, 1, counter("num_dealloc_mrs"), "that one is gone");
	equal(MOFED, LENGTH, counter("num_dereg_bytes"), "and its bytes");

	/*
	 * The owner takes the memory away: a part of the range is unmapped, while the handle lives
	 * on.
	 */
	if (munmap(mapped + LENGTH - PAGE, PAGE))
		fail("unmap a page");
	equal(MOFED, 1, counter("num_free_callbacks"), "an invalidation");
	transfer(IBV_WR_RDMA_WRITE, 0, mr, range, 8);
	completes("peer_umem invalidation", pair.a_cq, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR,
		  "the region has stopped");
	row(MOFED, 0, ibv_dereg_mr(mr), "deregister it all the same");
	equal(MOFED, 2, counter("num_dealloc_mrs"), "nothing is left");
	equal(MOFED, counter("num_reg_bytes"), counter("num_dereg_bytes"), "nor a byte");
	end_pair(pair);

	/* What is at the address afterwards is what counts. */
	if (mmap(mapped + LENGTH - PAGE, PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		fail("map host memory there");
	row(UMEM, 0, POINTER(ibv_dereg_mr, ibv_reg_mr(pd, mapped + LENGTH - PAGE, PAGE, LOCAL)),
	    "host memory in its place");
	equal(MOFED, 2, counter("num_alloc_mrs"), "which is not the client's");
}

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("arguments");
	open_first_device();
	int gpu = open_gpu(argv[1]);
	unsigned char *mapped = map_buffer(gpu, new_buffer(gpu, LENGTH), LENGTH);
	if (!strcmp(argv[2], "off"))
		refused(mapped);
	else
		registered(mapped);
	on_demand(gpu);
	close(gpu);
	return finish();
}
