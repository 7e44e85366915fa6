/*
 * The device's address translation cache, by its counters and by the bytes: regions of memory that
 * moves are asked for once a unit, and again after their owner took it back.
 *
 *   ats /dev/dri/renderD128 on|off      whether the device has ATS
 */
#include "gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#define MLX5 "mlx5_umem_needs_ats"
#define OWNER "kernel-facts 6, invalidate"

enum {
	PAGE = 4096,
	PAGES = 16,
	SIZE = PAGES * PAGE,
	UNIT = 64 << 10, /* of a dma-buf */
	GPU_SIZE = 4 * UNIT,
	ODP = IBV_ACCESS_ON_DEMAND,
	RELAXED = IBV_ACCESS_RELAXED_ORDERING,
};

enum counter { HITS, MISSES, INVALIDATIONS, COUNTERS };
static const char *const names[COUNTERS] = { "ats_hits", "ats_misses", "ats_invalidations" };
static unsigned long before[COUNTERS];
static int ats_is_on;

/* Hits that depend on the size of packets. */
static const unsigned long ANY = -1ul;

/* Rows about what the counters grew by since the last call. Repeated packets hit again. */
static void grew(const char *source, const char *what, unsigned long least_hits,
		 unsigned long misses, unsigned long invalidations)
{
	const unsigned long wanted[COUNTERS] = { least_hits, misses, invalidations };
	for (int i = 0; i < COUNTERS; i++) {
		char text[120];
		unsigned long now = device_counter(names[i]), more = now - before[i];
		snprintf(text, sizeof(text), "%s of %s: %lu", names[i], what, more);
		if (i == HITS && wanted[i])
			holds(source, more >= wanted[i] || wanted[i] == ANY, text);
		else
			equal(source, wanted[i], more, "%s", text);
		before[i] = now;
	}
}

static char *local;
static struct ibv_mr *local_mr;
static struct pair pair;

static void transfer(enum ibv_wr_opcode opcode, uint64_t to, struct ibv_mr *mr, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)local, length, local_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { to, mr->rkey } };
	post(pair.a, &wr);
	completes("transfer", pair.a_cq, 1, IBV_WC_SUCCESS, "transfer");
}

/* Writes a pattern, reads it back, compares. */
static void there_and_back(uint64_t to, struct ibv_mr *mr, uint32_t length, int seed)
{
	for (uint32_t i = 0; i < length; i++)
		local[i] = i * 7 + (i >> 8) + seed;
	transfer(IBV_WR_RDMA_WRITE, to, mr, length);
	memset(local, 0, length);
	transfer(IBV_WR_RDMA_READ, to, mr, length);
	int same = 1;
	for (uint32_t i = 0; i < length; i++)
		same &= local[i] == (char)(i * 7 + (i >> 8) + seed);
	holds("bytes", same, "what was written is read");
}

static char *map_at(char *at, int flags)
{
	char *mapped =
		mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	if (mapped == MAP_FAILED)
		fail("memory");
	return mapped;
}

/* An on-demand region: a page is a unit. */
static void on_demand(int access, int cached)
{
	char *paged = map_at(NULL, 0);
	uint64_t at = (uintptr_t)paged;
	unsigned long hits = cached ? PAGES : 0, misses = cached ? PAGES : 0;
	const char *source = access & RELAXED ? OWNER : MLX5;
	struct ibv_mr *mr = ibv_reg_mr(pd, paged, SIZE, EVERYTHING | access);
	if (!mr)
		fail("an on-demand region");
	there_and_back(at, mr, SIZE, 1);
	grew(source, "an on-demand region", hits, misses, 0);
	there_and_back(at, mr, SIZE, 2);
	grew(source, "the same again", 2 * hits, 0, 0);
	munmap(paged + 4 * PAGE, 8 * PAGE);
	grew(source, "half of it unmapped", 0, 0, cached ? 8 : 0);
	if (mmap(paged + 4 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		fail("new memory at the same place");
	grew(source, "new memory there", 0, 0, 0);
	transfer(IBV_WR_RDMA_READ, at + 4 * PAGE, mr, 8 * PAGE);
	int empty = 1;
	for (int i = 0; i < 8 * PAGE; i++)
		empty &= local[i] == 0;
	holds(OWNER, empty, "the new memory is read");
	grew(source, "it", cached ? ANY : 0, cached ? 8 : 0, 0);
	there_and_back(at, mr, SIZE, 3);
	grew(source, "all of it", 2 * hits, 0, 0);
	if (ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, paged, SIZE / 2, 0))
		fail("register it anew");
	there_and_back(at, mr, SIZE / 2, 4);
	grew(source, "the re-registered half", hits / 2, misses / 2, 0);
	ibv_dereg_mr(mr);
	munmap(paged, SIZE);
	grew(source, "the deregistered region", 0, 0, 0);
}

/* A part of a dma-buf. */
static void dma_buf(const char *node, int access, int cached)
{
	int fd = export_buffer(node, GPU_SIZE);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, GPU_SIZE, 0, fd, EVERYTHING | access);
	if (!mr)
		fail("register a dma-buf");
	close(fd);
	there_and_back(0, mr, GPU_SIZE, 5);
	grew(MLX5, "a dma-buf", cached ? 4 : 0, cached ? 4 : 0, 0);
	there_and_back(100, mr, GPU_SIZE - 100, 6);
	grew(MLX5, "the same dma-buf", cached ? 8 : 0, 0, 0);
	ibv_dereg_mr(mr);
}

/* Memory that is resident does not move. */
static void resident(void)
{
	char *memory = map_at(NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, EVERYTHING | RELAXED);
	if (!mr)
		fail("a region");
	there_and_back((uintptr_t)memory, mr, SIZE, 7);
	grew(MLX5, "resident memory", 0, 0, 0);
	ibv_dereg_mr(mr);
}

int main(int count, char **arguments)
{
	if (count != 3)
		return 2;
	ats_is_on = !strcmp(arguments[2], "on");
	open_first_device();
	local = mmap(NULL, GPU_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	local_mr = ibv_reg_mr(pd, local, GPU_SIZE, LOCAL);
	if (!local_mr)
		fail("a local region");
	pair = new_pair(IBV_QPT_RC);
	grew(MLX5, "nothing", 0, 0, 0);
	on_demand(ODP | RELAXED, ats_is_on);
	on_demand(ODP, 0);
	dma_buf(arguments[1], RELAXED, ats_is_on);
	dma_buf(arguments[1], 0, 0);
	resident();
	return finish();
}
