/*
 * Memory of a program that migrates to GPUs and back while an on-demand region over it is used:
 * each byte and each counter is as it must be. GPU 0 is one that the HCA reaches, GPU 1 one that it
 * does not if the second argument is `far`.
 *
 *   device_private ROUNDS far|near|small-bar|refused|daemon
 *
 * With RELAXED in the environment the region allows relaxed ordering, so that its translations are
 * cached.
 */
#include "rows.h"
#include "../../crates/verbs/include/peerdma.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HMM "kernel-facts 6"
#define PAGE_ROLE "include/peerdma.h"

enum { PAGE = 4096, PAGES = 8, SIZE = PAGES * PAGE, ODP = IBV_ACCESS_ON_DEMAND };

static ssize_t (*to_gpu)(unsigned int, void *, size_t);
static ssize_t (*to_host)(void *, size_t);
static char *paged, *steady;
static struct ibv_mr *paged_mr, *steady_mr;
static int far;

/*
 * Rows about pages that were mapped in a GPU, and those that had to come to host memory, since the
 * last call.
 */
static void grew(const char *what, unsigned long mapped, unsigned long fallback)
{
	static unsigned long old_mapped, old_fallback;
	unsigned long now_mapped = device_counter("page_peer_mapped"),
		      now_fallback = device_counter("page_peer_fallback");
	equal(HMM, mapped, now_mapped - old_mapped, "pages reached in the GPU: %s", what);
	equal(HMM, fallback, now_fallback - old_fallback, "pages that fell back: %s", what);
	old_mapped = now_mapped;
	old_fallback = now_fallback;
}

static int error_of(ssize_t moved) { return moved < 0 ? errno : 0; }

static void moves(size_t want, ssize_t got, const char *what)
{
	equal(PAGE_ROLE, want, (unsigned long)got, "pages that move: %s", what);
}

static void fill(char *at, int round)
{
	for (size_t i = 0; i < SIZE; i++)
		at[i] = round * 37 + i / PAGE * 11 + i;
}

static int holds_round(const char *at, int round)
{
	for (size_t i = 0; i < SIZE; i++)
		if ((unsigned char)at[i] != (unsigned char)(round * 37 + i / PAGE * 11 + i))
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

static void bad_input(void)
{
	static const char *const rule = PAGE_ROLE;
	int file = memfd_create("shared", 0);
	if (file < 0 || ftruncate(file, SIZE))
		fail("a file");
	char *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	char *constant = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	row(rule, EINVAL, error_of(to_gpu(0, paged, 0)), "migrate nothing");
	row(rule, EINVAL, error_of(to_gpu(0, paged + 1, PAGE)), "migrate from inside a page");
	row(rule, EINVAL, error_of(to_gpu(0, paged, PAGE + 1)), "migrate to inside a page");
	row(rule, EINVAL, error_of(to_gpu(0, (void *)-PAGE, 2 * PAGE)),
	    "migrate across the end of the address space");
	row(rule, ENODEV, error_of(to_gpu(99, paged, PAGE)), "migrate to GPU 99");
	row(rule, EFAULT, error_of(to_gpu(0, (void *)PAGE, PAGE)), "migrate unmapped memory");
	row(rule, EFAULT, error_of(to_gpu(0, paged - PAGE, PAGE)), "migrate inaccessible memory");
	row(rule, EFAULT, error_of(to_gpu(0, shared, PAGE)), "migrate shared memory");
	row(rule, EFAULT, error_of(to_gpu(0, constant, PAGE)), "migrate read-only memory");
	row(rule, EINVAL, error_of(to_host(paged + 1, PAGE)), "bring home from inside a page");
	row(rule, EINVAL, error_of(to_host(paged, 0)), "bring nothing home");
	moves(0, to_gpu(0, steady, SIZE), "of a region that is not on demand");
	moves(0, to_host(steady, SIZE), "home, of what is there");
	munmap(shared, SIZE);
	munmap(constant, SIZE);
	close(file);
}

/* Each operation on pages that are in a GPU's memory. */
static void each_operation(struct pair pair, unsigned gpu, int round)
{
	int reached = gpu == 0 || !far;
	char what[100];
#define MIGRATED(operation) \
	snprintf(what, sizeof(what), operation " pages in GPU %u", gpu); \
	to_host(paged, SIZE); \
	moves(PAGES, to_gpu(gpu, paged, SIZE), what)
#define COUNTED(pages) grew(what, reached ? (pages) : 0, reached ? 0 : (pages))
	/* What is left there is seen by how many come home. */
#define LEFT(touched) moves(reached ? PAGES : PAGES - (touched), to_host(paged, SIZE), what)

	fill(steady, round);
	MIGRATED("WRITE to");
	request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, what);
	COUNTED(PAGES);
	LEFT(PAGES);
	holds(HMM, holds_round(paged, round), "every byte written");

	fill(paged, round + 1);
	MIGRATED("READ of");
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, what);
	COUNTED(PAGES);
	holds(HMM, holds_round(steady, round + 1), "every byte read");
	/* The key reaches them on without another fault. */
	memset(steady, 0, SIZE);
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, what);
	COUNTED(0);
	holds(HMM, holds_round(steady, round + 1), "every byte read again");
	LEFT(PAGES);

	fill(paged, round + 2);
	MIGRATED("SEND from");
	receive(pair.b, 2, steady, SIZE, steady_mr->lkey);
	request(pair, IBV_WR_SEND, paged, paged_mr, NULL, paged_mr, SIZE);
	succeeds(pair, what);
	completes("completion", pair.b_cq, 2, IBV_WC_SUCCESS, "its receive");
	COUNTED(PAGES);
	holds(HMM, holds_round(steady, round + 2), "every byte sent");

	MIGRATED("receive into");
	receive(pair.b, 2, paged, SIZE, paged_mr->lkey);
	fill(steady, round + 3);
	request(pair, IBV_WR_SEND, steady, steady_mr, NULL, paged_mr, SIZE);
	succeeds(pair, what);
	completes("completion", pair.b_cq, 2, IBV_WC_SUCCESS, "the receive");
	COUNTED(PAGES);
	holds(HMM, holds_round(paged, round + 3), "every byte received");

	memset(paged, 0, SIZE);
	MIGRATED("atomic on");
	request(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, steady, steady_mr, paged + 3 * PAGE + 8,
		paged_mr, 8);
	succeeds(pair, what);
	COUNTED(1);
	LEFT(1);
	holds(HMM, paged[3 * PAGE + 8] == 5, "the atomic's sum");
}

