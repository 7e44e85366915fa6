/*
 * On-demand regions at work: pages come when they are used and go when the program takes them, new
 * memory at the same place is reached without registering anew, and each byte and each counter is
 * as it must be.
 *
 *   on_demand [ROUNDS [FILE]]       keeps its regions until FILE is there, for a minute at most
 */
#include "rows.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RULE(what) "kernel-facts 7, " what

enum { PAGE = 4096, PAGES = 8, SIZE = PAGES * PAGE, ODP = IBV_ACCESS_ON_DEMAND };

static char *paged, *steady;
static struct ibv_mr *paged_mr, *steady_mr;

/* The counters of the device, which nobody else uses. */
enum counter { FAULTS, FAULTS_HANDLED, INVALIDATIONS, INVALIDATIONS_HANDLED, PREFETCH, COUNTERS };
static const char *const names[COUNTERS] = { "page_faults", "page_faults_handled",
					     "page_invalidations", "page_invalidations_handled",
					     "page_prefetch" };
static unsigned long before[COUNTERS];
/* mlx5 of a kernel counts by region, which only `rdma statistic` shows. */
static int counts_by_device;

static void count_from_here(void)
{
	for (int i = 0; i < COUNTERS && counts_by_device; i++)
		before[i] = device_counter(names[i]);
}

/* Rows about what the counters grew by since the last call. */
static void grew(const char *what, unsigned long faults, unsigned long handled,
		 unsigned long invalidations, unsigned long invalidated, unsigned long prefetch)
{
	const unsigned long wanted[COUNTERS] = { faults, handled, invalidations, invalidated,
						 prefetch };
	for (int i = 0; i < COUNTERS && counts_by_device; i++) {
		unsigned long now = device_counter(names[i]);
		equal(RULE("counters"), wanted[i], now - before[i], "%s of %s", names[i], what);
		before[i] = now;
	}
}

static char *map_at(char *at, int protection)
{
	char *mapped = mmap(at, SIZE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (mapped != at)
		fail("memory at the same place");
	return mapped;
}

static unsigned char byte(int round, size_t place)
{
	return round * 37 + place / PAGE * 11 + place;
}

static void fill(char *at, int round)
{
	for (size_t i = 0; i < SIZE; i++)
		at[i] = byte(round, i);
}

static int holds_round(const char *at, int round)
{
	for (size_t i = 0; i < SIZE; i++)
		if ((unsigned char)at[i] != byte(round, i))
			return 0;
	return 1;
}

static void request(struct pair pair, enum ibv_wr_opcode opcode, char *local,
		    struct ibv_mr *local_mr, char *remote, struct ibv_mr *remote_mr,
		    uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)local, length, local_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	wr.wr.rdma.remote_addr = (uintptr_t)remote;
	wr.wr.rdma.rkey = remote_mr->rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic = (typeof(wr.wr.atomic)){ .remote_addr = (uintptr_t)remote,
						       .compare_add = 5,
						       .rkey = remote_mr->rkey };
	post(pair.a, &wr);
}

static void succeeds(struct pair pair, const char *what)
{
	completes("completion", pair.a_cq, 1, IBV_WC_SUCCESS, "%s", what);
}

/* How memory is taken away and comes back, empty. */
enum way { UNMAP, MAP_OVER, MOVE, DONTNEED, WAYS };
static const char *const ways[WAYS] = { "munmap and mmap", "mmap over it", "mremap away and mmap",
					"madvise DONTNEED" };

static void renew(enum way way)
{
	switch (way) {
	case UNMAP:
		munmap(paged, SIZE);
		map_at(paged, PROT_READ | PROT_WRITE);
		return;
	case MOVE: {
		char *away = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mremap(paged, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, away) != away)
			fail("mremap");
		map_at(paged, PROT_READ | PROT_WRITE);
		munmap(away, SIZE);
		return;
	}
	case MAP_OVER:
		map_at(paged, PROT_READ | PROT_WRITE);
		return;
	default:
		if (madvise(paged, SIZE, MADV_DONTNEED))
			fail("madvise");
	}
}

/* All pages mapped, and the counters taken from here. */
static void all_pages_in(struct pair pair)
{
	fill(steady, 0);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "all pages are brought in");
	count_from_here();
}

