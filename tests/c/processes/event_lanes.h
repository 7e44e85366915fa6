/*
 * Two processes whose threads wait for events, each in a lane of its own: a queue pair to the other
 * process, and a completion queue and a channel for each direction. The ACK timeout is longer than
 * any wait may be, so that a wake-up that is lost is not made good by a packet that comes again.
 */
#ifndef EVENT_LANES_H
#define EVENT_LANES_H

#include "rows.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

/* Local ACK timeout codes: 4.3 seconds, and 67 ms where requests shall run out of retries. */
enum { LONG_TIMEOUT = 20, SHORT_TIMEOUT = 14 };
/* What no wait may take, in seconds, on a machine that may be busy; and what no story may. */
enum { LATE = 2, HANGS = 100 };
enum { LANES = 8, LENGTH = 8, TAKES = 1, SENDS = 2 };

/* What all processes see. */
static volatile struct {
	uint32_t numbers[LANES][2];
	double longest[2];
	int wanted, taken, begun, is_complete;
} *shared;

/* 0 in the process that judges. */
static int me;
static uint64_t first_seed = 1;
/* What a thread was at that waits too long. */
static const char *volatile story = "begin";

struct lane {
	struct ibv_comp_channel *of_sent, *of_received;
	struct ibv_cq *sent, *received;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	uint64_t seed;
	int number, rounds;
};

static inline void hangs(int signal)
{
	printf("NOT %s in process %d: hangs\n", story, me);
	_exit(signal);
}

/* A story and its seed, as the arguments name them, before there is a second process. */
static inline void read_arguments(int argc, char **argv)
{
	if (argc > 1)
		story = argv[1];
	if (argc > 2)
		first_seed = strtoul(argv[2], NULL, 0);
	printf("%s, seed %lu\n", story, first_seed);
	fflush(stdout);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* For every process, before it opens the device. */
static inline void begin_as(int number)
{
	struct sigaction action = { .sa_handler = hangs, .sa_flags = SA_RESTART };
	me = number;
	sigaction(SIGALRM, &action, NULL);
	alarm(HANGS);
	rnr_retries = 7;
	open_first_device();
}

/* Asleep or at work. */
static inline void pause_for(unsigned us, int works)
{
	struct timespec time = { 0, us * 1000l };
	if (!works && us)
		nanosleep(&time, NULL);
	for (double end = seconds() + us * 1e-6; works && seconds() < end;)
		;
}

/* Around the times for which the engine's thread leaves the rings to others. */
static inline void some_pause(uint64_t *seed)
{
	static const unsigned pauses[] = { 0, 50, 150, 400, 1200, 5000 };
	unsigned us = pauses[next_random(seed) % 6];
	pause_for(us, next_random(seed) & 1);
}

static inline struct ibv_comp_channel *new_channel(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	if (!channel)
		fail("channel");
	return channel;
}

static inline struct ibv_cq *armed_cq(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	if (!cq || ibv_req_notify_cq(cq, 0))
		fail("armed completion queue");
	return cq;
}

static inline void receive_again(struct lane *lane)
{
	receive(lane->qp, TAKES, lane->memory, LENGTH, lane->mr->lkey);
}

/* Connects a lane to the other process's of the same number, which that one opens meanwhile. */
static inline void open_lane(struct lane *lane, int number, struct ibv_comp_channel *of_received)
{
	int side = me != 0;
	lane->number = number;
	lane->seed = first_seed * 1000 + number * 2 + side;
	lane->of_sent = new_channel();
	lane->of_received = of_received ? of_received : new_channel();
	lane->sent = armed_cq(lane->of_sent);
	lane->received = armed_cq(lane->of_received);
	lane->memory = aligned_alloc(4096, 4096);
	lane->mr = ibv_reg_mr(pd, lane->memory, 4096, EVERYTHING);
	struct ibv_qp_init_attr init = { .send_cq = lane->sent,
					 .recv_cq = lane->received,
					 .qp_type = IBV_QPT_RC,
					 .cap = { 4, 4, 1, 1, LENGTH } };
	lane->qp = ibv_create_qp(pd, &init);
	if (!lane->mr || !lane->qp)
		fail("memory and queue pair");
	must_change(lane->qp, IBV_QPS_INIT, 0);
	receive_again(lane);
	shared->numbers[number][side] = lane->qp->qp_num;
	while (!shared->numbers[number][1 - side])
		sched_yield();
	must_change(lane->qp, IBV_QPS_RTR, shared->numbers[number][1 - side]);
	must_change(lane->qp, IBV_QPS_RTS, shared->numbers[number][1 - side]);
}

static inline void send_one(struct lane *lane)
{
	struct ibv_sge sge = { (uintptr_t)lane->memory + 64, LENGTH, lane->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = SENDS,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
	post(lane->qp, &wr);
}

static inline void note_wait(double took)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int side = me != 0;
	pthread_mutex_lock(&lock);
	if (took > shared->longest[side])
		shared->longest[side] = took;
	pthread_mutex_unlock(&lock);
}

/* Waits for an event of a completion queue, and arms it again. */
static inline void take_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *unused;
	if (ibv_get_cq_event(channel, &cq, &unused))
		fail("an event");
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		fail("arm");
}

/* Waits by events for the only completion that can come; a program may look for it before. */
static inline enum ibv_wc_status status_of_next(struct ibv_comp_channel *channel,
						struct ibv_cq *cq, int polls)
{
	struct ibv_wc wc = { 0 };
	double begun = seconds();
	int n = polls ? ibv_poll_cq(cq, 1, &wc) : 0;
	for (; n == 0; n = ibv_poll_cq(cq, 1, &wc))
		take_event(channel);
	note_wait(seconds() - begun);
	if (n < 0)
		fail("poll");
	return wc.status;
}

static inline void await(struct ibv_comp_channel *channel, struct ibv_cq *cq, int polls)
{
	enum ibv_wc_status status = status_of_next(channel, cq, polls);
	if (status) {
		printf("NOT %s: %s\n", story, ibv_wc_status_str(status));
		exit(1);
	}
}

static inline void await_message(struct lane *lane)
{
	await(lane->of_received, lane->received, next_random(&lane->seed) & 1);
	receive_again(lane);
}

static inline void await_sent(struct lane *lane)
{
	await(lane->of_sent, lane->sent, next_random(&lane->seed) & 1);
}

/* To and fro, with pauses; the process that judges begins. */
static inline void *exchange(void *argument)
{
	struct lane *lane = argument;
	for (int round = 0; round < lane->rounds; round++) {
		int early = next_random(&lane->seed) & 1;
		if (me == 0) {
			some_pause(&lane->seed);
			send_one(lane);
			if (early)
				await_sent(lane);
			await_message(lane);
			if (!early)
				await_sent(lane);
		} else {
			await_message(lane);
			some_pause(&lane->seed);
			send_one(lane);
			await_sent(lane);
		}
	}
	return NULL;
}

static inline pthread_t in_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, body, argument))
		fail("a thread");
	return thread;
}

/* No wait of either process was too long. */
static inline void waits_were_short(void)
{
	for (int side = 0; side < 2; side++) {
		printf("process %d waited for %.1f ms at most\n", side,
		       shared->longest[side] * 1e3);
		holds("man ibv_get_cq_event", shared->longest[side] < LATE,
		      "whoever waits is woken");
	}
}

#endif
