/*
 * Processes that connect, send, disconnect, break their queue pairs, exit and are killed, all at random, for a while.
 *
 *   cm_stress SEED SECONDS PORT
 *
 * The parent, which has a device of its own and so hosts the registry, runs two servers, at PORT and PORT + 1, and several
 * clients with several threads each. The second server and the clients are killed every now and then and started anew.
 * The first server lives to the end, by which it must have no connection, no more descriptors and identifiers of the
 * connection manager than it began with and no more memory than it had after a third of the time; so must the parent, who
 * asks "$PEERDMA_BIN ps", if that is set, who is still there. Whoever waits for an answer of the first server longer than
 * any answer takes calls it hung, and all fail. Everything random follows from SEED but for the times that things take.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

enum { CLIENTS = 5, THREADS = 3, CONNECTIONS = 256, BUFFER = 4096, RECEIVES = 4 };
/* Longest wait for an answer, milliseconds: a lost message is repeated after about six seconds. */
enum { PATIENCE_MS = 30000, IMPATIENCE_MS = 1500, LIFE_MS = 3000 };
/* Growth of the resident memory that is no leak, kilobytes. */
enum { SLACK_KB = 8192 };
/*
 * Descriptors of the library's that may be more than before: the host of the registry, which any process may become when
 * another stands still for a while, keeps two for each of 33 seats of those that died, and one for each connection.
 */
enum { SEATS = 66 + 20, FIRST_OF_LIBRARY = 512 };

static volatile sig_atomic_t ending;

static void end_soon(int signal)
{
	(void)signal;
	ending = 1;
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* SplitMix64. */
static uint64_t draw(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static int one_in(uint64_t *state, unsigned n)
{
	return draw(state) % n == 0;
}

static void fail(const char *what)
{
	fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerror(errno));
	exit(2);
}

struct descriptors {
	int program, library;
};

static struct descriptors descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct descriptors count = { 0, 0 };
	struct dirent *entry;
	if (!folder)
		fail("/proc/self/fd");
	while ((entry = readdir(folder)))
		if (atoi(entry->d_name) >= FIRST_OF_LIBRARY)
			count.library++;
		else
			count.program++;
	closedir(folder);
	return count;
}

static int are_more(struct descriptors after, struct descriptors before)
{
	return after.program != before.program || after.library > before.library + SEATS;
}

static void show_descriptors(void)
{
	for (int fd = 0; fd < 1 << 20; fd++) {
		char path[64], to[256];
		ssize_t len;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		len = readlink(path, to, sizeof to);
		if (len > 0)
			fprintf(stderr, "  %d -> %.*s\n", fd, (int)len, to);
	}
}

static long resident_kb(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long size = 0, resident = 0;
	if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2)
		fail("/proc/self/statm");
	fclose(file);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/*
 * The number that the device gives the next identifier: the lowest that is free. As <rdma/rdma_user_cm.h>, which cannot be
 * included beside librdmacm's header, lays the command out.
 */
static int next_identifier(void)
{
	uint32_t answer = 0;
	struct {
		uint32_t command;
		uint16_t in, out;
		uint64_t uid, answer;
		uint16_t port_space;
		uint8_t qp_type, reserved[5];
	} create = { 0, 24, sizeof answer, 0, (uintptr_t)&answer, RDMA_PS_TCP, 0, { 0 } };
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd < 0 || write(fd, &create, sizeof create) != sizeof create)
		fail("/dev/infiniband/rdma_cm");
	close(fd);
	return answer;
}

static struct ibv_qp_init_attr qp_attr(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 64 },
	};
}

/* The next event must be this one, but for requests, which are refused. */
static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	enum rdma_cm_event_type found;
	do {
		while (rdma_get_cm_event(channel, &event))
			if (errno != EAGAIN)
				fail("rdma_get_cm_event");
		found = event->event;
		id = event->id;
		rdma_ack_cm_event(event);
		if (found == RDMA_CM_EVENT_CONNECT_REQUEST && (rdma_reject(id, NULL, 0) || rdma_destroy_id(id)))
			fail("rdma_reject");
	} while (found == RDMA_CM_EVENT_CONNECT_REQUEST);
	if (found != type)
		fail(rdma_event_str(found));
}

/* Makes everything that a process has once: librdmacm's context, the engine and its ways to this host. Nobody else is at PORT. */
static void warm_up(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_in self = { .sin_family = AF_INET, .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_qp_init_attr attr = qp_attr();
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&self, 2000))
		fail("rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		fail("rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (rdma_create_qp(id, NULL, &attr) || rdma_connect(id, &param))
		fail("rdma_connect");
	expect(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
}

static void break_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	ibv_modify_qp(id->qp, &attr, IBV_QP_STATE);
}