/* Every operation over memory that is renewed before it. */
static void each_operation(struct pair pair, enum way way, int round)
{
	char what[100];
	/* The first access faults in all pages of its message at once. */
#define RENEWED(operation) \
	(renew(way), snprintf(what, sizeof(what), operation " after %s", ways[way]), \
	 grew(ways[way], 0, 0, PAGES, 1, 0))
	RENEWED("WRITE to");
	fill(steady, round);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, what);
	grew(what, PAGES, 1, 0, 0, 0);
	holds(what, holds_round(paged, round), "every byte of WRITE to");

	RENEWED("READ of");
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, what);
	grew(what, PAGES, 1, 0, 0, 0);
	char empty[SIZE] = { 0 };
	holds(what, !memcmp(steady, empty, SIZE), "READ brings the new pages, which are empty");

	RENEWED("READ into");
	fill(steady, round + 1);
	request(pair, IBV_WR_RDMA_READ, paged, paged_mr, steady, steady_mr, SIZE);
	succeeds(pair, what);
	grew(what, PAGES, 1, 0, 0, 0);
	holds(what, holds_round(paged, round + 1), "every byte of READ into");

	RENEWED("SEND from");
	receive(pair.b, 2, steady, SIZE, steady_mr->lkey);
	request(pair, IBV_WR_SEND, paged, paged_mr, NULL, paged_mr, SIZE);
	succeeds(pair, what);
	completes("completion", pair.b_cq, 2, IBV_WC_SUCCESS, "its receive");
	grew(what, PAGES, 1, 0, 0, 0);
	holds(what, !memcmp(steady, empty, SIZE), "SEND brings the new pages, which are empty");

	RENEWED("receive into");
	fill(steady, round + 2);
	receive(pair.b, 2, paged, SIZE, paged_mr->lkey);
	request(pair, IBV_WR_SEND, steady, steady_mr, NULL, paged_mr, SIZE);
	succeeds(pair, what);
	completes("completion", pair.b_cq, 2, IBV_WC_SUCCESS, "the receive");
	/*
	 * A receive is filled packet by packet: what follows of its entry is faulted in with the
	 * first.
	 */
	grew(what, PAGES, 1, 0, 0, 0);
	holds(what, holds_round(paged, round + 2), "every byte of receive into");

	RENEWED("atomic on");
	request(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, steady, steady_mr, paged + 3 * PAGE + 8,
		paged_mr, 8);
	succeeds(pair, what);
	grew(what, 1, 1, 0, 0, 0);
	holds(what, paged[3 * PAGE + 8] == 5, "the atomic's sum");

	all_pages_in(pair);
#undef RENEWED
}

/*
 * A message over memory that is not there, or not for writing: the errors of a page fault that
 * cannot be served.
 */
static void unserved(int protection, const char *missing)
{
	static const struct {
		const char *what;
		enum ibv_wr_opcode opcode;
		int local, writes;
		enum ibv_wc_status status;
	} cases[] = {
		{ "WRITE to", IBV_WR_RDMA_WRITE, 0, 1, IBV_WC_REM_ACCESS_ERR },
		{ "READ of", IBV_WR_RDMA_READ, 0, 0, IBV_WC_REM_ACCESS_ERR },
		{ "atomic on", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, IBV_WC_REM_ACCESS_ERR },
		{ "WRITE from", IBV_WR_RDMA_WRITE, 1, 0, IBV_WC_LOC_PROT_ERR },
		{ "READ into", IBV_WR_RDMA_READ, 1, 1, IBV_WC_LOC_PROT_ERR },
		{ "SEND from", IBV_WR_SEND, 1, 0, IBV_WC_LOC_PROT_ERR },
	};
	struct ibv_mr *readable = ibv_reg_mr(pd, paged, SIZE, IBV_ACCESS_REMOTE_READ | ODP);
	if (!readable)
		fail("a region for reading");
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		/*
		 * A region for reading is enough to read: then read-only memory is no reason to
		 * fail.
		 */
		int fine = protection == PROT_READ && !cases[i].writes;
		struct ibv_mr *mr = fine ? readable : paged_mr;
		struct pair pair = new_pair(IBV_QPT_RC);
		char *there = paged + 2 * PAGE;
		uint32_t length = cases[i].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : PAGE;
		if (cases[i].opcode == IBV_WR_SEND)
			receive(pair.b, 2, steady, SIZE, steady_mr->lkey);
		if (cases[i].local)
			request(pair, cases[i].opcode, there, mr, steady, steady_mr, length);
		else
			request(pair, cases[i].opcode, steady, steady_mr, there, mr, length);
		completes(RULE("faults"), pair.a_cq, 1, fine ? IBV_WC_SUCCESS : cases[i].status,
			  "%s %s memory", cases[i].what, missing);
		end_pair(pair);
	}
	struct pair pair = new_pair(IBV_QPT_RC);
	receive(pair.b, 2, paged + 2 * PAGE, PAGE, paged_mr->lkey);
	request(pair, IBV_WR_SEND, steady, steady_mr, NULL, steady_mr, PAGE);
	completes(RULE("faults"), pair.b_cq, 2, IBV_WC_LOC_PROT_ERR, "receive into %s memory",
		  missing);
	completes(RULE("faults"), pair.a_cq, 1, IBV_WC_REM_OP_ERR, "SEND to it");
	end_pair(pair);
	ibv_dereg_mr(readable);
}

