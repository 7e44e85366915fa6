/*
 * A neighbour's GPU memory of which its device keeps translations (ATS): its counters are the same
 * whether requests go directly or by packets. GPU names the node, PEERDMA the program.
 *
 *   translated units direct|packets
 */
#include "gpu.h"
#include "neighbours.h"

#define SOURCE "PCIe 6.0 10.1"

enum { UNIT = 64 << 10, UNITS = 4, SIZE = UNITS * UNIT, TIMES = 10 };

enum counter { HITS, MISSES, INVALIDATIONS, COUNTERS };
static const char *const names[COUNTERS] = { "ats_hits", "ats_misses", "ats_invalidations" };

static int directly;
static char *local;
static struct ibv_mr *local_mr;
static struct end peer;

/* Serves what it has counted until the other end wants no more. */
static void target(void)
{
	int buffer = export_buffer(getenv("GPU"), SIZE);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, SIZE, 0, buffer,
					      EVERYTHING | IBV_ACCESS_RELAXED_ORDERING);
	if (!mr)
		fail("register a buffer");
	struct end own = { .rkey = mr->rkey };
	meet(pd, EVERYTHING, NULL);
	tell(&own, sizeof(own));
	while (hear_number())
		for (int i = 0; i < COUNTERS; i++)
			tell_number(device_counter(names[i]));
}

static void request(enum ibv_wr_opcode opcode, unsigned at, unsigned offset, unsigned length)
{
	struct ibv_sge sge = { (uintptr_t)local + at, length, local_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { offset, peer.rkey } };
	struct ibv_wc wc;
	post(qp, &wr);
	if (!wait_for(cq, &wc, PATIENCE) || wc.status != IBV_WC_SUCCESS)
		fail("a request");
}

/*
 * WRITEs and READs of the same bytes, and what came of them: how many went by packets at most, and
 * what the target's device has counted.
 */
static void rounds(const char *what, int times, unsigned offset, unsigned length,
		   unsigned misses, unsigned invalidations, unsigned by_packets)
{
	static unsigned before[COUNTERS];
	static unsigned char seed;
	unsigned long direct = device_counter("direct_requests");
	unsigned right = 0, now[COUNTERS];
	unsigned units = (offset + length + UNIT - 1) / UNIT - offset / UNIT;
	for (int i = 0; i < times; i++) {
		memset(local, ++seed, length);
		request(IBV_WR_RDMA_WRITE, 0, offset, length);
		request(IBV_WR_RDMA_READ, SIZE, offset, length);
		right += !memcmp(local, local + SIZE, length);
	}
	direct = device_counter("direct_requests") - direct;
	tell_number(1);
	for (int i = 0; i < COUNTERS; i++)
		now[i] = hear_number();
	equal("IBA 9.4", times, right, "WRITEs and READs %s that are right", what);
	unsigned most = 2 * times - !!by_packets, least = 2 * times - by_packets;
	holds("design D7", directly ? direct >= least && direct <= most : !direct,
	      "those whose translations are known went directly");
	equal(SOURCE, misses, now[MISSES] - before[MISSES], "translations asked for %s", what);
	holds(SOURCE, now[HITS] - before[HITS] >= 2 * times * units - misses,
	      "the others were found");
	equal(SOURCE, invalidations, now[INVALIDATIONS] - before[INVALIDATIONS],
	      "translations taken back %s", what);
	memcpy(before, now, sizeof(now));
}

static void initiator(void)
{
	int status;
	pid_t child = start("target");
	local = memory_of(2 * SIZE);
	local_mr = registered(local, 2 * SIZE);
	meet(pd, EVERYTHING, NULL);
	hear(&peer, sizeof(peer));
	/* The first request may have the owner map the buffer, which is shown anew then. */
	rounds("of two units", 1, 100, UNIT, 2, 0, 2);
	rounds("again", TIMES, 100, UNIT, 0, 0, 0);
	rounds("of one more", TIMES, UNIT, 2 * UNIT, 1, 0, 1);
	rounds("of a part", TIMES, 2 * UNIT + 7, 5, 0, 0, 0);
	pid_t mover = start_on_gpu("move", "host");
	if (waitpid(mover, &status, 0) != mover || status)
		fail("move a buffer");
	rounds("after a move", TIMES, 100, UNIT, 2, 3, 2);
	rounds("of another", TIMES, 3 * UNIT, UNIT, 1, 0, 1);
	tell_number(0);
	part();
	ended_well(child);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int is_other = !strcmp(argv[1], "as");
	directly = !strcmp(argv[2], "direct");
	open_device();
	if (is_other) {
		target();
		return 0;
	}
	initiator();
	return finish();
}
