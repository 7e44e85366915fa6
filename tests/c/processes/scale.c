/*
 * Many of everything, and what one more costs: in memory, in time, and in the speed of the others.
 * One figure a line, `NAME NUMBER`; a figure in bytes or a count is the same in every run but for
 * the allocator, one in microseconds or GB/s is the machine's.
 *
 *   scale pairs COUNT             COUNT queue pairs in each of two processes, connected and used
 *   scale busy COUNT BYTES SECONDS [OPERATION]
 *                                 COUNT queue pairs of two processes carry requests of BYTES
 *   scale regions COUNT           COUNT regions of one page each, which another process writes to;
 *                                 figures are processor time
 *   scale idle SECONDS            a device with a connection, of which nobody asks anything
 *   scale exported NODE           a GPU's buffers, registered by their exporter and by another
 */
#include "gpu.h"

#include "hand_over.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { PAGE = 4096, MESSAGE = 64, DEPTH = 4, BATCH = 16, CREW = 64, PATIENCE = 60 };
enum { MOST_PAIRS = 1 << 14, MOST_REGIONS = 1 << 17 };

struct named {
	uint64_t address;
	uint32_t rkey;
};

/* What the two processes tell each other. */
static struct {
	uint32_t qpns[2][MOST_PAIRS];
	struct named regions[2][MOST_REGIONS];
	volatile double figures[4];
	volatile int over;
} *meeting;

static int other;
static pid_t other_process;
static int is_asker;
static struct ibv_cq *cq;

static void tell(const void *what, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t sent = send(other, (const char *)what + done, length - done, MSG_NOSIGNAL);
		if (sent <= 0)
			fail("tell the other process");
		done += (size_t)sent;
	}
}

static void hear(void *what, size_t length)
{
	if (recv(other, what, length, MSG_WAITALL) != (ssize_t)length)
		fail("hear the other process");
}

static void both_are_here(void)
{
	char here = 0;
	tell(&here, 1);
	hear(&here, 1);
}

/* Only one of the two says what both found. */
static void say(const char *name, double figure)
{
	if (is_asker)
		printf("%s %.2f\n", name, figure);
}

/* Two processes from here on; the first is the one that asks, the other ends with it. */
static void split(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		fail("a pair of sockets");
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	is_asker = child != 0;
	other_process = child ? child : getppid();
	other = ends[is_asker];
	close(ends[!is_asker]);
}

static void open_with_queue(int entries)
{
	ack_timeout = 18;
	retries = rnr_retries = 7;
	open_first_device();
	cq = new_cq(entries);
}

/* Kilobytes of a line of a file about this process. */
static double kilobytes(const char *file, const char *line)
{
	char found[200];
	double value = -1;
	FILE *status = fopen(file, "r");
	while (status && value < 0 && fgets(found, sizeof(found), status))
		if (!strncmp(found, line, strlen(line)))
			value = atof(found + strlen(line));
	if (value < 0)
		fail(line);
	fclose(status);
	return value;
}

/* Bytes that are this process's, in memory: its own, and its part of what it shares. */
static double resident(void) { return kilobytes("/proc/self/smaps_rollup", "Pss:") * 1024; }

/* Processor time of a process; of this one for 0. */
static double cpu_seconds(pid_t process)
{
	struct timespec used;
	clockid_t clock;
	if (clock_getcpuclockid(process, &clock) || clock_gettime(clock, &used))
		fail("processor time");
	return used.tv_sec + used.tv_nsec * 1e-9;
}

/* That of both processes. */
static double cpu_of_both(void) { return cpu_seconds(0) + cpu_seconds(other_process); }

static struct ibv_mr *region(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = at == MAP_FAILED ? NULL : ibv_reg_mr(pd, at, length, EVERYTHING);
	if (!mr)
		fail("register memory");
	return mr;
}

static struct ibv_qp **queue_pairs(int count, int depth)
{
	struct ibv_qp **qps = calloc(count, sizeof(*qps));
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq,
						 .recv_cq = cq,
						 .qp_type = IBV_QPT_RC,
						 .cap = { depth, depth, 1, 1, 0 } };
		qps[i] = ibv_create_qp(pd, &init);
		if (!qps[i])
			fail("queue pair");
	}
	return qps;
}