static void unserved_faults(void)
{
	munmap(paged + 2 * PAGE, PAGE);
	unserved(PROT_NONE, "unmapped");
	map_at(paged, PROT_NONE);
	unserved(PROT_NONE, "inaccessible");
	map_at(paged, PROT_READ);
	unserved(PROT_READ, "read-only");
	map_at(paged, PROT_READ | PROT_WRITE);
	/* Nobody says so when protection changes: the access finds out. */
	struct pair pair = new_pair(IBV_QPT_RC);
	all_pages_in(pair);
	mprotect(paged, SIZE, PROT_READ);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, PAGE);
	completes(RULE("faults"), pair.a_cq, 1, IBV_WC_REM_ACCESS_ERR,
		  "WRITE to memory that mprotect made read-only");
	end_pair(pair);
	mprotect(paged, SIZE, PROT_READ | PROT_WRITE);
	pair = new_pair(IBV_QPT_RC);
	fill(steady, 3);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "the region is as good as ever");
	holds(RULE("faults"), holds_round(paged, 3), "every byte then");
	syscall(SYS_munmap, paged, SIZE);
	map_at(paged, PROT_READ | PROT_WRITE);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "WRITE after an unmapping that nobody was told of");
	holds(RULE("faults"), holds_round(paged, 3), "every byte then too");
	end_pair(pair);
}

static int resident_pages(void)
{
	unsigned char vector[PAGES];
	int count = 0;
	if (mincore(paged, SIZE, vector))
		fail("mincore");
	for (int i = 0; i < PAGES; i++)
		count += vector[i] & 1;
	return count;
}

static void advise(int advice)
{
	struct ibv_sge all = { (uintptr_t)paged, SIZE, paged_mr->lkey };
	errno = ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &all, 1);
	if (errno)
		fail("advice");
}

static void advice(struct pair pair)
{
	renew(DONTNEED);
	grew("DONTNEED", 0, 0, PAGES, 1, 0);
	advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT);
	grew("advice about nothing", 0, 0, 0, 0, 0);
	equal(RULE("advice"), 0, resident_pages(), "pages that NO_FAULT brought in");
	memset(paged, 1, 3 * PAGE);
	advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT);
	grew("advice about three pages", 0, 0, 0, 0, 3);
	equal(RULE("advice"), 3, resident_pages(), "pages that are there then");
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, 3 * PAGE);
	succeeds(pair, "READ of them");
	grew("READ of them", 0, 0, 0, 0, 0);
	advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE);
	grew("advice to write", 0, 0, 0, 0, PAGES);
	equal(RULE("advice"), PAGES, resident_pages(), "pages that are there then");
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "WRITE to all");
	grew("WRITE to all", 0, 0, 0, 0, 0);
	renew(DONTNEED);
	grew("DONTNEED", 0, 0, PAGES, 1, 0);
	advise(IBV_ADVISE_MR_ADVICE_PREFETCH);
	grew("advice to read", 0, 0, 0, 0, PAGES);
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "READ of all");
	grew("READ of all", 0, 0, 0, 0, 0);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "WRITE to all");
	grew("WRITE to what was for reading", PAGES, 1, 0, 0, 0);
}

static void registration(void)
{
	struct ibv_mr *old = paged_mr;
	renew(DONTNEED);
	memset(paged, 1, 5 * PAGE);
	count_from_here();
	paged_mr = ibv_reg_mr(pd, paged, SIZE, EVERYTHING | ODP);
	if (!paged_mr)
		fail("another region");
	grew("registration", 0, 0, 0, 0, 0);
	equal(RULE("registration"), 5, resident_pages(), "pages after registration");
	ibv_dereg_mr(paged_mr);
	grew("deregistration", 0, 0, 0, 0, 0);
	paged_mr = old;
}