/* Pages of one message here and there: each falls back alone. */
static void mixed(struct pair pair)
{
	fill(paged, 50);
	to_host(paged, SIZE);
	moves(2, to_gpu(0, paged + PAGE, 2 * PAGE), "two pages to GPU 0");
	moves(3, to_gpu(1, paged + 4 * PAGE, 3 * PAGE), "three pages to GPU 1");
	memset(steady, 0, SIZE);
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "READ of a mixture");
	grew("READ of a mixture", far ? 2 : 5, far ? 3 : 0);
	holds(HMM, holds_round(steady, 50), "every byte of the mixture");
	moves(far ? 2 : 5, to_host(paged, SIZE), "home, of the mixture");
	holds(HMM, holds_round(paged, 50), "every byte at home");
}

/* What the program does with its own pages while they are away. */
static void own_use(struct pair pair)
{
	int pipes[2], status;
	char bytes[2 * PAGE];
	fill(paged, 60);
	to_gpu(0, paged, SIZE);
	if (pipe(pipes))
		fail("a pipe");
	equal(HMM, 2 * PAGE, write(pipes[1], paged, 2 * PAGE), "write(2) from pages in the GPU");
	equal(HMM, 2 * PAGE, read(pipes[0], paged + 4 * PAGE, 2 * PAGE),
	      "read(2) into pages in the GPU");
	holds(HMM, !memcmp(paged, paged + 4 * PAGE, 2 * PAGE),
	      "the bytes that went through a pipe");
	close(pipes[0]);
	close(pipes[1]);

	fill(paged, 61);
	to_gpu(0, paged, SIZE);
	pid_t child = fork();
	if (child == 0)
		_exit(!holds_round(paged, 61) || to_gpu(0, paged, SIZE) != -1);
	waitpid(child, &status, 0);
	equal("design D10", 0, status, "a child sees the bytes, and migrates nothing");
	holds(HMM, holds_round(paged, 61), "the parent too");

	to_gpu(0, paged, SIZE);
	char *elsewhere = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mremap(paged, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) != elsewhere)
		fail("mremap");
	holds(HMM, holds_round(elsewhere, 61), "the bytes move with their mapping");
	munmap(elsewhere, SIZE);
	if (mmap(paged, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) != paged)
		fail("memory");
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "READ of new memory at the old place");
	memset(bytes, 0, sizeof(bytes));
	holds(HMM, !memcmp(steady, bytes, sizeof(bytes)), "it is empty");

	fill(paged, 62);
	to_gpu(0, paged, SIZE);
	madvise(paged, SIZE, MADV_DONTNEED);
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "READ of discarded pages");
	holds(HMM, !memcmp(steady, bytes, sizeof(bytes)), "they are empty");

	fill(paged, 63);
	to_gpu(0, paged, SIZE);
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "READ before their rights change");
	mprotect(paged, SIZE, PROT_READ);
	struct pair other = new_pair(IBV_QPT_RC);
	request(other, IBV_WR_RDMA_WRITE, steady, steady_mr, paged, paged_mr, SIZE);
	completes(HMM " (EPERM)", other.a_cq, 1, IBV_WC_REM_ACCESS_ERR,
		  "WRITE to what may only be read");
	end_pair(other);
	mprotect(paged, SIZE, PROT_READ | PROT_WRITE);
	holds(HMM, holds_round(paged, 63), "every byte after mprotect");

	fill(paged, 64);
	to_gpu(0, paged, SIZE);
	struct ibv_mr *resident = ibv_reg_mr(pd, paged, SIZE, EVERYTHING);
	if (!resident)
		fail("a resident region");
	moves(0, to_gpu(0, paged, SIZE), "pages that a registration brought home and holds");
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, resident, SIZE);
	succeeds(pair, "READ of them");
	holds(HMM, holds_round(steady, 64), "every byte of them");
	ibv_dereg_mr(resident);
	grew("all of that", PAGES, 0);
}

