/*
 * Pages of a program that lie in the virtual GPU of a guest, as device-private pages: whoever
 * touches one brings it home, and no byte is lost. With an adapter an on-demand region over them is
 * used as well; its faults bring home just what it reaches.
 *
 *   vram_pages /dev/dri/renderD128 alone|adapter
 *
 * At the end the GPU is reset, and its driver unbound from it and bound again.
 */
#include "gpu.h"

#include "../../crates/vm/driver/peerdma_gpu_drm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRIVER "crates/vm/driver"
#define HMM "hmm_range_fault"

/* The GPU's memory in the test. */
#define MEMORY (64ull << 20)

enum { PAGE = 4096, PAGES = 32, SIZE = PAGES * PAGE };

static int gpu;
/* What is moved, and what stays. */
static unsigned char *paged, *steady;

static int take(const void *at, uint64_t length, uint64_t *pages)
{
	struct pgpu_take take = { (uintptr_t)at, length, 0 };
	int error = ioctl(gpu, DRM_IOCTL_PGPU_TAKE, &take) ? errno : 0;
	*pages = take.pages;
	return error;
}

static int error_of(const void *at, uint64_t length)
{
	uint64_t pages;
	return take(at, length, &pages);
}

static struct pgpu_pages pages(void)
{
	struct pgpu_pages pages;
	if (ioctl(gpu, DRM_IOCTL_PGPU_PAGES, &pages))
		fail("count pages");
	return pages;
}

/* Has whole pages of it go to the GPU. */
static void away(void *at, unsigned count, const char *what)
{
	uint64_t moved;
	if (take(at, (uint64_t)count * PAGE, &moved))
		fail("move pages to the GPU");
	equal(DRIVER, count, moved, "pages that go to the GPU: %s", what);
}

/* Rows about how many pages came home since the last call, and how many are away. */
static void returned(unsigned came, unsigned there, const char *what)
{
	static uint64_t before;
	struct pgpu_pages now = pages();
	equal(HMM, came, now.returned - before, "pages brought home: %s", what);
	equal(DRIVER, there, now.there, "pages in the GPU: %s", what);
	before = now.returned;
}

static void draw(unsigned char *at, unsigned seed)
{
	for (size_t i = 0; i < SIZE; i++)
		at[i] = (unsigned char)(i * 7 + i / PAGE * 11 + seed * 31);
}

static int shows(const unsigned char *at, unsigned seed)
{
	for (size_t i = 0; i < SIZE; i++)
		if (at[i] != (unsigned char)(i * 7 + i / PAGE * 11 + seed * 31))
			return 0;
	return 1;
}

static unsigned char *memory(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("memory");
	return at;
}

static void bad_input(void)
{
	int file = memfd_create("shared", 0);
	unsigned char *hole = memory(PAGE), *shared = MAP_FAILED;
	uint64_t moved;
	if (file >= 0 && !ftruncate(file, PAGE))
		shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		fail("shared memory");
	shared[0] = 1;
	munmap(hole, PAGE);
	row(DRIVER, EINVAL, error_of(paged, 0), "to move no byte");
	row(DRIVER, EINVAL, error_of(paged + 1, PAGE), "from inside a page");
	row(DRIVER, EINVAL, error_of(paged, PAGE + 1), "to inside a page");
	row(DRIVER, EINVAL, error_of((void *)-(uintptr_t)PAGE, 2 * PAGE),
	    "across the end of the address space");
	row(DRIVER, EFAULT, error_of((void *)-(uintptr_t)(2 * PAGE), PAGE),
	    "the kernel's addresses");
	row(DRIVER, EFAULT, error_of(hole, PAGE), "what is not mapped");
	row(DRIVER, 0, take(shared, PAGE, &moved), "a file's page");
	equal("migrate_vma_pages", 0, moved, "which stays where it is");
	munmap(shared, PAGE);
	close(file);
}

