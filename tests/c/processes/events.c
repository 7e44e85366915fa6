/*
 * Two processes that wait for each other's messages by events, by rings in shared memory. The one
 * that judges begins; the other answers.
 *
 *   events pauses [SEED]    a thread each, with pauses of many lengths before each message
 *   events threads [SEED]   several threads each, which all wait
 *   events beside [SEED]    beside a thread that polls another queue all the time
 *   events epoll [SEED]     by epoll(7) of a channel that does not block, beside one that waits
 *   events computes [SEED]  the other takes a message and computes; the request is complete all the
 *                           same
 */
#include "event_lanes.h"

#include <fcntl.h>
#include <sys/epoll.h>

enum { PAUSES = 2000, THREADS = 4, EACH = 400, TRIES = 8, ANSWERED = 200 };

/* What a completion takes at most whose acknowledge waited for an answer in vain, in seconds, where
 * the machine was not busy just then. */
#define SOON 0.005

static struct lane lanes[LANES];

static void open_lanes(int count, int rounds)
{
	for (int i = 0; i < count; i++) {
		open_lane(&lanes[i], i, NULL);
		lanes[i].rounds = rounds;
	}
}

static void exchange_in(int count, int rounds)
{
	pthread_t threads[LANES];
	open_lanes(count, rounds);
	for (int i = 0; i < count; i++)
		threads[i] = in_thread(exchange, &lanes[i]);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

/* The second lane of the process that judges is polled. */
static void beside(void)
{
	struct ibv_wc wc;
	open_lanes(2, EACH);
	if (me == 1)
		lanes[1].rounds = 1 << 30;
	pthread_t waits = in_thread(exchange, &lanes[0]);
	if (me == 1) {
		in_thread(exchange, &lanes[1]);
		pthread_join(waits, NULL);
		while (!shared->is_complete)
			sched_yield();
		return;
	}
	while (pthread_tryjoin_np(waits, NULL)) {
		send_one(&lanes[1]);
		if (!wait_for(lanes[1].received, &wc, LATE) || wc.status)
			fail("a message to who polls");
		receive_again(&lanes[1]);
		if (!wait_for(lanes[1].sent, &wc, LATE) || wc.status)
			fail("a completion of who polls");
	}
	shared->is_complete = 1;
}

/* Waits for the next message of a lane by the descriptor of its channel. */
static void await_by(int epoll, struct lane *lane)
{
	struct ibv_wc wc = { 0 };
	struct ibv_cq *cq;
	void *unused;
	double begun = seconds();
	while (ibv_poll_cq(lane->received, 1, &wc) == 0) {
		struct epoll_event event;
		if (epoll_wait(epoll, &event, 1, HANGS * 1000) != 1)
			fail("the descriptor of a channel");
		if (ibv_get_cq_event(lane->of_received, &cq, &unused))
			fail("an event of a channel that does not block");
		ibv_ack_cq_events(cq, 1);
		ibv_req_notify_cq(cq, 0);
	}
	note_wait(seconds() - begun);
	receive_again(lane);
}

static void by_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct ibv_cq *cq;
	void *unused;
	open_lanes(2, EACH);
	pthread_t waits = in_thread(exchange, &lanes[1]);
	if (me == 1) {
		exchange(&lanes[0]);
		pthread_join(waits, NULL);
		return;
	}
	int fd = lanes[0].of_received->fd, epoll = epoll_create1(0);
	if (fcntl(fd, F_SETFL, O_NONBLOCK) || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		fail("a channel that does not block");
	double begun = seconds();
	errno = 0;
	row("man ibv_get_cq_event", EAGAIN,
	    ibv_get_cq_event(lanes[0].of_received, &cq, &unused) ? errno : 0,
	    "a channel that does not block has no event");
	holds("man ibv_get_cq_event", seconds() - begun < LATE, "and says so at once");
	for (int round = 0; round < EACH; round++) {
		some_pause(&lanes[0].seed);
		send_one(&lanes[0]);
		await_by(epoll, &lanes[0]);
		await_sent(&lanes[0]);
	}
	pthread_join(waits, NULL);
}

/* The other process computes until the request is complete, or has been given up. */
static void computes(void)
{
	double least = HANGS;
	open_lanes(1, 0);
	for (int try = 1; try <= TRIES; try++) {
		/* Each answer makes it likelier that the next is waited for. */
		for (int round = 0; round < ANSWERED; round++) {
			if (me == 0)
				send_one(&lanes[0]);
			await(lanes[0].of_received, lanes[0].received, 0);
			receive_again(&lanes[0]);
			if (me == 1)
				send_one(&lanes[0]);
			await(lanes[0].of_sent, lanes[0].sent, 0);
		}
		if (me == 1) {
			await(lanes[0].of_received, lanes[0].received, 0);
			for (double end = seconds() + 2 * LATE; seconds() < end;)
				if (shared->taken == try)
					break;
			receive_again(&lanes[0]);
			continue;
		}
		double begun = seconds();
		send_one(&lanes[0]);
		await(lanes[0].of_sent, lanes[0].sent, 0);
		least = seconds() - begun < least ? seconds() - begun : least;
		shared->taken = try;
	}
	if (me == 0) {
		printf("complete in %.2f ms at least\n", least * 1e3);
		holds("IBA 9.7.5", least < SOON, "who computes is not waited for");
	}
}

static void play(void)
{
	begin_as(me);
	unsigned long before = device_counter("ring_pkts");
	if (!strcmp(story, "pauses"))
		exchange_in(1, PAUSES);
	else if (!strcmp(story, "threads"))
		exchange_in(THREADS, EACH);
	else if (!strcmp(story, "beside"))
		beside();
	else if (!strcmp(story, "epoll"))
		by_epoll();
	else if (!strcmp(story, "computes"))
		computes();
	else
		fail("a story");
	holds("D7", device_counter("ring_pkts") - before > EACH, "messages go by rings");
}

int main(int argc, char **argv)
{
	int status;
	read_arguments(argc, argv);
	ack_timeout = LONG_TIMEOUT;
	pid_t pid = fork();
	me = pid == 0;
	play();
	if (me == 1)
		exit(wrong);
	holds("the other process", waitpid(pid, &status, 0) == pid && !status, "ends well");
	waits_were_short();
	return finish();
}
