/*
 * Processes that connect, send, disconnect, break their queue pairs, exit and are killed, all at
 * random, for a while.
 *
 *   cm_stress SEED SECONDS PORT
 *
 * The parent, which has a device of its own and so hosts the registry, runs two servers, at PORT
 * and PORT + 1, and several clients with several threads each. The second server and the clients
 * are killed every now and then and started anew. The first server lives to the end, by which it
 * must have no connection, no more descriptors and identifiers of the connection manager than it
 * began with and no more memory than it had after a third of the time; so must the parent, who asks
 * "$PEERDMA_BIN ps", if that is set, who is still there. Whoever waits for an answer of the first
 * server longer than any answer takes calls it hung, and all fail. Everything random follows from
 * SEED but for the times that things take.
 */
#include "stress_server.h"
#include "stress_client.h"

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

/* Processes with a device, as "peerdma ps" lists them; 1, which is right, where it cannot be asked.
 */
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
	while (after = descriptors(), processes = listed(),
	       (are_more(after, before) || processes != 1) && now_ms() < end)
		usleep(10000);
	leaked = are_more(after, before) || processes != 1 || grown > SLACK_KB;
	printf("host: descriptors %d and the library's %d, then %d and %d, memory grew %ld KB, "
	       "processes left %d\n",
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
	/* The second server is killed, clients end what they are at, then the first server settles.
	 */
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