/* What the program itself does with pages that are away. */
static void own_use(void)
{
	int pipes[2], status;
	uint64_t moved;
	draw(paged, 1);
	away(paged, PAGES, "all");
	returned(0, PAGES, "before a touch");
	row(DRIVER, 0, take(paged, SIZE, &moved), "what is there already");
	equal(DRIVER, 0, moved, "stays there");
	holds(DRIVER, paged[5 * PAGE] == (unsigned char)(5 * PAGE * 7 + 5 * 11 + 31),
	      "a byte that is touched");
	returned(1, PAGES - 1, "by one touch");
	holds(DRIVER, shows(paged, 1), "every byte at home");
	returned(PAGES - 1, 0, "by the others");

	away(paged, PAGES, "before system calls");
	if (pipe(pipes))
		fail("a pipe");
	equal(HMM, 2 * PAGE, (unsigned long)write(pipes[1], paged, 2 * PAGE),
	      "write(2) from pages in the GPU");
	equal(HMM, 2 * PAGE, (unsigned long)read(pipes[0], paged + 4 * PAGE, 2 * PAGE),
	      "read(2) into pages in the GPU");
	holds(HMM, !memcmp(paged, paged + 4 * PAGE, 2 * PAGE), "what went through a pipe");
	close(pipes[0]);
	close(pipes[1]);
	returned(4, PAGES - 4, "by system calls");

	draw(paged, 2);
	returned(PAGES - 4, 0, "by writing");
	away(paged, PAGES, "before a fork");
	pid_t child = fork();
	if (!child) {
		int right = shows(paged, 2);
		draw(paged, 3);
		_exit(!right);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		fail("a child");
	equal(DRIVER, 0, status, "a child sees every byte");
	holds(DRIVER, shows(paged, 2), "and its parent sees none of the child's");
	returned(PAGES, 0, "for both");

	unsigned char *fresh = memory(SIZE);
	away(fresh, PAGES, "that nobody has touched");
	holds(DRIVER, fresh[0] == 0 && !memcmp(fresh, fresh + 1, SIZE - 1), "which are zeroed");
	returned(PAGES, 0, "that were never touched");
	away(fresh, PAGES, "before they are unmapped");
	munmap(fresh, SIZE);
	returned(0, 0, "by unmapping");
}

/* More than the GPU has room for: some stay, and no byte is lost. */
static void full(void)
{
	enum { LENGTH = 4 << 20, ROOM = 2 << 20 };
	unsigned char *large = memory(LENGTH);
	unsigned wrong = 0;
	uint64_t moved;
	for (unsigned at = 0; at < LENGTH; at += PAGE)
		*(unsigned *)(large + at) = ~at;
	new_buffer(gpu, MEMORY - ROOM);
	row(DRIVER, 0, take(large, LENGTH, &moved), "more pages than there is room for");
	equal(DRIVER, ROOM / PAGE, moved, "as many go as fit");
	equal(DRIVER, ROOM / PAGE, pages().there, "and are there");
	for (unsigned at = 0; at < LENGTH; at += PAGE)
		wrong += *(unsigned *)(large + at) != ~at;
	equal(DRIVER, 0, wrong, "pages with other bytes then");
	munmap(large, LENGTH);
	returned(ROOM / PAGE, 0, "from a full GPU");
}

static struct pair pair;
static struct ibv_mr *paged_mr, *steady_mr;

static void request(enum ibv_wr_opcode opcode, unsigned first, unsigned count, const char *what)
{
	struct ibv_sge sge = { (uintptr_t)steady + first * PAGE, count * PAGE, steady_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	wr.wr.rdma.remote_addr = (uintptr_t)paged + first * PAGE;
	wr.wr.rdma.rkey = paged_mr->rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.length = 8;
		wr.wr.atomic =
			(typeof(wr.wr.atomic)){ .remote_addr = (uintptr_t)paged + first * PAGE,
						.compare_add = 5,
						.rkey = paged_mr->rkey };
	}
	post(pair.a, &wr);
	completes("completion", pair.a_cq, 1, IBV_WC_SUCCESS, "%s", what);
}

/* What an adapter does with pages that are away. */
static void by_adapter(void)
{
	draw(paged, 10);
	away(paged, PAGES, "before a WRITE");
	draw(steady, 11);
	request(IBV_WR_RDMA_WRITE, 0, PAGES, "RDMA WRITE to pages in the GPU");
	returned(PAGES, 0, "by a WRITE");
	holds(HMM, shows(paged, 11), "every byte written");

	away(paged, PAGES, "before a READ");
	memset(steady, 0, SIZE);
	request(IBV_WR_RDMA_READ, 0, PAGES, "RDMA READ of pages in the GPU");
	returned(PAGES, 0, "by a READ");
	holds(HMM, shows(steady, 11), "every byte read");

	away(paged, PAGES, "before a WRITE to three");
	request(IBV_WR_RDMA_WRITE, 4, 3, "RDMA WRITE to three of them");
	returned(3, PAGES - 3, "by a WRITE to three");
	request(IBV_WR_RDMA_WRITE, 4, 3, "the same again");
	returned(0, PAGES - 3, "by what has been mapped");
	memset(paged + 20 * PAGE, 0, 8);
	request(IBV_WR_ATOMIC_FETCH_AND_ADD, 21, 1, "an atomic on one of them");
	returned(2, PAGES - 5, "by a touch and an atomic");

	struct ibv_sge list = { (uintptr_t)steady, SIZE, steady_mr->lkey };
	struct ibv_send_wr send = {
		.wr_id = 1, .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_SEND
	};
	draw(steady, 12);
	receive(pair.b, 2, paged, SIZE, paged_mr->lkey);
	post(pair.a, &send);
	completes("completion", pair.a_cq, 1, IBV_WC_SUCCESS, "a SEND to them");
	completes("completion", pair.b_cq, 2, IBV_WC_SUCCESS, "its receive");
	returned(PAGES - 5, 0, "by a receive");
	holds(HMM, shows(paged, 12), "every byte received");

	draw(paged, 13);
	away(paged, PAGES, "before a SEND");
	list = (struct ibv_sge){ (uintptr_t)paged, SIZE, paged_mr->lkey };
	receive(pair.b, 2, steady, SIZE, steady_mr->lkey);
	post(pair.a, &send);
	completes("completion", pair.a_cq, 1, IBV_WC_SUCCESS, "a SEND from them");
	completes("completion", pair.b_cq, 2, IBV_WC_SUCCESS, "its receive");
	returned(PAGES, 0, "by a SEND");
	holds(HMM, shows(steady, 13), "every byte sent");

	uint64_t moved;
	row(DRIVER, 0, take(steady, SIZE, &moved), "to move pages that are registered otherwise");
	equal("migrate_vma_setup", 0, moved, "which stay");
}

static void advice(void)
{
	const struct {
		int advice;
		unsigned comes;
		const char *what;
	} rows_of[] = {
		{ IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, "advice that brings nothing home" },
		{ IBV_ADVISE_MR_ADVICE_PREFETCH, 3, "advice to read three" },
		{ IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 2, "advice to write five" },
	};
	draw(paged, 14);
	away(paged, PAGES, "before advice");
	for (unsigned i = 0; i < 3; i++) {
		struct ibv_sge range = { (uintptr_t)paged, (i == 2 ? 5 : 3) * PAGE,
					 paged_mr->lkey };
		row("ibv_advise_mr(3)", 0,
		    ibv_advise_mr(pd, rows_of[i].advice, IBV_ADVISE_MR_FLAG_FLUSH, &range, 1), "%s",
		    rows_of[i].what);
		returned(rows_of[i].comes, pages().there, rows_of[i].what);
	}
	holds(HMM, shows(paged, 14), "every byte after advice");
	returned(PAGES - 5, 0, "after advice");
}

enum { ROUNDS = 4 };

static atomic_int is_over;

/* Has pages go there, a few at a time: a request that always finds all of them gone would not end.
 */
static void *mover(void *at)
{
	uint64_t moved, all = 0;
	for (unsigned i = 0; !is_over; i = (i + 5) % (PAGES - 1))
		if (!take((unsigned char *)at + i * PAGE, 2 * PAGE, &moved))
			all += moved;
	return (void *)(uintptr_t)all;
}

/* They go to the GPU all the while. */
static void under_traffic(void)
{
	unsigned wrong = 0, failed = 0;
	pthread_t thread;
	void *moved;
	if (pthread_create(&thread, NULL, mover, paged))
		fail("a thread that moves pages");
	for (unsigned seed = 20; seed < 20 + ROUNDS; seed++) {
		const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
		draw(steady, seed);
		for (int i = 0; i < 2; i++) {
			struct ibv_sge sge = { (uintptr_t)steady, SIZE, steady_mr->lkey };
			struct ibv_send_wr wr = { .sg_list = &sge,
						  .num_sge = 1,
						  .opcode = opcodes[i],
						  .wr.rdma = { (uintptr_t)paged, paged_mr->rkey } };
			struct ibv_wc wc = { 0 };
			post(pair.a, &wr);
			failed += !wait_for(pair.a_cq, &wc, 60) || wc.status;
			if (!i) {
				wrong += !shows(paged, seed);
				memset(steady, 0, SIZE);
			}
		}
		wrong += !shows(steady, seed);
	}
	is_over = 1;
	pthread_join(thread, &moved);
	equal(HMM, 0, failed, "requests that failed while pages went to and fro");
	equal(HMM, 0, wrong, "rounds whose bytes came back wrong");
	holds(DRIVER, (uintptr_t)moved > PAGES, "they went to the GPU all the while");
	holds(HMM, shows(paged, 20 + ROUNDS - 1), "every byte at the end");
}

static void tell(const char *folder, const char *file, const char *what)
{
	char path[300];
	snprintf(path, sizeof(path), "%s/%s", folder, file);
	int fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, what, strlen(what)) != (ssize_t)strlen(what))
		fail(path);
	close(fd);
}

