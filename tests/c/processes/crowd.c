/*
 * Hundreds of processes on one address. In a ring each writes to the next one, while the first of
 * them, which hosts what they share, is held by a debugger, another one stands still, newcomers
 * arrive, and finally some are killed.
 *
 *   crowd [RING]
 */
#include "rows.h"
#include <dirent.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 1000, NEWCOMERS = 2, PATIENCE_SECONDS = 60 };
enum { HELD, STOPPED };

enum order { OPEN, CONNECT, WRITE, READ_BOX };

/* What the parent and one child share. */
struct seat {
	sem_t go;
	enum order order;
	uint64_t value;
	long result;
	pid_t pid;
	int next, previous;
	uint32_t in, out, rkey;
	uint64_t box;
};

static struct crowd {
	sem_t done;
	struct seat seats[MOST + NEWCOMERS];
} *crowd;

static const char *source = "processes share an address";
static int ring = 120;

/* The child's own. */
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *in, *out;
static struct ibv_mr *mr;
static uint64_t memory[2];

static void open_seat(struct seat *seat)
{
	open_first_device();
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 16, NULL, channel, 0) : NULL;
	mr = ibv_reg_mr(pd, memory, sizeof(memory), EVERYTHING);
	if (!cq || !mr)
		fail("completion queue and memory");
	in = new_qp(pd, cq, IBV_QPT_RC);
	out = new_qp(pd, cq, IBV_QPT_RC);
	seat->in = in->qp_num;
	seat->out = out->qp_num;
	seat->rkey = mr->rkey;
	seat->box = (uintptr_t)&memory[0];
}

/* Sleeps until its completion: a hundred that spin would leave no processor. */
static int write_to(struct seat *next, uint64_t value)
{
	struct ibv_sge sge = { (uintptr_t)&memory[1], sizeof(*memory), mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { next->box, next->rkey } };
	struct ibv_wc wc;
	struct ibv_cq *said;
	void *unused;
	memory[1] = value;
	if (ibv_req_notify_cq(cq, 0))
		fail("arm");
	post(out, &wr);
	while (!ibv_poll_cq(cq, 1, &wc)) {
		if (ibv_get_cq_event(channel, &said, &unused))
			fail("event");
		ibv_ack_cq_events(said, 1);
		ibv_req_notify_cq(cq, 0);
	}
	return wc.status;
}

static void serve(struct seat *seat)
{
	for (;;) {
		while (sem_wait(&seat->go))
			;
		switch (seat->order) {
		case OPEN:
			open_seat(seat);
			break;
		case CONNECT:
			connect_to(out, crowd->seats[seat->next].in);
			connect_to(in, crowd->seats[seat->previous].out);
			break;
		case WRITE:
			seat->result = write_to(&crowd->seats[seat->next], seat->value);
			break;
		case READ_BOX:
			seat->result = *(volatile uint64_t *)memory;
			break;
		}
		sem_post(&crowd->done);
	}
}

static void begin(int number, int next, int previous)
{
	struct seat *seat = &crowd->seats[number];
	seat->next = next;
	seat->previous = previous;
	sem_init(&seat->go, 1, 0);
	fflush(stdout);
	pid_t pid = fork();
	if (pid < 0)
		fail("fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(seat);
	}
	seat->pid = pid;
}

static void end_all(void)
{
	for (int i = 0; i < ring + NEWCOMERS; i++)
		if (crowd->seats[i].pid)
			kill(crowd->seats[i].pid, SIGKILL);
}

/* Orders all seats that `who` chooses, and waits until they have obeyed. */
static void all(enum order order, int (*who)(int), uint64_t value)
{
	int ordered = 0;
	for (int i = 0; i < ring + NEWCOMERS; i++) {
		struct seat *seat = &crowd->seats[i];
		if (!seat->pid || !who(i))
			continue;
		seat->order = order;
		seat->value = value + i;
		ordered++;
		sem_post(&seat->go);
	}
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_SECONDS;
	for (int i = 0; i < ordered; i++)
		if (sem_timedwait(&crowd->done, &until)) {
			end_all();
			fail("everybody obeys in time");
		}
}