/* Connects each to the queue pair of the same place in the other process. */
static void connect_all(struct ibv_qp **qps, int count)
{
	for (int i = 0; i < count; i++)
		meeting->qpns[is_asker][i] = qps[i]->qp_num;
	both_are_here();
	for (int i = 0; i < count; i++)
		connect_to(qps[i], meeting->qpns[!is_asker][i]);
}

static void completions(int count)
{
	struct ibv_wc wc[BATCH];
	double end = seconds() + PATIENCE;
	while (count > 0) {
		int n = ibv_poll_cq(cq, BATCH, wc);
		for (int i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				fail(ibv_wc_status_str(wc[i].status));
		count -= n;
		if (n < 0 || seconds() > end)
			fail("a completion in time");
	}
}

/* A request to the memory that the other process named. */
static void ask(struct ibv_qp *qp, uint64_t id, enum ibv_wr_opcode opcode, struct ibv_mr *from,
		uint32_t length, uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)from->addr, length, from->lkey };
	struct ibv_send_wr wr = { .wr_id = id,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { to, rkey } };
	post(qp, &wr);
}

/* Each carries a message there and one back. */
static void use_all(struct ibv_qp **qps, int count, struct ibv_mr *mr)
{
	for (int from = 0; from < count; from += CREW) {
		int crew = count - from < CREW ? count - from : CREW;
		for (int i = from; i < from + crew; i++)
			receive(qps[i], i, mr->addr, MESSAGE, mr->lkey);
		both_are_here();
		for (int i = from; i < from + crew; i++)
			ask(qps[i], i, IBV_WR_SEND, mr, MESSAGE, 0, 0);
		completions(2 * crew);
		both_are_here();
	}
}

static void pairs(unsigned count, int depth)
{
	split();
	open_with_queue(4 * CREW);
	struct ibv_mr *mr = region(PAGE);
	/* what the first of them needs is no price of the others */
	struct ibv_qp **first = queue_pairs(1, depth);
	connect_all(first, 1);
	use_all(first, 1, mr);
	both_are_here();
	double begun = seconds(), before = resident(), cpu = cpu_seconds(0);
	struct ibv_qp **qps = queue_pairs(count, depth);
	double created = seconds() - begun, with_created = resident();
	connect_all(qps, count);
	double connected = seconds() - begun, with_connected = resident();
	say("set up, s", connected);
	say("of it to create, s", created);
	say("processor time of one process, s", cpu_seconds(0) - cpu);
	both_are_here();
	use_all(qps, count, mr);
	say("bytes each, created", (with_created - before) / count);
	say("bytes each, connected", (with_connected - before) / count);
	say("bytes each, used", (resident() - before) / count);
	both_are_here();
	begun = seconds();
	for (int i = 0; i < count; i++)
		if (ibv_destroy_qp(qps[i]))
			fail("destroy a queue pair");
	say("ended, s", seconds() - begun);
	both_are_here();
}