/* --- Server --- */

struct connection {
	struct rdma_cm_id *id;
	uint64_t since;
	enum rdma_cm_event_type last;
};

static struct connection connections[CONNECTIONS];
static struct ibv_mr *mr;
static char buffer[BUFFER];
static unsigned long accepted, finished;

static struct connection *slot_of(struct rdma_cm_id *id)
{
	for (int i = 0; i < CONNECTIONS; i++)
		if (connections[i].id == id)
			return &connections[i];
	return NULL;
}

static void drop(struct connection *connection)
{
	struct rdma_cm_id *id = connection->id;
	connection->id = NULL;
	if (id->qp)
		rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
	finished++;
}

static void requested(struct rdma_cm_id *id, uint64_t *random)
{
	struct connection *connection = slot_of(NULL);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	struct ibv_qp_init_attr attr = qp_attr();
	if (!connection || one_in(random, 10)) {
		rdma_reject(id, "no", 2);
		rdma_destroy_id(id);
		return;
	}
	*connection = (struct connection){ .id = id, .since = now_ms() };
	if (one_in(random, 15)) {
		drop(connection);
		return;
	}
	if (rdma_create_qp(id, NULL, &attr))
		fail("rdma_create_qp");
	if (!mr && !(mr = ibv_reg_mr(id->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE)))
		fail("ibv_reg_mr");
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(id->qp, &wr, &bad))
			fail("ibv_post_recv");
	}
	/* The peer may have given up meanwhile. */
	if (rdma_accept(id, &param))
		drop(connection);
	else
		accepted++;
}

/* What follows from an event that was acknowledged. */
static void happened(enum rdma_cm_event_type event, struct rdma_cm_id *id, uint64_t *random)
{
	struct connection *connection = slot_of(id);
	if (event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		requested(id, random);
		return;
	}
	if (!connection)
		return;
	connection->last = event;
	switch (event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		if (one_in(random, 6))
			break_qp(id);
		else if (one_in(random, 6))
			rdma_disconnect(id);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (one_in(random, 2))
			rdma_disconnect(id);
		drop(connection);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		drop(connection);
	}
}

/* Connections that live too long are ended, in the end all; how many are left? */
static int look_after(uint64_t life_ms)
{
	int left = 0;
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *connection = &connections[i];
		if (!connection->id)
			continue;
		left++;
		/* Time and again: one that was not complete yet may be by now. */
		if (now_ms() - connection->since >= life_ms && rdma_disconnect(connection->id))
			drop(connection);
	}
	return left;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	/* The port of one that was killed is free as soon as its death is noticed. */
	for (uint64_t begin = now_ms(); rdma_bind_addr(id, (struct sockaddr *)&at); usleep(10000))
		if (now_ms() - begin > 5000)
			fail("rdma_bind_addr");
	if (rdma_listen(id, 8))
		fail("rdma_listen");
	return id;
}

static void pump(struct rdma_event_channel *channel, int wait_ms, uint64_t *random)
{
	struct pollfd poll_fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;
	if (poll(&poll_fd, 1, wait_ms) <= 0)
		return;
	while (!rdma_get_cm_event(channel, &event)) {
		enum rdma_cm_event_type type = event->event;
		struct rdma_cm_id *id = event->id;
		rdma_ack_cm_event(event);
		happened(type, id, random);
	}
	if (errno != EAGAIN)
		fail("rdma_get_cm_event");
}

static struct rdma_event_channel *channel_without_waiting(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel || fcntl(channel->fd, F_SETFL, O_NONBLOCK))
		fail("rdma_create_event_channel");
	return channel;
}

static int serve(uint64_t seed, int seconds, int port)
{
	uint64_t random = seed, begin = now_ms(), end;
	struct rdma_event_channel *channel = channel_without_waiting();
	struct descriptors before, after;
	int identifier;
	long memory = 0, grown;
	struct rdma_cm_id *id = listener(channel, port);
	warm_up(channel, port);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
	identifier = next_identifier();
	before = descriptors();
	id = listener(channel, port);
	while (!ending) {
		pump(channel, 50, &random);
		look_after(LIFE_MS);
		if (!memory && now_ms() - begin > seconds * 1000ull / 3)
			memory = resident_kb();
	}
	rdma_destroy_id(id);
	for (end = now_ms() + PATIENCE_MS; look_after(0); pump(channel, 50, &random))
		if (now_ms() > end) {
			fprintf(stderr, "server: %d connections never end\n", look_after(0));
			for (int i = 0; i < CONNECTIONS; i++)
				if (connections[i].id)
					fprintf(stderr, "  after %s, since %llu ms\n", rdma_event_str(connections[i].last),
						(unsigned long long)(now_ms() - connections[i].since));
			return 3;
		}
	if (mr)
		ibv_dereg_mr(mr);
	after = descriptors();
	grown = memory ? resident_kb() - memory : 0;
	printf("server: accepted %lu, finished %lu, descriptors %d and the library's %d, then %d and %d, identifier %d then %d, "
	       "memory grew %ld KB\n",
	       accepted, finished, before.program, before.library, after.program, after.library, identifier,
	       next_identifier(), grown);
	fflush(stdout);
	if (are_more(after, before) || next_identifier() != identifier || grown > SLACK_KB || !accepted) {
		fprintf(stderr, "server: leaked\n");
		show_descriptors();
		return 4;
	}
	return 0;
}

