/*
 * How long registrations of each kind take, and how fast RDMA WRITE and READ are over each, in one
 * process. `cargo xtask bench` runs it; one figure a line.
 *
 *   memory_speed register NODE           register KIND BYTES MICROSECONDS
 *   memory_speed steady NODE ROUNDS      first|steady KIND GB/S, the kinds of a round beside each
 * other memory_speed fault                   fault|present MICROSECONDS, of a WRITE of one page
 *   memory_speed private ROUNDS          private GB/S, of a READ of memory that is in a GPU; on a
 * platform where the device does not reach that, of the fallback
 */
#include "gpu.h"

#include "../../crates/verbs/include/peerdma.h"

#include <unistd.h>

#pragma weak peerdma_migrate_to_gpu

enum { PAGE = 4096, MEBIBYTE = 1 << 20, DEPTH = 8, ODP = IBV_ACCESS_ON_DEMAND };
enum { STEADY = 64 * MEBIBYTE, PRIVATE = 32 * MEBIBYTE, PAGES = 2000 };

static int by_figure(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *figures, int count)
{
	qsort(figures, count, sizeof(*figures), by_figure);
	return figures[count / 2];
}

static char *fresh(size_t length)
{
	char *memory =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("memory");
	return memory;
}

/* A GPU's buffer: by its descriptor, and mapped unless `mapped` is NULL. */
static int gpu_buffer(const char *node, size_t length, char **mapped)
{
	int gpu = open_gpu(node);
	uint32_t handle = new_buffer(gpu, length);
	struct prime_handle prime = { .handle = handle, .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
		fail("export a GPU's buffer");
	if (mapped)
		*mapped = (char *)map_buffer(gpu, handle, length);
	close(gpu);
	return prime.fd;
}

enum kind { PINNED, DMABUF, DMABUF_PINNED, ON_DEMAND, IMPLICIT, DEVICE_PRIVATE, PEER, KINDS };
static const char *const names[] = { "pinned",	     "dmabuf",	       "dmabuf-pinned", "odp",
				     "implicit-odp", "device-private", "peer-direct" };

/* Memory of a kind, ready to be registered; MAP_FAILED where this user has no right to it. */
struct memory {
	enum kind kind;
	size_t length;
	char *at;
	int fd;
};

static struct memory prepare(enum kind kind, size_t length, const char *node)
{
	struct memory memory = { kind, length, NULL, -1 };
	switch (kind) {
	case DMABUF:
	case DMABUF_PINNED:
		memory.fd = gpu_buffer(node, length, NULL);
		break;
	case PEER:
		memory.fd = gpu_buffer(node, length, &memory.at);
		break;
	case IMPLICIT:
		break;
	case DEVICE_PRIVATE:
		memory.at = fresh(length);
		memset(memory.at, 1, length);
		if (!peerdma_migrate_to_gpu ||
		    peerdma_migrate_to_gpu(0, memory.at, length) != (ssize_t)(length / PAGE)) {
			munmap(memory.at, length);
			memory.at = MAP_FAILED;
		}
		break;
	default:
		memory.at = fresh(length);
		memset(memory.at, 1, length);
	}
	return memory;
}

static struct ibv_mr *reg(struct memory memory)
{
	struct ibv_mr *mr;
	switch (memory.kind) {
	case DMABUF:
	case DMABUF_PINNED:
		setenv("PEERDMA_DMABUF", memory.kind == DMABUF ? "dynamic" : "pinned", 1);
		mr = ibv_reg_dmabuf_mr(pd, 0, memory.length, 0, memory.fd, EVERYTHING);
		break;
	case IMPLICIT:
		mr = ibv_reg_mr(pd, NULL, SIZE_MAX, EVERYTHING | ODP);
		break;
	case ON_DEMAND:
	case DEVICE_PRIVATE:
		mr = ibv_reg_mr(pd, memory.at, memory.length, EVERYTHING | ODP);
		break;
	default:
		mr = ibv_reg_mr(pd, memory.at, memory.length, EVERYTHING);
	}
	if (!mr)
		fail(names[memory.kind]);
	return mr;
}

static void forget(struct memory memory)
{
	if (memory.at)
		munmap(memory.at, memory.length);
	if (memory.fd >= 0)
		close(memory.fd);
}

static void registrations(const char *node)
{
	static const struct {
		size_t length;
		int times;
	} sizes[] = { { PAGE, 300 }, { MEBIBYTE, 100 }, { 1024 * (size_t)MEBIBYTE, 5 } };
	double took[300];
	for (int size = 0; size < 3; size++)
		for (enum kind kind = 0; kind < KINDS; kind++) {
			struct memory memory = prepare(kind, sizes[size].length, node);
			if (memory.at == MAP_FAILED)
				continue;
			for (int turn = 0; turn < sizes[size].times; turn++) {
				double start = seconds();
				struct ibv_mr *mr = reg(memory);
				took[turn] = (seconds() - start) * 1e6;
				ibv_dereg_mr(mr);
			}
			printf("register %s %zu %.2f\n", names[kind], sizes[size].length,
			       median(took, sizes[size].times));
			forget(memory);
		}
}

/* As new_pair() makes it, with the largest path MTU and patience. */
static struct pair fast_pair(void)
{
	ack_timeout = 18, retries = 7, rnr_retries = 7;
	struct pair pair = { .a_cq = new_cq(64), .b_cq = new_cq(64) };
	pair.a = new_qp(pd, pair.a_cq, IBV_QPT_RC);
	pair.b = new_qp(pd, pair.b_cq, IBV_QPT_RC);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = i ? pair.b : pair.a, *peer = i ? pair.a : pair.b;
		struct ibv_qp_attr attr;
		must_change(qp, IBV_QPS_INIT, peer->qp_num);
		int mask = attributes(IBV_QPT_RC, IBV_QPS_RTR, peer->qp_num, &attr);
		attr.path_mtu = IBV_MTU_4096;
		errno = ibv_modify_qp(qp, &attr, mask);
		if (errno)
			fail("path MTU 4096");
		must_change(qp, IBV_QPS_RTS, peer->qp_num);
	}
	return pair;
}