static void busy(unsigned count, uint32_t length, double limit, const char *operation)
{
	int sends = !strcmp(operation, "send");
	enum ibv_wr_opcode opcode = sends			  ? IBV_WR_SEND
				    : !strcmp(operation, "read") ? IBV_WR_RDMA_READ
								  : IBV_WR_RDMA_WRITE;
	split();
	open_with_queue(count * DEPTH * 2);
	struct ibv_mr *mr = region(length);
	struct ibv_qp **qps = queue_pairs(count, 2 * DEPTH);
	meeting->regions[is_asker][0] = (struct named){ (uintptr_t)mr->addr, mr->rkey };
	connect_all(qps, count);
	struct named to = meeting->regions[!is_asker][0];
	if (!is_asker && sends)
		for (int i = 0; i < count * 2 * DEPTH; i++)
			receive(qps[i % count], i % count, mr->addr, length, mr->lkey);
	both_are_here();
	struct ibv_wc wc[BATCH];
	if (!is_asker) {
		while (sends && !meeting->over) {
			int n = ibv_poll_cq(cq, BATCH, wc);
			for (int i = 0; i < n; i++)
				if (wc[i].status != IBV_WC_SUCCESS)
					fail(ibv_wc_status_str(wc[i].status));
				else
					receive(qps[wc[i].wr_id], wc[i].wr_id, mr->addr, length,
						mr->lkey);
		}
		hear(&(char){ 0 }, 1);
		return;
	}
	uint32_t *done = calloc(count, sizeof(*done));
	for (int i = 0; i < count * DEPTH; i++)
		ask(qps[i % count], i % count, opcode, mr, length, to.address, to.rkey);
	double begun = seconds(), cpu = cpu_of_both(), now = begun;
	long messages = 0;
	/* The first third is not counted. */
	double counts_from = begun + limit / 3, ends = begun + limit;
	while ((now = seconds()) < ends) {
		int n = ibv_poll_cq(cq, BATCH, wc);
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				fail(ibv_wc_status_str(wc[i].status));
			uint64_t who = wc[i].wr_id;
			ask(qps[who], who, opcode, mr, length, to.address, to.rkey);
			if (now >= counts_from) {
				messages++;
				done[who]++;
			}
		}
		if (now < counts_from) {
			begun = now;
			cpu = cpu_of_both();
		}
	}
	double took = now - begun, used = cpu_of_both() - cpu;
	meeting->over = 1;
	completions(count * DEPTH);
	tell("", 1);
	uint32_t least = done[0], most = done[0];
	for (int i = 0; i < count; i++) {
		least = done[i] < least ? done[i] : least;
		most = done[i] > most ? done[i] : most;
	}
	say("GB/s", messages * (double)length / took / 1e9);
	say("messages a second", messages / took);
	say("processor time a message, us", used / messages * 1e6);
	say("least of one", least);
	say("most of one", most);
}

static void regions(int count)
{
	split();
	open_with_queue(4 * CREW);
	struct ibv_mr *mr = region(PAGE);
	struct ibv_qp **qps = queue_pairs(1, CREW);
	connect_all(qps, 1);
	both_are_here();
	/* One memory that all of them show: what counts is the registrations. */
	char *memory = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("memory");
	if (!is_asker) {
		memset(memory, 0, (size_t)count * PAGE);
		struct ibv_mr **all = calloc(count, sizeof(*all));
		double before = resident(), begun = cpu_seconds(0);
		for (int i = 0; i < count; i++) {
			all[i] = ibv_reg_mr(pd, memory + (size_t)i * PAGE, PAGE, EVERYTHING);
			if (!all[i]) {
				printf("NOT more than %d regions\n", i);
				fail("register one more");
			}
			meeting->regions[0][i] =
				(struct named){ (uintptr_t)all[i]->addr, all[i]->rkey };
			if (i == count / 10)
				meeting->figures[0] = (cpu_seconds(0) - begun) / i * 1e6;
		}
		meeting->figures[1] = (cpu_seconds(0) - begun) / count * 1e6;
		meeting->figures[2] = (resident() - before) / count;
		both_are_here();
		both_are_here();
		for (int i = 0; i < count; i++)
			if (memory[(size_t)i * PAGE] != (char)(i % 127 + 1))
				fail("each region has its own bytes");
		begun = cpu_seconds(0);
		for (int i = 0; i < count; i++)
			if (ibv_dereg_mr(all[i]))
				fail("deregister");
		meeting->figures[3] = (cpu_seconds(0) - begun) / count * 1e6;
		both_are_here();
		return;
	}
	both_are_here();
	double took[2];
	/* again and again to the first, then to each */
	for (int each = 0; each < 2; each++) {
		double begun = cpu_seconds(0);
		for (int i = 0; i < count; i++) {
			struct named to = meeting->regions[0][each ? i : 0];
			*(char *)mr->addr = each || !i ? (char)(i % 127 + 1) : 1;
			ask(qps[0], i, IBV_WR_RDMA_WRITE, mr, 1, to.address, to.rkey);
			completions(1);
		}
		took[each] = (cpu_seconds(0) - begun) / count * 1e6;
	}
	both_are_here();
	both_are_here();
	say("registered, us, the first tenth", meeting->figures[0]);
	say("registered, us, all", meeting->figures[1]);
	say("bytes each", meeting->figures[2]);
	say("deregistered, us", meeting->figures[3]);
	say("WRITE to one, us", took[0]);
	say("WRITE to each, us", took[1]);
}