/* --- Client --- */

struct client {
	uint64_t random, until;
	int port;
	unsigned long connected;
};

/* Waits for an event; -1 when none comes in time. An event of the first server must come. */
static int await(struct rdma_event_channel *channel, const char *what, int patient)
{
	struct pollfd poll_fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;
	int type, ready;
	do
		ready = poll(&poll_fd, 1, patient ? PATIENCE_MS : IMPATIENCE_MS);
	while (ready < 0 && errno == EINTR);
	if (!ready && patient) {
		fprintf(stderr, "client %d: hung: %s\n", getpid(), what);
		exit(3);
	}
	if (ready <= 0 || rdma_get_cm_event(channel, &event))
		return -1;
	type = event->event;
	rdma_ack_cm_event(event);
	return type;
}

static void send_some(struct rdma_cm_id *id, uint64_t *random)
{
	char bytes[32] = "stress";
	for (unsigned n = draw(random) % RECEIVES; n > 0; n--) {
		struct ibv_sge sge = { (uintptr_t)bytes, sizeof bytes, 0 };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;
		struct ibv_wc wc;
		uint64_t end = now_ms() + 300;
		if (ibv_post_send(id->qp, &wr, &bad))
			return;
		while (!ibv_poll_cq(id->send_cq, 1, &wc))
			if (now_ms() > end)
				return;
		if (wc.status != IBV_WC_SUCCESS)
			return;
	}
}

static void part(struct rdma_event_channel *channel, struct rdma_cm_id *id, uint64_t *random, int patient)
{
	switch (draw(random) % 4) {
	case 0:
		break_qp(id);
		break;
	case 1:
		break;
	default:
		if (!rdma_disconnect(id))
			await(channel, "disconnect", patient);
	}
}

static void converse(struct client *client)
{
	int patient = one_in(&client->random, 2), type;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(client->port + !patient),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = qp_attr();
	struct rdma_cm_id *id;
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		fail("rdma_resolve_addr");
	if (await(channel, "address", 1) != RDMA_CM_EVENT_ADDR_RESOLVED || rdma_resolve_route(id, 2000) ||
	    await(channel, "route", 1) != RDMA_CM_EVENT_ROUTE_RESOLVED || rdma_create_qp(id, NULL, &attr))
		fail("no way to the server");
	/* Some lose interest. */
	if (!rdma_connect(id, &param) && !one_in(&client->random, 12)) {
		type = await(channel, "connect", patient);
		if (type == RDMA_CM_EVENT_ESTABLISHED) {
			client->connected++;
			send_some(id, &client->random);
			part(channel, id, &client->random, patient);
		}
	}
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id");
	rdma_destroy_event_channel(channel);
}

static void *client_thread(void *argument)
{
	struct client *client = argument;
	while (now_ms() < client->until && !ending)
		converse(client);
	return NULL;
}

static int run_client(uint64_t seed, int port)
{
	struct client clients[THREADS];
	pthread_t threads[THREADS];
	unsigned long connected = 0;
	uint64_t life = 200 + draw(&seed) % 3000;
	for (int i = 0; i < THREADS; i++) {
		clients[i] = (struct client){ .random = draw(&seed), .until = now_ms() + life, .port = port };
		if (pthread_create(&threads[i], NULL, client_thread, &clients[i]))
			fail("pthread_create");
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		connected += clients[i].connected;
	}
	printf("client: %lu\n", connected);
	return 0;
}

/* --- Parent --- */

struct process {
	pid_t pid;
	const char *role;
	int port, killed;
};

