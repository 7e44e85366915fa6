/*
 * What befalls a thread that waits for events of messages of another process, by rings in shared
 * memory; the one that judges is the one to which it happens.
 *
 *   events_amid cancelled [SEED]  it is cancelled, and another thread waits
 *   events_amid signals [SEED]    a signal ends the wait, or does not
 *   events_amid handlers [SEED]   a signal's handler computes for long, or jumps out of the wait
 *   events_amid forks [SEED]      its process forks
 *   events_amid killed [SEED]     the other process is killed
 *   events_amid third [SEED]      other processes connect one after the other
 */
#include "event_lanes.h"

#include <setjmp.h>
#include <sys/prctl.h>

enum { CANCELS = 300, SIGNALS = 40, HANDLED = 10, FORKS = 60, ROUNDS = 200, OTHERS = 5 };
enum { MOST_WAIT_US = 1000 };
/* Seconds in which requests run out of retries that begin after 67 ms. */
enum { RUNS_OUT = 20 };

static struct lane lanes[LANES];
static pid_t others[OTHERS];

/* The other process sends a message when one is wanted, and ends when all is done. */
static int send_what_is_wanted(struct lane *lane)
{
	while (shared->wanted == shared->taken)
		if (shared->is_complete)
			return 0;
		else
			sched_yield();
	some_pause(&lane->seed);
	send_one(lane);
	await_sent(lane);
	shared->taken++;
	return 1;
}

static void *await_in_thread(void *argument)
{
	await_message(argument);
	return NULL;
}

/* Takes a message if it can, as a thread that may be cancelled at any time. */
static volatile int took;

static void *take_one(void *argument)
{
	struct lane *lane = argument;
	struct ibv_wc wc;
	while (ibv_poll_cq(lane->received, 1, &wc) == 0)
		take_event(lane->of_received);
	took = 1;
	receive_again(lane);
	return NULL;
}

static void is_cancelled(struct lane *lane)
{
	int cancelled = 0;
	for (int round = 0; round < CANCELS; round++) {
		void *end;
		int early = next_random(&lane->seed) & 1;
		took = 0;
		shared->wanted += early;
		pthread_t thread = in_thread(take_one, lane);
		pause_for(next_random(&lane->seed) % MOST_WAIT_US, 0);
		pthread_cancel(thread);
		pthread_join(thread, &end);
		cancelled += end == PTHREAD_CANCELED;
		shared->wanted += !early;
		if (early && took)
			continue;
		if (next_random(&lane->seed) & 1)
			pthread_join(in_thread(await_in_thread, lane), NULL);
		else
			await(lane->of_received, lane->received, 1), receive_again(lane);
	}
	printf("%d of %d were cancelled\n", cancelled, CANCELS);
	holds("man pthread_cancel", cancelled > CANCELS / 4, "a thread that waits is cancelled");
}

static volatile int handled, returned;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static void handle_by(void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	sigaction(SIGUSR1, &action, NULL);
	returned = handled = 0;
}

/* Interrupts the thread that judges until it has returned: it may not wait yet. */
static void *interrupt(void *argument)
{
	while (!returned) {
		pthread_kill(*(pthread_t *)argument, SIGUSR1);
		pause_for(200, 0);
	}
	return NULL;
}

/* The same so many times, before a message ends the wait. */
static void *interrupt_first(void *argument)
{
	while (handled < SIGNALS) {
		pthread_kill(*(pthread_t *)argument, SIGUSR1);
		pause_for(200, 0);
	}
	shared->wanted++;
	return NULL;
}

static void is_interrupted(struct lane *lane, const char *how)
{
	pthread_t self = pthread_self();
	int ended = 0;
	for (int round = 0; round < SIGNALS; round++) {
		struct ibv_cq *cq;
		void *unused;
		handle_by(handle, 0);
		pthread_t thread = in_thread(interrupt, &self);
		errno = 0;
		ended += ibv_get_cq_event(lane->of_received, &cq, &unused) && errno == EINTR;
		returned = 1;
		pthread_join(thread, NULL);
	}
	equal("man 7 signal", SIGNALS, ended, "waits that a signal ends, %s", how);
	for (int round = 0; round < HANDLED; round++) {
		handle_by(handle, SA_RESTART);
		pthread_t thread = in_thread(interrupt_first, &self);
		await(lane->of_received, lane->received, 0);
		pthread_join(thread, NULL);
		receive_again(lane);
	}
}

static int jumps;
static sigjmp_buf place;

/* Whoever sends a message meanwhile is told that it came. */
static void handle_long(int signal)
{
	handle(signal);
	shared->wanted++;
	if (jumps)
		siglongjmp(place, 1);
	while (shared->taken < shared->wanted)
		;
}

static void *interrupt_once(void *argument)
{
	/* The engine's thread may count on a thread that has waited for so long. */
	pause_for(5000, 0);
	pthread_kill(*(pthread_t *)argument, SIGUSR1);
	return NULL;
}

static void is_handled_long(struct lane *lane)
{
	pthread_t self = pthread_self();
	for (int round = 0; round < HANDLED; round++) {
		exchange(lane);
		jumps = round & 1;
		handle_by(handle_long, SA_RESTART);
		pthread_t thread = in_thread(interrupt_once, &self);
		if (!sigsetjmp(place, 1)) {
			await(lane->of_received, lane->received, 0);
		} else {
			while (shared->taken < shared->wanted)
				;
			await(lane->of_received, lane->received, 1);
		}
		pthread_join(thread, NULL);
		receive_again(lane);
	}
}

static void *exchange_on(void *argument)
{
	exchange(argument);
	returned = 1;
	return NULL;
}