/* Clock ticks and context switches of all threads of this process. */
static void spent(double *ticks, double *switches)
{
	struct dirent *entry;
	DIR *threads = opendir("/proc/self/task");
	*ticks = *switches = 0;
	while (threads && (entry = readdir(threads))) {
		char path[100];
		unsigned long user, kernel;
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", entry->d_name);
		*switches += kilobytes(path, "voluntary_ctxt_switches:") +
			     kilobytes(path, "nonvoluntary_ctxt_switches:");
		snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", entry->d_name);
		FILE *stat = fopen(path, "r");
		if (!stat || fscanf(stat,
				    "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
				    "%lu %lu",
				    &user, &kernel) != 2)
			fail(path);
		fclose(stat);
		*ticks += user + kernel;
	}
	closedir(threads);
}

static void idle(unsigned limit)
{
	split();
	open_with_queue(4 * CREW);
	struct ibv_mr *mr = region(PAGE);
	struct ibv_qp **qps = queue_pairs(2, 4);
	connect_all(qps, 2);
	use_all(qps, 2, mr);
	/* what follows on the last message is no part of idling */
	sleep(1);
	double ticks[2], switches[2], cpu = cpu_seconds(0);
	spent(&ticks[0], &switches[0]);
	sleep(limit);
	cpu = cpu_seconds(0) - cpu;
	spent(&ticks[1], &switches[1]);
	say("ticks", ticks[1] - ticks[0]);
	say("microseconds of processor", cpu * 1e6);
	say("context switches", switches[1] - switches[0]);
	both_are_here();
}

static int by_figure(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Registers it again and again and says how long the shortest and the usual one took. */
static void registered(const char *by, int fd, size_t length, int times)
{
	double took[200];
	for (int turn = 0; turn < times; turn++) {
		double begun = seconds();
		struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, length, 0, fd, EVERYTHING);
		took[turn] = (seconds() - begun) * 1e6;
		if (!mr || ibv_dereg_mr(mr))
			fail("register a dma-buf");
	}
	qsort(took, times, sizeof(*took), by_figure);
	printf("least %zu MiB by %s, us %.2f\n", length >> 20, by, took[0]);
	printf("usual %zu MiB by %s, us %.2f\n", length >> 20, by, took[times / 2]);
}

/* Buffers of the other process, which keeps them. */
static void exported(const char *node)
{
	static const size_t lengths[] = { 1 << 20, 1 << 30 };
	split();
	open_with_queue(CREW);
	for (int i = 0; i < 2; i++) {
		int times = i ? 5 : 100;
		if (!is_asker) {
			int fd = export_buffer(node, lengths[i]);
			registered("its exporter", fd, lengths[i], times);
			if (!send_descriptor(other, fd, "", 1))
				fail("hand a descriptor over");
			both_are_here();
			close(fd);
			continue;
		}
		char byte;
		int fd = receive_descriptor(other, &byte, 1);
		/* first: the library knows a buffer that the program has mapped */
		registered("another", fd, lengths[i], times);
		double begun = seconds();
		void *at = mmap(NULL, lengths[i], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
				fd, 0);
		printf("mmap %zu MiB, us %.2f\n", lengths[i] >> 20, (seconds() - begun) * 1e6);
		if (at == MAP_FAILED || munmap(at, lengths[i]))
			fail("map a dma-buf");
		close(fd);
		both_are_here();
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	meeting = mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	if (meeting == MAP_FAILED)
		fail("memory of both");
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "pairs") && argc >= 3)
		pairs(atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 1);
	else if (!strcmp(what, "busy") && argc >= 5)
		busy(atoi(argv[2]), (uint32_t)atol(argv[3]), atof(argv[4]),
		     argc == 6 ? argv[5] : "write");
	else if (!strcmp(what, "regions") && argc == 3)
		regions(atoi(argv[2]));
	else if (!strcmp(what, "idle") && argc == 3)
		idle((unsigned)atoi(argv[2]));
	else if (!strcmp(what, "exported") && argc == 3)
		exported(argv[2]);
	else
		fail("scale pairs|busy|regions|idle|exported");
	return 0;
}
