/*
 * A limit on the size of files (RLIMIT_FSIZE): the engine's own files meet it, and the signal for
 * it is not the program's.
 */
#include "rows.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char *source = "setrlimit(2)";
static unsigned char from[4096], to[4096];

static void set_limit(rlim_t bytes)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_FSIZE, &limit))
		fail("getrlimit");
	limit.rlim_cur = bytes;
	if (setrlimit(RLIMIT_FSIZE, &limit))
		fail("setrlimit");
}

/* The program's own SIGXFSZ waits all the while and is the only one. */
static int waits(void)
{
	sigset_t pending;
	return !sigpending(&pending) && sigismember(&pending, SIGXFSZ) == 1;
}

int main(void)
{
	struct rlimit whole;
	getrlimit(RLIMIT_FSIZE, &whole);
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !list[0])
		fail("there is a device");
	set_limit(4096);
	row(source, EFBIG, POINTER(ibv_close_device, ibv_open_device(list[0])),
	    "open with little room");
	holds(source, !waits(), "no signal is left");
	set_limit(whole.rlim_cur);

	open_first_device();
	struct pair pair = new_pair(IBV_QPT_RC);
	struct ibv_mr *source_mr = ibv_reg_mr(pd, from, sizeof(from), LOCAL);
	struct ibv_mr *target_mr = ibv_reg_mr(pd, to, sizeof(to), EVERYTHING);
	if (!source_mr || !target_mr)
		fail("memory");
	set_limit(4096);
	memset(from, 7, sizeof(from));
	struct ibv_sge sge = { (uintptr_t)from, sizeof(from), source_mr->lkey };
	int written = 0;
	for (int i = 0; i < 100; i++) {
		struct ibv_send_wr wr = { .wr_id = i,
					  .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE,
					  .wr.rdma = { (uintptr_t)to, target_mr->rkey } };
		post(pair.a, &wr);
		struct ibv_wc wc = { 0 };
		written += wait_for(pair.a_cq, &wc, 10) && wc.status == IBV_WC_SUCCESS;
	}
	equal(source, 100, written, "writes while the trace has no room");
	holds(source, !memcmp(from, to, sizeof(from)), "the data");

	sigset_t mine;
	sigemptyset(&mine);
	sigaddset(&mine, SIGXFSZ);
	sigprocmask(SIG_BLOCK, &mine, NULL);
	raise(SIGXFSZ);
	set_limit(0);
	end_pair(pair);
	ibv_dereg_mr(source_mr);
	ibv_dereg_mr(target_mr);
	ibv_dealloc_pd(pd);
	int closed = ibv_close_device(context);
	/* The standard output may be a file. */
	set_limit(whole.rlim_cur);
	row(source, 0, closed, "the device closes, with no room for its counters");
	holds(source, waits(), "the program's own signal waits");
	return finish();
}