static void forks(void)
{
	int count = 0;
	pthread_t thread = in_thread(exchange_on, &lanes[0]);
	for (; count < FORKS || !returned; count++) {
		fork_us();
		some_pause(&lanes[1].seed);
	}
	pthread_join(thread, NULL);
	printf("%d forks\n", count);
	/* And nothing comes while it forks, until it has. */
	for (int round = 0; round < FORKS; round++) {
		thread = in_thread(await_in_thread, &lanes[1]);
		some_pause(&lanes[1].seed);
		fork_us();
		shared->wanted++;
		pthread_join(thread, NULL);
	}
}

static void *kill_other(void *argument)
{
	some_pause(&lanes[0].seed);
	kill(others[0], SIGKILL);
	return argument;
}

/* The other process stands still before, so that it takes nothing more. */
static void kills(void)
{
	int status;
	exchange(&lanes[0]);
	kill(others[0], SIGSTOP);
	if (waitpid(others[0], &status, WUNTRACED) != others[0] || !WIFSTOPPED(status))
		fail("a process that stands");
	send_one(&lanes[0]);
	pthread_t thread = in_thread(kill_other, NULL);
	double begun = seconds();
	enum ibv_wc_status end = status_of_next(lanes[0].of_sent, lanes[0].sent, 0);
	double waited = seconds() - begun;
	pthread_join(thread, NULL);
	printf("failed after %.0f ms\n", waited * 1e3);
	equal("IBA 9.7.6.1.3", IBV_WC_RETRY_EXC_ERR, end, "a request to who was killed");
	holds("IBA 9.7.6.1.3", waited < RUNS_OUT, "fails in the time of its retries");
	shared->longest[0] = 0;
}

/* Messages of all processes are events of one channel. */
static void *await_from_all(void *argument)
{
	struct ibv_comp_channel *channel = argument;
	for (int left = OTHERS * ROUNDS; left > 0; shared->taken = OTHERS * ROUNDS - left) {
		double begun = seconds();
		struct ibv_wc wc;
		take_event(channel);
		note_wait(seconds() - begun);
		for (int i = 0; i < OTHERS; i++)
			while (lanes[i].qp && ibv_poll_cq(lanes[i].received, 1, &wc) == 1) {
				if (wc.status)
					fail("a message");
				receive_again(&lanes[i]);
				left--;
			}
	}
	return NULL;
}

static void connect_all(void)
{
	struct ibv_comp_channel *channel = new_channel();
	pthread_t thread = in_thread(await_from_all, channel);
	for (int i = 0; i < OTHERS; i++) {
		shared->begun = i + 1;
		open_lane(&lanes[i], i, channel);
		while (shared->taken < (i + 1) * ROUNDS)
			sched_yield();
	}
	pthread_join(thread, NULL);
}

static void connect_one(void)
{
	struct lane *lane = &lanes[me - 1];
	while (shared->begun < me)
		sched_yield();
	begin_as(me);
	open_lane(lane, me - 1, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		some_pause(&lane->seed);
		send_one(lane);
		await_sent(lane);
	}
}

static void play_other(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(story, "third")) {
		connect_one();
		return;
	}
	begin_as(me);
	open_lane(&lanes[0], 0, NULL);
	open_lane(&lanes[1], 1, NULL);
	if (!strcmp(story, "forks") || !strcmp(story, "killed"))
		exchange(&lanes[0]);
	for (int round = 0; round < HANDLED && !strcmp(story, "handlers"); round++) {
		exchange(&lanes[0]);
		send_what_is_wanted(&lanes[0]);
	}
	while (send_what_is_wanted(&lanes[strcmp(story, "forks") == 0]))
		;
}

static void play(void)
{
	begin_as(0);
	unsigned long before = device_counter("ring_pkts");
	if (!strcmp(story, "third")) {
		connect_all();
	} else {
		open_lane(&lanes[0], 0, NULL);
		open_lane(&lanes[1], 1, NULL);
		if (!strcmp(story, "cancelled")) {
			is_cancelled(&lanes[0]);
		} else if (!strcmp(story, "signals")) {
			is_interrupted(&lanes[0], "alone");
			pthread_t waits = in_thread(await_in_thread, &lanes[1]);
			is_interrupted(&lanes[0], "beside another");
			pthread_cancel(waits);
			pthread_join(waits, NULL);
		} else if (!strcmp(story, "handlers")) {
			is_handled_long(&lanes[0]);
		} else if (!strcmp(story, "forks")) {
			forks();
		} else if (!strcmp(story, "killed")) {
			kills();
		} else {
			fail("a story");
		}
	}
	shared->is_complete = 1;
	holds("D7", device_counter("ring_pkts") > before, "messages go by rings");
}

int main(int argc, char **argv)
{
	read_arguments(argc, argv);
	int is_killed = !strcmp(story, "killed");
	lanes[0].rounds = strcmp(story, "handlers") ? ROUNDS : ROUNDS / HANDLED;
	ack_timeout = is_killed ? SHORT_TIMEOUT : LONG_TIMEOUT;
	for (int i = 0; i < (strcmp(story, "third") ? 1 : OTHERS); i++) {
		me = i + 1;
		others[i] = fork();
		if (others[i] == 0) {
			play_other();
			exit(wrong);
		}
	}
	me = 0;
	play();
	for (int i = 0; i < OTHERS && others[i]; i++) {
		int status = 0;
		waitpid(others[i], &status, 0);
		equal("man wait", is_killed ? SIGKILL : 0, status, "the end of another process");
	}
	waits_were_short();
	return finish();
}
