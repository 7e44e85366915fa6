/*
 * Eight bytes between two processes and back: `bare_pingpong WAY COUNT` prints the half of the
 * median round trip in microseconds.
 *
 *   call   both spin on their memory, where the other writes by process_vm_writev
 *   wake   both sleep in read(2) of an eventfd that the other adds to
 *   udp    both spin on a UDP socket
 *   epoll  both spin on their memory, where a thread of their own writes that waits in epoll for
 *          what comes by UDP
 */
#define _GNU_SOURCE
#include "peers.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

/* Untaken by the median: both ends become warm. */
#define WARM_UP 1000

/* One of the two ends. */
struct end {
	/* What comes from the other. */
	int in;
	/* Where the other's comes from. */
	int out;
	volatile uint64_t *word;
	/* Where that is in the other process. */
	volatile uint64_t *its_word;
	pid_t other;
};

struct way {
	const char *name;
	void (*open)(struct end ends[2]);
	/* In each process, where something runs beside the program. */
	void (*begin)(struct end *end);
	void (*send)(struct end *end, uint64_t value);
	/* Until this value has come. */
	void (*await)(struct end *end, uint64_t value);
};

static void nothing_to_open(struct end ends[2])
{
}

static void nothing_to_begin(struct end *end)
{
}

static void await_memory(struct end *end, uint64_t value)
{
	while (*end->word != value)
		;
}

static void send_call(struct end *end, uint64_t value)
{
	struct iovec local = { &value, 8 }, remote = { (void *)end->its_word, 8 };
	if (process_vm_writev(end->other, &local, 1, &remote, 1, 0) != 8)
		fail("process_vm_writev");
}

static void open_eventfds(struct end ends[2])
{
	for (int i = 0; i < 2; i++)
		if ((ends[i].in = eventfd(0, EFD_CLOEXEC)) < 0)
			fail("eventfd");
	ends[0].out = ends[1].in;
	ends[1].out = ends[0].in;
}

static void send_wake(struct end *end, uint64_t value)
{
	uint64_t one = 1;
	if (write(end->out, &one, 8) != 8)
		fail("write");
}

static void await_wake(struct end *end, uint64_t value)
{
	uint64_t count;
	if (read(end->in, &count, 8) != 8)
		fail("read");
}

static void open_sockets(struct end ends[2])
{
	struct sockaddr_in at[2];
	for (int i = 0; i < 2; i++) {
		socklen_t len = sizeof(at[i]);
		at[i] = (struct sockaddr_in){ AF_INET, 0, { htonl(INADDR_LOOPBACK) } };
		ends[i].in = ends[i].out = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		if (ends[i].in < 0 || bind(ends[i].in, (void *)&at[i], len) ||
		    getsockname(ends[i].in, (void *)&at[i], &len))
			fail("a socket");
	}
	for (int i = 0; i < 2; i++)
		if (connect(ends[i].in, (void *)&at[1 - i], sizeof(at[0])))
			fail("connect");
}

static void send_udp(struct end *end, uint64_t value)
{
	if (send(end->out, &value, 8, 0) != 8)
		fail("send");
}

static int received(struct end *end, uint64_t *value)
{
	ssize_t got = recv(end->in, value, 8, 0);
	if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
		fail("recv");
	return got == 8;
}

static void await_udp(struct end *end, uint64_t value)
{
	uint64_t got = 0;
	while (!received(end, &got) || got != value)
		;
}

/* The thread that waits for what comes. */
static void *engine(void *of)
{
	struct end *end = of;
	struct epoll_event event = { .events = EPOLLIN };
	int poll = epoll_create1(EPOLL_CLOEXEC);
	if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, end->in, &event))
		fail("epoll");
	for (;;) {
		uint64_t value;
		if (epoll_wait(poll, &event, 1, -1) < 0 && errno != EINTR)
			fail("epoll_wait");
		while (received(end, &value))
			*end->word = value;
	}
	return NULL;
}

static void begin_engine(struct end *end)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, engine, end))
		fail("pthread_create");
}

static const struct way WAYS[] = {
	{ "call", nothing_to_open, nothing_to_begin, send_call, await_memory },
	{ "wake", open_eventfds, nothing_to_begin, send_wake, await_wake },
	{ "udp", open_sockets, nothing_to_begin, send_udp, await_udp },
	{ "epoll", open_sockets, begin_engine, send_udp, await_memory },
};

static const struct way *way_of(const char *name)
{
	for (size_t i = 0; i < sizeof(WAYS) / sizeof(*WAYS); i++)
		if (!strcmp(name, WAYS[i].name))
			return &WAYS[i];
	fprintf(stderr, "bare_pingpong call|wake|udp|epoll COUNT\n");
	exit(2);
}

/* One word for each end, a page apart: at the same addresses in both processes, and not shared. */
static char words[2][4096] __attribute__((aligned(4096)));

int main(int argc, char **argv)
{
	const struct way *way = way_of(argc == 3 ? argv[1] : "");
	uint64_t count = strtoull(argv[2], NULL, 0) + WARM_UP;
	struct end ends[2];
	way->open(ends);
	for (int i = 0; i < 2; i++) {
		ends[i].word = (void *)words[i];
		ends[i].its_word = (void *)words[1 - i];
	}
	volatile int *ready = shared(sizeof(*ready));
	pid_t first = getpid(), other = second();
	struct end *end = &ends[other ? 0 : 1];
	end->other = other ? other : first;
	way->begin(end);
	if (!other) {
		*ready = 1;
		for (uint64_t i = 1; i <= count; i++) {
			way->await(end, i);
			way->send(end, i);
		}
		return 0;
	}
	uint64_t *took = calloc(count, sizeof(*took));
	if (!took)
		fail("calloc");
	while (!*ready)
		;
	for (uint64_t i = 1; i <= count; i++) {
		uint64_t begun = now_ns();
		way->send(end, i);
		way->await(end, i);
		took[i - 1] = now_ns() - begun;
	}
	int status;
	if (waitpid(other, &status, 0) != other || status)
		return 1;
	printf("%f\n", half_median_us(took + WARM_UP, count - WARM_UP));
	return 0;
}
