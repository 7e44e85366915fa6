/*
 * GPU memory that another process moves while RDMA runs on it. One process exports, another (or the
 * same) registers the descriptor and writes, reads and adds through it without end; it compares
 * every byte with what it wrote.
 *
 *   moving_gpu alone GPU BYTES        exports and uses
 *   moving_gpu export GPU BYTES NAME  exports, and hands the descriptor out at the socket NAME
 *   moving_gpu import BYTES NAME      uses what NAME hands out
 *   moving_gpu map GPU BYTES          exports and maps it until SIGUSR1, then only has it
 *   moving_gpu remap GPU BYTES        the same, with a mapping that moves
 *   moving_gpu inherit GPU BYTES      the same, with a mapping that only a child has
 *   moving_gpu bracket GPU BYTES      exports and keeps a bracket of CPU access open until SIGUSR1
 *
 * Prints `exported`, `ready`, `rounds N` from time to time, and `ends STATUS` with the first
 * completion that is an error. With RELAXED in the environment the region allows relaxed ordering;
 * with CHILD it has a child in a session of its own, which outlives it for a while and prints
 * `child PID`. SIGUSR1 asks for the last round and a good end.
 */
#include "gpu.h"
#include "hand_over.h"

#include <linux/dma-buf.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNTER = 8 };

static volatile sig_atomic_t asked_to_end;

static void on_signal(int number) { asked_to_end = number; }

static void hand_out(const char *name, int fd)
{
	int listener = hand_over_at(name);
	char byte = 0;
	printf("exported\n");
	for (;;)
		hand_over(listener, fd, &byte, 1);
}

static struct pair pair;

/* One request to its end; an error ends the program. */
static void do_one(struct ibv_send_wr *wr)
{
	struct ibv_wc wc;
	post(pair.a, wr);
	while (ibv_poll_cq(pair.a_cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS) {
		printf("ends %s\n", ibv_wc_status_str(wc.status));
		exit(3);
	}
}

static void transfer(enum ibv_wr_opcode opcode, struct ibv_mr *local, struct ibv_mr *gpu,
		     size_t from, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)local->addr + from, length, local->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .wr.rdma = { from, gpu->rkey }
	};
	do_one(&wr);
}

/*
 * The first word of the buffer counts the rounds by remote atomics; the rest is a pattern of the
 * round.
 */
static void count(struct ibv_mr *result, struct ibv_mr *gpu, uint64_t round)
{
	struct ibv_sge sge = { (uintptr_t)result->addr, 8, result->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				  .wr.atomic = {
					  .remote_addr = 0, .compare_add = 1, .rkey = gpu->rkey } };
	do_one(&wr);
	uint64_t old = *(uint64_t *)result->addr;
	if (old != round) {
		printf("NOT counted: %lu instead of %lu\n", (unsigned long)old,
		       (unsigned long)round);
		exit(1);
	}
}

static void use(int fd, size_t length)
{
	int ordering = getenv("RELAXED") ? IBV_ACCESS_RELAXED_ORDERING : 0;
	open_first_device();
	struct ibv_mr *gpu = ibv_reg_dmabuf_mr(pd, 0, length, 0, fd, EVERYTHING | ordering);
	if (!gpu)
		fail("register the dma-buf");
	close(fd);
	unsigned char *sent = malloc(length), *back = malloc(length);
	struct ibv_mr *sent_mr = ibv_reg_mr(pd, sent, length, LOCAL);
	struct ibv_mr *back_mr = ibv_reg_mr(pd, back, length, LOCAL);
	/* as programs have them: a move is waited for as a receiver that is not ready */
	ack_timeout = 14;
	retries = rnr_retries = 7;
	pair = new_pair(IBV_QPT_RC);
	memset(sent, 0, COUNTER);
	transfer(IBV_WR_RDMA_WRITE, sent_mr, gpu, 0, COUNTER);
	if (getenv("CHILD") && fork() == 0) {
		/* what ends its parent's process group does not end it */
		if (setsid() < 0)
			fail("a session of its own");
		printf("child %d\n", getpid());
		for (int fd = 0; fd < 3; fd++)
			close(fd);
		alarm(60);
		for (;;)
			pause();
	}
	printf("ready\n");
	uint64_t round = 0;
	for (; !asked_to_end; round++) {
		count(back_mr, gpu, round);
		for (size_t i = COUNTER; i < length; i++)
			sent[i] = (unsigned char)(i * 7 + (i >> 8) + round * 31);
		transfer(IBV_WR_RDMA_WRITE, sent_mr, gpu, COUNTER, length - COUNTER);
		memset(back, 0, length);
		transfer(IBV_WR_RDMA_READ, back_mr, gpu, COUNTER, length - COUNTER);
		if (memcmp(sent + COUNTER, back + COUNTER, length - COUNTER)) {
			printf("NOT the bytes that were written, round %lu\n",
			       (unsigned long)round);
			exit(1);
		}
		if (round % 16 == 0)
			printf("rounds %lu\n", (unsigned long)round);
	}
	printf("good end after %lu rounds\n", (unsigned long)round);
}