/* The GPU forgets its memory while pages lie in it. */
static void was_reset(const char *device)
{
	draw(paged, 30);
	away(paged, PAGES, "before a reset");
	tell(device, "reset", "1");
	equal(DRIVER, 0, pages().there, "pages in the GPU after a reset");
	holds(DRIVER, shows(paged, 30), "every byte after a reset");
	away(paged, PAGES, "after a reset");
	holds(DRIVER, shows(paged, 30), "every byte then");
}

/* Its driver goes while they do. */
static void unbound(const char *node, const char *device)
{
	const char *address = strrchr(device, '/') + 1;
	draw(paged, 40);
	away(paged, PAGES, "before their driver goes");
	tell("/sys/bus/pci/drivers/peerdma_gpu", "unbind", address);
	holds(DRIVER, shows(paged, 40), "every byte without a driver");
	row(DRIVER, ENODEV, error_of(paged, SIZE), "to move pages without one");
	if (paged_mr) {
		draw(steady, 41);
		request(IBV_WR_RDMA_WRITE, 0, PAGES, "RDMA WRITE to what came home");
		holds(HMM, shows(paged, 41), "every byte written there");
	}
	close(gpu);
	tell("/sys/bus/pci/drivers/peerdma_gpu", "bind", address);
	gpu = open_gpu(node);
	draw(paged, 42);
	away(paged, PAGES, "once their driver is back");
	holds(DRIVER, shows(paged, 42), "every byte then");
	equal(DRIVER, PAGES, pages().returned, "counted afresh");
}

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("arguments");
	setvbuf(stdout, NULL, _IOLBF, 0);
	gpu = open_gpu(argv[1]);
	paged = memory(SIZE);
	steady = memory(SIZE);
	returned(pages().returned, 0, "at first");
	bad_input();
	own_use();
	full();
	if (!strcmp(argv[2], "adapter")) {
		open_first_device();
		/* A page fault at the responder is told by RNR NAKs, and a page takes its time. */
		rnr_retries = 7;
		ack_timeout = 18;
		pair = new_pair(IBV_QPT_RC);
		paged_mr = ibv_reg_mr(pd, paged, SIZE, EVERYTHING | IBV_ACCESS_ON_DEMAND);
		steady_mr = ibv_reg_mr(pd, steady, SIZE, LOCAL);
		if (!paged_mr || !steady_mr)
			fail("regions");
		by_adapter();
		advice();
		under_traffic();
	}
	char path[300], device[300];
	snprintf(path, sizeof(path), "/sys/class/drm/%s/device", strrchr(argv[1], '/') + 1);
	if (!realpath(path, device))
		fail(path);
	was_reset(device);
	unbound(argv[1], device);
	return finish();
}
