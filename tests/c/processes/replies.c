/*
 * Two processes that send each other messages to and fro, so that acknowledges wait for answers,
 * and what becomes of the last: the child takes it and
 *
 *   replies answers   answers it, as all before; answers and acknowledges share calls to the system
 *   replies writes    the same by WRITEs to memory that both spin on, so that the engine's threads
 *                     take what comes; how many calls that takes is for the machine to say
 *   replies computes  does not call the library until the parent's request is complete
 *   replies returns   ends by exit(3), without closing anything
 *   replies leaves    ends by _exit(2)
 *   replies errs      posts an answer that is refused
 */
#include "rows.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { MESSAGES = 300, ROUNDS = 100, LENGTH = 8, LIMIT = 30 };

/* Two would be one for each message and one for each acknowledge. */
#define MOST_CALLS 1.5

/* What both processes see. */
static volatile struct {
	uint32_t numbers[2], keys[2];
	uint64_t places[2];
	int rounds, is_complete;
} *shared;

static struct ibv_cq *sends, *receives;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static int me;

/* The library's calls of it end here. */
static unsigned long calls;

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	static int (*next)(int, struct mmsghdr *, unsigned, int);
	if (!next)
		next = dlsym(RTLD_NEXT, "sendmmsg");
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
	return next(fd, messages, count, flags);
}

static void connect_as(int number)
{
	me = number;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { 4, 4, 1, 1, LENGTH } };
	ack_timeout = 14;
	retries = 7;
	rnr_retries = 7;
	open_first_device();
	init.send_cq = sends = new_cq(16);
	init.recv_cq = receives = new_cq(16);
	memory = aligned_alloc(4096, 4096);
	mr = ibv_reg_mr(pd, memory, 4096, EVERYTHING);
	qp = ibv_create_qp(pd, &init);
	if (!mr || !qp)
		fail("memory and queue pair");
	must_change(qp, IBV_QPS_INIT, 0);
	receive(qp, 1, memory, LENGTH, mr->lkey);
	memset(memory, 0, 4096);
	shared->keys[me] = mr->rkey;
	shared->places[me] = (uintptr_t)memory;
	shared->numbers[me] = qp->qp_num;
	while (!shared->numbers[1 - me])
		;
	must_change(qp, IBV_QPS_RTR, shared->numbers[1 - me]);
	must_change(qp, IBV_QPS_RTS, shared->numbers[1 - me]);
}

static void send_one(uint32_t lkey, unsigned flags)
{
	struct ibv_sge sge = { (uintptr_t)memory + 64, LENGTH, lkey };
	struct ibv_send_wr wr = { .wr_id = 2,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | flags };
	post(qp, &wr);
}

/* The next message is there, and may come again. */
static void take_one(void)
{
	struct ibv_wc wc = { 0 };
	if (!wait_for(receives, &wc, LIMIT) || wc.status != IBV_WC_SUCCESS)
		fail("a message");
	receive(qp, 1, memory, LENGTH, mr->lkey);
}

static void complete_one(void)
{
	struct ibv_wc wc = { 0 };
	if (!wait_for(sends, &wc, LIMIT) || wc.status != IBV_WC_SUCCESS) {
		printf("status %d\n", wc.status);
		fail("a request that was taken is complete");
	}
}

/* To and fro; the parent begins. */
static void exchange(void)
{
	for (int message = 0; message < MESSAGES; message++) {
		if (me == 0)
			send_one(mr->lkey, IBV_SEND_INLINE);
		take_one();
		if (me == 1)
			send_one(mr->lkey, IBV_SEND_INLINE);
		complete_one();
	}
}

/* The next number goes to the peer's memory. */
static void write_one(uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)&number, LENGTH, 0 };
	struct ibv_send_wr wr = { .wr_id = 3,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
				  .wr.rdma = { shared->places[1 - me] + 128,
					       shared->keys[1 - me] } };
	post(qp, &wr);
}

/* The same by WRITEs. */
static void exchange_by_memory(void)
{
	static uint64_t number;
	volatile uint64_t *place = (volatile uint64_t *)(memory + 128);
	for (int message = 0; message < MESSAGES; message++) {
		number++;
		if (me == 0)
			write_one(number);
		for (double end = seconds() + LIMIT; *place != number;)
			if (seconds() > end)
				fail("a WRITE");
		if (me == 1)
			write_one(number);
		complete_one();
	}
}

static int child(const char *how)
{
	connect_as(1);
	int is_by_memory = !strcmp(how, "writes");
	if (!strcmp(how, "answers") || is_by_memory) {
		for (int round = 0; round < ROUNDS; round++) {
			while (shared->rounds == round && !shared->is_complete)
				;
			if (shared->is_complete)
				return 0;
			is_by_memory ? exchange_by_memory() : exchange();
		}
		return 0;
	}
	exchange();
	take_one();
	if (!strcmp(how, "leaves"))
		_exit(0);
	if (!strcmp(how, "errs"))
		send_one(mr->lkey + 1, 0);
	if (!strcmp(how, "computes") || !strcmp(how, "errs"))
		while (!shared->is_complete)
			;
	/* As a program does that leaves all of it to the system. */
	exit(0);
}

/* In one of the rounds, on a machine that may be busy. */
static double fewest_calls(void (*exchange_so)(void))
{
	double fewest = 1e9;
	while (shared->rounds < ROUNDS && fewest > MOST_CALLS) {
		unsigned long before = calls;
		shared->rounds++;
		exchange_so();
		double each = (double)(calls - before) / MESSAGES;
		fewest = each < fewest ? each : fewest;
	}
	shared->is_complete = 1;
	printf("%.2f calls a message\n", fewest);
	return fewest;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "answers";
	int status;
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();
	if (pid == 0)
		return child(how);
	connect_as(0);
	if (!strcmp(how, "answers")) {
		holds("IBA 9.7.5", fewest_calls(exchange) <= MOST_CALLS,
		      "an answer and its acknowledge leave at once");
	} else if (!strcmp(how, "writes")) {
		fewest_calls(exchange_by_memory);
	} else {
		exchange();
		send_one(mr->lkey, IBV_SEND_INLINE);
		complete_one();
		shared->is_complete = 1;
		holds("IBA 9.7.5", 1, "the last message is acknowledged");
	}
	holds("the child", waitpid(pid, &status, 0) == pid && !status, "ends well");
	return finish();
}