/* The seats that `who` chooses write; they and those after them must agree that it was done. */
static void all_write(int (*who)(int), int (*whose_next_lives)(int), uint64_t value,
		      const char *when)
{
	all(WRITE, who, value);
	int right = 0, chosen = 0, failed = 0, doomed = 0;
	for (int i = 0; i < ring + NEWCOMERS; i++) {
		struct seat *seat = &crowd->seats[i];
		if (!seat->pid || !who(i))
			continue;
		int lives = whose_next_lives(i);
		*(lives ? &chosen : &doomed) += 1;
		right += lives && seat->result == IBV_WC_SUCCESS;
		failed += !lives && seat->result == IBV_WC_RETRY_EXC_ERR;
	}
	equal(source, chosen, right, "writes %s", when);
	if (doomed)
		equal("IBA 11.6.2", doomed, failed, "exhausted retries %s", when);
	int found = 0;
	all(READ_BOX, who, 0);
	for (int i = 0; i < ring + NEWCOMERS; i++) {
		struct seat *seat = &crowd->seats[i];
		if (seat->pid && who(i) && who(seat->previous) && crowd->seats[seat->previous].pid)
			found += seat->result != (long)(value + seat->previous);
	}
	equal(source, 0, found, "boxes with something else %s", when);
}

static int held(int i) { return i == HELD; }
static int in_ring(int i) { return i < ring; }
static int in_ring_not_held(int i) { return in_ring(i) && !held(i); }
static int newcomer(int i) { return i >= ring; }
static int anybody(int i) { return i >= 0; }
static int victim(int i) { return in_ring(i) && i % 10 == 5; }
static int survivor(int i) { return !victim(i); }
static int next_survives(int i) { return survivor(crowd->seats[i].next); }
static int undisturbed(int i)
{
	int next = crowd->seats[i].next;
	return i != HELD && i != STOPPED && next != HELD && next != STOPPED;
}

/* As a debugger does: every thread of the process stands still. Gives their number. */
static int hold(pid_t pid, pid_t *threads, int most)
{
	char path[64];
	struct dirent *entry;
	int count = 0, status;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *folder = opendir(path);
	while (folder && (entry = readdir(folder)) && count < most)
		if (atoi(entry->d_name))
			threads[count++] = atoi(entry->d_name);
	if (!folder)
		fail("the held process's threads");
	closedir(folder);
	for (int i = 0; i < count; i++)
		if (ptrace(PTRACE_SEIZE, threads[i], NULL, NULL) ||
		    ptrace(PTRACE_INTERRUPT, threads[i], NULL, NULL) ||
		    waitpid(threads[i], &status, __WALL) != threads[i] || !WIFSTOPPED(status))
			fail("hold a thread");
	return count;
}

static void kill_victims(void)
{
	for (int i = 0; i < ring; i++)
		if (victim(i)) {
			kill(crowd->seats[i].pid, SIGKILL);
			waitpid(crowd->seats[i].pid, NULL, 0);
			crowd->seats[i].pid = 0;
		}
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	ring = count > 1 ? atoi(arguments[1]) : ring;
	if (ring < 20 || ring > MOST)
		fail("a ring of 20 to 1000");
	/* A peer that lives may have to wait long for a processor. */
	ack_timeout = 17;
	retries = 4;
	crowd = mmap(NULL, sizeof(*crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (crowd == MAP_FAILED)
		fail("mmap");
	sem_init(&crowd->done, 1, 0);
	for (int i = 0; i < ring; i++)
		begin(i, (i + 1) % ring, (i + ring - 1) % ring);
	for (int i = 0; i < NEWCOMERS; i++)
		begin(ring + i, ring + !i, ring + !i);

	/* Alone, so that it is the host. */
	all(OPEN, held, 0);
	all(OPEN, in_ring_not_held, 0);
	all(CONNECT, in_ring, 0);
	all_write(in_ring, in_ring, 1000, "in a ring");

	pid_t threads[64];
	pid_t debugged = crowd->seats[HELD].pid, stopped = crowd->seats[STOPPED].pid;
	int held_threads = hold(debugged, threads, 64);
	kill(stopped, SIGSTOP);
	all(OPEN, newcomer, 0);
	all(CONNECT, newcomer, 0);
	all_write(undisturbed, undisturbed, 2000, "while one is debugged and one is stopped");
	for (int i = 0; i < held_threads; i++)
		ptrace(PTRACE_DETACH, threads[i], NULL, NULL);
	kill(stopped, SIGCONT);
	all_write(anybody, anybody, 3000, "once they go on");

	kill_victims();
	all_write(survivor, next_survives, 4000, "when some were killed");
	end_all();
	return finish();
}