/* The far GPU shows two of its pages to peers: of eight, six fall back. */
static void small_bar(struct pair pair)
{
	fill(paged, 70);
	moves(PAGES, to_gpu(1, paged, SIZE), "to a GPU with a small BAR");
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "READ of them");
	grew("READ of them", 2, PAGES - 2);
	holds(HMM, holds_round(steady, 70), "every byte of them");
	moves(2, to_host(paged, SIZE), "home, of those that the BAR shows");
	holds(HMM, holds_round(paged, 70), "every byte at home");
}

/* Without the right to userfaultfd(2), which an administrator may give to all. */
static void refused(void)
{
	char allowed = '0';
	FILE *file = fopen("/proc/sys/vm/unprivileged_userfaultfd", "r");
	if (file) {
		allowed = fgetc(file);
		fclose(file);
	}
	int got = error_of(to_gpu(0, paged, SIZE));
	row("design D10", allowed == '1' || !access("/dev/userfaultfd", R_OK | W_OK) ? 0 : EPERM,
	    got, "migrate without the right to userfaultfd(2)");
	fill(paged, 1);
	holds("design D10", holds_round(paged, 1), "the memory is as good as ever");
}

static atomic_int moving;

/* Sends pages away and brings some home, as fast as it can. */
static void *mover(void *unused)
{
	for (unsigned turn = 0; atomic_load(&moving); turn++) {
		to_gpu(turn % 2, paged, SIZE);
		for (volatile char *at = paged + turn % PAGES * PAGE;
		     turn % 3 == 0 && at < paged + SIZE; at += 3 * PAGE)
			(void)*at;
	}
	return unused;
}

/* Two words of each page: one that the HCA adds to, one that the processor does. Nothing is lost.
 */
static void under_traffic(struct pair pair, int rounds)
{
	pthread_t thread;
	int good = 1;
	int turns = 200 * rounds;
	memset(paged, 0, SIZE);
	atomic_store(&moving, 1);
	if (pthread_create(&thread, NULL, mover, NULL))
		fail("a thread");
	for (int i = 0; i < turns && good; i++) {
		struct ibv_wc wc;
		char *page = paged + i % PAGES * PAGE;
		request(pair, IBV_WR_ATOMIC_FETCH_AND_ADD, steady, steady_mr, page + 8, paged_mr,
			8);
		++*(volatile uint64_t *)page;
		good = wait_for(pair.a_cq, &wc, 20) && wc.status == IBV_WC_SUCCESS;
		memset(steady, i, PAGE / 2);
		request(pair, IBV_WR_RDMA_WRITE, steady, steady_mr, page + PAGE / 2, paged_mr,
			PAGE / 2);
		good = good && wait_for(pair.a_cq, &wc, 20) && wc.status == IBV_WC_SUCCESS;
		memset(steady, ~i, PAGE / 2);
		request(pair, IBV_WR_RDMA_READ, steady, steady_mr, page + PAGE / 2, paged_mr,
			PAGE / 2);
		good = good && wait_for(pair.a_cq, &wc, 20) && wc.status == IBV_WC_SUCCESS &&
		       steady[0] == (char)i && !memcmp(steady, steady + 1, PAGE / 2 - 1);
	}
	atomic_store(&moving, 0);
	pthread_join(thread, NULL);
	holds(HMM, good, "every transfer of pages that move, and what it reads is what it wrote");
	unsigned long stored = 0, added = 0;
	for (int i = 0; i < PAGES; i++) {
		stored += *(uint64_t *)(paged + i * PAGE);
		added += *(uint64_t *)(paged + i * PAGE + 8);
	}
	equal(HMM, turns, stored, "stores of the processor");
	equal(HMM, turns * 5, added, "sum of the HCA's atomics");
	if (far)
		holds(HMM, device_counter("page_peer_fallback") > 0, "some fell back");
	holds(HMM, device_counter("page_peer_mapped") > 0, "some were reached where they were");
}