/* Moves `length` bytes in requests of `chunk`; gives the seconds that took. */
static double move(struct pair pair, enum ibv_wr_opcode opcode, struct ibv_mr *local, uint64_t at,
		   struct ibv_mr *remote, uint64_t to, size_t length, size_t chunk)
{
	double start = seconds();
	size_t posted = 0, done = 0;
	while (done < length) {
		while (posted < length && posted - done < DEPTH * chunk) {
			struct ibv_sge sge = { at + posted, (uint32_t)chunk, local->lkey };
			struct ibv_send_wr wr = { .sg_list = &sge,
						  .num_sge = 1,
						  .opcode = opcode,
						  .wr.rdma = { to + posted, remote->rkey } };
			post(pair.a, &wr);
			posted += chunk;
		}
		struct ibv_wc wc;
		if (!wait_for(pair.a_cq, &wc, 30) || wc.status != IBV_WC_SUCCESS)
			fail("a request does not succeed");
		done += chunk;
	}
	return seconds() - start;
}

static void steady(const char *node, int rounds)
{
	static const enum kind kinds[] = { PINNED, DMABUF, DMABUF_PINNED, ON_DEMAND };
	enum { COUNT = sizeof(kinds) / sizeof(*kinds) };
	struct pair pair = fast_pair();
	struct memory source = prepare(PINNED, STEADY, node), targets[COUNT];
	struct ibv_mr *from = reg(source), *to[COUNT];
	for (int i = 0; i < COUNT; i++) {
		targets[i] = prepare(kinds[i], STEADY, node);
		to[i] = reg(targets[i]);
		move(pair, IBV_WR_RDMA_WRITE, from, (uintptr_t)source.at, to[i],
		     (uintptr_t)targets[i].at, STEADY, MEBIBYTE);
	}
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < COUNT; i++) {
			double took = 0;
			for (int turn = 0; turn < 4; turn++)
				took += move(pair, IBV_WR_RDMA_WRITE, from, (uintptr_t)source.at,
					     to[i], (uintptr_t)targets[i].at, STEADY, MEBIBYTE);
			printf("steady %s %.4f\n", names[kinds[i]], 4 * STEADY / took / 1e9);
		}
		for (int on_demand = 0; on_demand < 2; on_demand++) {
			struct memory untouched = { on_demand ? ON_DEMAND : PINNED, STEADY,
						    fresh(STEADY), -1 };
			struct ibv_mr *mr = reg(untouched);
			double took = move(pair, IBV_WR_RDMA_WRITE, from, (uintptr_t)source.at, mr,
					   (uintptr_t)untouched.at, STEADY, MEBIBYTE);
			printf("first %s %.4f\n", names[untouched.kind], STEADY / took / 1e9);
			ibv_dereg_mr(mr);
			forget(untouched);
		}
	}
}

static void faults(void)
{
	static double took[2][PAGES];
	struct pair pair = fast_pair();
	struct memory source = prepare(PINNED, PAGE, NULL);
	/* Pages far apart: a fault may bring in those that follow. */
	size_t apart = 64 * PAGE;
	struct memory untouched = { ON_DEMAND, PAGES * apart, fresh(PAGES * apart), -1 };
	struct ibv_mr *from = reg(source), *to = reg(untouched);
	for (int page = 0; page < PAGES; page++)
		for (int turn = 0; turn < 2; turn++)
			took[turn][page] =
				move(pair, IBV_WR_RDMA_WRITE, from, (uintptr_t)source.at, to,
				     (uintptr_t)untouched.at + page * apart, PAGE, PAGE) *
				1e6;
	printf("fault %.2f\npresent %.2f\n", median(took[0], PAGES), median(took[1], PAGES));
}

static void private(int rounds)
{
	struct pair pair = fast_pair();
	struct memory sink = prepare(PINNED, PRIVATE, NULL);
	struct ibv_mr *into = reg(sink);
	for (int round = 0; round < rounds; round++) {
		struct memory in_gpu = prepare(DEVICE_PRIVATE, PRIVATE, NULL);
		if (in_gpu.at == MAP_FAILED)
			return;
		struct ibv_mr *mr = reg(in_gpu);
		double took = move(pair, IBV_WR_RDMA_READ, into, (uintptr_t)sink.at, mr,
				   (uintptr_t)in_gpu.at, PRIVATE, MEBIBYTE);
		printf("private %.4f\n", PRIVATE / took / 1e9);
		ibv_dereg_mr(mr);
		forget(in_gpu);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	open_first_device();
	if (!strcmp(what, "register") && argc == 3)
		registrations(argv[2]);
	else if (!strcmp(what, "steady") && argc == 4)
		steady(argv[2], atoi(argv[3]));
	else if (!strcmp(what, "fault"))
		faults();
	else if (!strcmp(what, "private") && argc == 3)
		private(atoi(argv[2]));
	else
		fail("memory_speed register|steady|fault|private");
	return 0;
}