static void start(struct process *process, uint64_t *random, int seconds)
{
	char seed[32], time[16], port[16];
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)draw(random));
	snprintf(time, sizeof time, "%d", seconds);
	snprintf(port, sizeof port, "%d", process->port);
	process->killed = 0;
	process->pid = fork();
	if (process->pid < 0)
		fail("fork");
	if (!process->pid) {
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execl("/proc/self/exe", "cm_stress", seed, time, port, process->role, NULL);
		fail("exec");
	}
}

/* Takes the end of a child; nonzero for one that neither ended well nor was killed by us. */
static int buried(struct process *processes, int count, pid_t pid, int status)
{
	for (int i = 0; i < count; i++) {
		struct process *process = &processes[i];
		if (process->pid != pid)
			continue;
		process->pid = 0;
		if (process->killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
			return 0;
		if (WIFEXITED(status) && !WEXITSTATUS(status))
			return 0;
		fprintf(stderr, "%s %d ended with status %#x\n", process->role, pid, status);
		return 1;
	}
	return 0;
}

/* Processes with a device, as "peerdma ps" lists them; 1, which is right, where it cannot be asked. */
static int listed(void)
{
	const char *program = getenv("PEERDMA_BIN");
	char command[512], line[512];
	int count = 0;
	FILE *said;
	if (!program)
		return 1;
	snprintf(command, sizeof command, "'%s' ps", program);
	said = popen(command, "r");
	while (said && fgets(line, sizeof line, said))
		count += strstr(line, "cm_stress") != NULL;
	if (!said || pclose(said))
		fail(command);
	return count;
}

/* What the host of the registry has left of all that came and went. */
static int host_leaked(struct descriptors before, long memory)
{
	uint64_t end = now_ms() + IMPATIENCE_MS;
	struct descriptors after;
	int processes, leaked;
	long grown = memory ? resident_kb() - memory : 0;
	/* The engine may just be burying the last ones. */
	while (after = descriptors(), processes = listed(), are_more(after, before) && now_ms() < end)
		usleep(10000);
	leaked = are_more(after, before) || processes != 1 || grown > SLACK_KB;
	printf("host: descriptors %d and the library's %d, then %d and %d, memory grew %ld KB, processes left %d\n",
	       before.program, before.library, after.program, after.library, grown, processes);
	if (leaked) {
		fprintf(stderr, "host: leaked\n");
		show_descriptors();
	}
	return leaked;
}

static int parent(uint64_t seed, int seconds, int port)
{
	enum { COUNT = 2 + CLIENTS };
	struct process processes[COUNT] = { { .role = "server", .port = port },
					    { .role = "server", .port = port + 1 } };
	uint64_t random = seed, end = now_ms() + seconds * 1000ull;
	unsigned long started = 0, kills = 0;
	struct descriptors before;
	int wrong = 0, status;
	long memory = 0;
	sigset_t child;
	pid_t pid;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel)
		fail("rdma_create_event_channel");
	printf("seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	warm_up(channel, port + 2);
	before = descriptors();
	for (int i = 2; i < COUNT; i++)
		processes[i] = (struct process){ .role = "client", .port = port };
	while (now_ms() < end && !wrong) {
		struct timespec pause = { 0, (10 + draw(&random) % 150) * 1000000 };
		struct process *process = &processes[1 + draw(&random) % (COUNT - 1)];
		for (int i = 0; i < COUNT; i++)
			if (!processes[i].pid) {
				start(&processes[i], &random, seconds);
				started++;
			}
		sigtimedwait(&child, NULL, &pause);
		if (!memory && end - now_ms() < seconds * 667ull)
			memory = resident_kb();
		if (process->pid && one_in(&random, process == &processes[1] ? 8 : 3)) {
			process->killed = 1;
			kills++;
			kill(process->pid, SIGKILL);
		}
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
			wrong |= buried(processes, COUNT, pid, status);
	}
	/* The second server is killed, clients end what they are at, then the first server settles. */
	for (int i = COUNT - 1; i >= 0; i--) {
		struct process *process = &processes[i];
		if (!process->pid)
			continue;
		process->killed |= i == 1 || (wrong && i);
		kill(process->pid, process->killed ? SIGKILL : SIGTERM);
		pid = process->pid;
		if (waitpid(pid, &status, 0) == pid)
			wrong |= buried(processes, COUNT, pid, status);
	}
	printf("started %lu, killed %lu\n", started, kills);
	return wrong | host_leaked(before, memory);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	int seconds = argc > 2 ? atoi(argv[2]) : 10, port = argc > 3 ? atoi(argv[3]) : 7471;
	if (argc <= 4)
		return parent(seed, seconds, port);
	signal(SIGTERM, end_soon);
	return strcmp(argv[4], "server") ? run_client(seed, port) : serve(seed, seconds, port);
}