/*
 * What is away comes home before the fork of daemon(3), and though that takes longer than a fork
 * waits for the engine, the daemon has the engine.
 */
static void become_daemon(int told)
{
	enum { AWAY = 512 << 20 };
	open_first_device();
	struct pair pair = new_pair(IBV_QPT_RC);
	char *away = mmap(NULL, AWAY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	steady = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	steady_mr = ibv_reg_mr(pd, steady, SIZE, EVERYTHING);
	if (away == MAP_FAILED || !steady_mr)
		fail("memory");
	memset(away, 0x5a, AWAY);
	moves(AWAY / PAGE, to_gpu(0, away, AWAY), "before the fork");
	fflush(stdout);
	if (daemon(1, 1))
		fail("daemon");
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	struct ibv_sge sge = { (uintptr_t)steady, PAGE, steady_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .wr.rdma = { (uintptr_t)steady + PAGE, steady_mr->rkey } }, *bad;
	row("daemon(3)", 0, ibv_post_send(pair.a, &wr, &bad), "a request of the daemon's");
	holds("daemon(3)", wait_for(pair.a_cq, &wc, 20) && wc.status == IBV_WC_SUCCESS,
	      "its engine goes on");
	holds(HMM, away[0] == 0x5a && !memcmp(away, away + 1, AWAY - 1), "and it has every byte");
	fflush(stdout);
	char verdict = wrong;
	_exit(write(told, &verdict, 1) != 1);
}

static void as_daemon(void)
{
	int told[2];
	char verdict = 1;
	if (pipe(told))
		fail("a pipe");
	if (!fork())
		become_daemon(told[1]);
	close(told[1]);
	holds("daemon(3)", read(told[0], &verdict, 1) == 1 && !verdict, "all was well there");
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 1;
	far = count > 2 && !strcmp(arguments[2], "far");
	to_gpu = (ssize_t (*)(unsigned int, void *, size_t))dlsym(RTLD_DEFAULT,
								  "peerdma_migrate_to_gpu");
	to_host = (ssize_t (*)(void *, size_t))dlsym(RTLD_DEFAULT, "peerdma_migrate_to_host");
	if (!to_gpu || !to_host)
		fail("the functions of include/peerdma.h");
	if (count > 2 && !strcmp(arguments[2], "daemon")) {
		as_daemon();
		return finish();
	}
	rnr_retries = 7; /* for ever: the peer may be told to wait for a change of mappings */
	open_first_device();
	char *area = mmap(NULL, SIZE + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	paged = mmap(area + PAGE, SIZE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	steady = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ordering = getenv("RELAXED") ? IBV_ACCESS_RELAXED_ORDERING : 0;
	paged_mr = ibv_reg_mr(pd, paged, SIZE, EVERYTHING | ODP | ordering);
	steady_mr = ibv_reg_mr(pd, steady, SIZE, EVERYTHING);
	if (!paged_mr || !steady_mr)
		fail("regions");
	if (count > 2 && !strcmp(arguments[2], "refused")) {
		refused();
		return finish();
	}
	bad_input();
	struct pair pair = new_pair(IBV_QPT_RC);
	/*
	 * The first READ of a connection may be cut in pieces, each with a fault of its own, while
	 * its window grows.
	 */
	request(pair, IBV_WR_RDMA_READ, steady, steady_mr, paged, paged_mr, SIZE);
	succeeds(pair, "the first READ");
	if (count > 2 && !strcmp(arguments[2], "small-bar")) {
		small_bar(pair);
		return finish();
	}
	for (int round = 0; round < rounds; round++)
		for (unsigned gpu = 0; gpu < 2; gpu++)
			each_operation(pair, gpu, 10 * round);
	mixed(pair);
	own_use(pair);
	under_traffic(pair, rounds);
	end_pair(pair);
	ibv_dereg_mr(paged_mr);
	ibv_dereg_mr(steady_mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return finish();
}