/* Two ways to map a buffer: neither may show what a move leaves behind. */
static void map(int fd, size_t length)
{
	unsigned char *whole = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	unsigned char *tail = mmap(NULL, length / 2, PROT_READ, MAP_SHARED, fd, length / 2);
	if (whole == MAP_FAILED || tail == MAP_FAILED)
		fail("map it");
	whole[length - 1] = 42;
	if (munmap(whole, length))
		fail("unmap it");
	printf("mapped\n");
	while (!asked_to_end)
		pause();
	printf("%s\n", tail[length / 2 - 1] == 42 ? "seen" : "NOT seen");
	/* in two parts, as an allocator may */
	size_t page = sysconf(_SC_PAGESIZE);
	if (munmap(tail + page, length / 2 - page) || munmap(tail, page))
		fail("unmap its tail");
	printf("unmapped\n");
	for (;;)
		pause();
}

/* A child has its parent's mapping, and keeps the buffer there when its parent has unmapped it. */
static void inherit(int fd, size_t length)
{
	unsigned char *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		fail("map it");
	mapped[length - 1] = 42;
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (!asked_to_end)
			pause();
		_exit(mapped[length - 1]);
	}
	if (child < 0 || munmap(mapped, length))
		fail("leave it to a child");
	printf("mapped\n");
	while (!asked_to_end)
		pause();
	int status;
	kill(child, SIGUSR1);
	if (waitpid(child, &status, 0) != child)
		fail("wait for a child");
	printf("%s\n", WIFEXITED(status) && WEXITSTATUS(status) == 42 ? "seen" : "NOT seen");
	printf("unmapped\n");
	for (;;)
		pause();
}

/* A mapping that moves shows the buffer at its new place, and keeps it there as it did. */
static void remap(int fd, size_t length)
{
	size_t page = sysconf(_SC_PAGESIZE);
	unsigned char *first = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	unsigned char *there = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	first[length - 1] = 42;
	if (mremap(first, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, there) != there)
		fail("move it");
	/* refused, and as it was */
	if (mremap(there, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, there + page) !=
	    MAP_FAILED)
		fail("overlap it");
	if (mremap(there, length, length - page, 0) != there ||
	    mremap(there, length - page, length, 0) != there)
		fail("shrink it and have it grow");
	/* the old place stays as well, and keeps the buffer when the new one has gone again */
	int both = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
	unsigned char *twin = mremap(there, length, length, both, NULL);
	if (twin == MAP_FAILED || twin == there)
		fail("have it in both places");
	printf("%s\n", twin[length - 1] == 42 && there[length - 1] == 42 ? "seen" : "NOT seen");
	if (munmap(twin, length))
		fail("unmap the new place");
	printf("mapped\n");
	while (!asked_to_end)
		pause();
	printf("%s\n", there[length - 1] == 42 ? "seen" : "NOT seen");
	if (munmap(there, length))
		fail("unmap it");
	printf("unmapped\n");
	for (;;)
		pause();
}

static int sync_with(int fd, unsigned long flags)
{
	struct dma_buf_sync sync = { flags };
	return ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) ? errno : 0;
}

static void bracket(int fd, size_t length)
{
	unsigned char *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int both = DMA_BUF_SYNC_RW, other = memfd_create("other", 0);
	if (mapped == MAP_FAILED || sync_with(fd, DMA_BUF_SYNC_START | both))
		fail("open a bracket");
	mapped[length - 1] = 42;
	if (mapped[length - 1] != 42 || sync_with(fd, DMA_BUF_SYNC_END | both) ||
	    munmap(mapped, length))
		fail("close a bracket");
	if (sync_with(fd, DMA_BUF_SYNC_START) != EINVAL || sync_with(fd, 8 | both) != EINVAL)
		fail("be refused wrong flags");
	if (ioctl(fd, DMA_BUF_IOCTL_SYNC, 8) != -1 || errno != EFAULT)
		fail("be refused an address of nothing");
	if (sync_with(other, both) != ENOTTY || sync_with(fd, DMA_BUF_SYNC_END | both))
		fail("ask another file, and end what never began");
	if (sync_with(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ))
		fail("open a bracket");
	printf("mapped\n");
	while (!asked_to_end)
		pause();
	if (sync_with(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ))
		fail("close a bracket");
	printf("unmapped\n");
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGUSR1, on_signal);
	if (argc == 4 && !strcmp(argv[1], "alone")) {
		size_t length = strtoul(argv[3], NULL, 0);
		use(export_buffer(argv[2], length), length);
	} else if (argc == 4 && !strcmp(argv[1], "map")) {
		size_t length = strtoul(argv[3], NULL, 0);
		map(export_buffer(argv[2], length), length);
	} else if (argc == 4 && !strcmp(argv[1], "inherit")) {
		size_t length = strtoul(argv[3], NULL, 0);
		inherit(export_buffer(argv[2], length), length);
	} else if (argc == 4 && !strcmp(argv[1], "remap")) {
		size_t length = strtoul(argv[3], NULL, 0);
		remap(export_buffer(argv[2], length), length);
	} else if (argc == 4 && !strcmp(argv[1], "bracket")) {
		size_t length = strtoul(argv[3], NULL, 0);
		bracket(export_buffer(argv[2], length), length);
	} else if (argc == 5 && !strcmp(argv[1], "export")) {
		hand_out(argv[4], export_buffer(argv[2], strtoul(argv[3], NULL, 0)));
	} else if (argc == 4 && !strcmp(argv[1], "import")) {
		char byte;
		use(fetch(argv[3], &byte, 1), strtoul(argv[2], NULL, 0));
	} else {
		fail("arguments");
	}
	return 0;
}