/* The whole address space under one key. */
static void implicit(void)
{
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, EVERYTHING | ODP);
	struct pair pair = new_pair(IBV_QPT_RC);
	char *far = mmap((char *)0x100000000000, SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!all || far == MAP_FAILED)
		fail("a region of everything");
	count_from_here();
	fill(steady, 9);
	request(pair, IBV_WR_RDMA_WRITE, steady, all, far, all, SIZE);
	succeeds(pair, "WRITE anywhere from anywhere");
	holds(RULE("implicit"), holds_round(far, 9), "every byte of it");
	grew("WRITE anywhere from anywhere", 2 * PAGES, 2, 0, 0, 0);
	munmap(far, SIZE);
	grew("its end", 0, 0, PAGES, 1, 0);
	request(pair, IBV_WR_RDMA_WRITE, steady, all, far, all, SIZE);
	completes(RULE("faults"), pair.a_cq, 1, IBV_WC_REM_ACCESS_ERR, "WRITE to where it was");
	end_pair(pair);
	pair = new_pair(IBV_QPT_RC);
	request(pair, IBV_WR_RDMA_WRITE, NULL, all, steady, all, 8);
	completes(RULE("faults"), pair.a_cq, 1, IBV_WC_LOC_PROT_ERR, "WRITE from address 0");
	end_pair(pair);
	ibv_dereg_mr(all);
}

static atomic_int storming;

/* Takes the pages away as fast as it can. */
static void *storm(void *unused)
{
	for (int turn = 0; atomic_load(&storming); turn++)
		renew(turn % 2 ? DONTNEED : MAP_OVER);
	return unused;
}

static void under_a_storm(struct pair pair, int rounds)
{
	pthread_t thread;
	int status = IBV_WC_SUCCESS;
	atomic_store(&storming, 1);
	if (pthread_create(&thread, NULL, storm, NULL))
		fail("a thread");
	for (int i = 0; i < 100 * rounds && status == IBV_WC_SUCCESS; i++) {
		struct ibv_wc wc;
		request(pair, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, steady, steady_mr,
			paged, paged_mr, SIZE);
		status = wait_for(pair.a_cq, &wc, 20) ? (int)wc.status : -1;
	}
	atomic_store(&storming, 0);
	pthread_join(thread, NULL);
	equal(RULE("invalidation"), IBV_WC_SUCCESS, status,
	      "status of the last of many transfers of pages that come and go");
	fill(steady, 5);
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "WRITE after the storm");
	holds(RULE("invalidation"), holds_round(paged, 5), "every byte after the storm");
}

/* Who looks at the regions' counters from outside must come before they go. */
static void keep_until(const char *file)
{
	for (int looks = 0; access(file, F_OK) && looks < 6000; looks++)
		usleep(10000);
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 3;
	rnr_retries = 7; /* for ever: the peer may be told to wait for a change of mappings */
	open_first_device();
	counts_by_device = strncmp(ibv_get_device_name(context->device), "mlx5_", 5) != 0;
	char *area = mmap(NULL, SIZE + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	paged = map_at(area + PAGE, PROT_READ | PROT_WRITE);
	steady = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	paged_mr = ibv_reg_mr(pd, paged, SIZE, EVERYTHING | ODP);
	steady_mr = ibv_reg_mr(pd, steady, SIZE, EVERYTHING);
	if (!paged_mr || !steady_mr)
		fail("regions");
	equal(RULE("registration"), 0, resident_pages(), "pages that registration brought in");
	struct pair pair = new_pair(IBV_QPT_RC);
	all_pages_in(pair);
	/*
	 * The first READ of a connection may be cut in pieces, each with a fault of its own, while
	 * its window grows.
	 */
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "the first READ");
	for (int round = 0; round < rounds; round++)
		for (enum way way = 0; way < WAYS; way++)
			each_operation(pair, way, round);
	advice(pair);
	registration();
	under_a_storm(pair, rounds);
	end_pair(pair);
	unserved_faults();
	implicit();
	if (count > 2)
		keep_until(arguments[2]);
	ibv_dereg_mr(paged_mr);
	ibv_dereg_mr(steady_mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return finish();
}
