/*
 * One of two processes of a host ends at a point of what they share, named by a library with
 * defects, while both write to each other, read each other and send messages. The other one hears
 * of it as it would over a network, its memory is what whole requests and one in flight make of it,
 * and nothing that the dead one held is waited for.
 *
 *   deaths own|other POINT NTH PASSES PASSES-LENGTH
 *
 * The victim comes by the point itself, or it is the survivor who does. The last two say where in a
 * device's directory its passes are.
 */
#include "neighbours.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/stat.h>

enum {
	SLOTS = 4,
	RECEIVES = 8,
	LETTER = 8192,
	ROUNDS_AT_ONCE = 3,
	/* A multiple of the slots, so that a value tells its slot. */
	VALUES = 252,
	READ_VALUE = 253,
	/* How long the owner of memory waits for a neighbour that lives, seconds. */
	LIMIT = 5,
	WRITES = 0,
	SENDS = 1,
	READS = 2,
	KINDS = 3,
};

static const uint64_t received = 1ull << 63;

/* What each end registers; the other reaches the first two. */
struct shared {
	char inbox[SLOTS][BUFFER], outbox[BUFFER];
	char sources[SLOTS][BUFFER], landing[SLOTS][BUFFER];
	char letters[RECEIVES][LETTER];
};

static struct shared *shared;
static struct ibv_mr *mr;
static struct end peer;

static unsigned posted, received_posted, tainted, others, unwanted;
static enum ibv_wc_status first;

static int value_of(unsigned number) { return number % VALUES + 1; }

static void post_letter(int index)
{
	receive(qp, received | index, shared->letters[index], LETTER, mr->lkey);
	received_posted++;
}

static void post_request(uint64_t number, int kind, void *at, uint32_t length, uint64_t remote)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_SEND,
						      IBV_WR_RDMA_READ };
	struct ibv_sge sge = { (uintptr_t)at, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number * KINDS + kind,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcodes[kind],
				  .wr.rdma = { remote, peer.rkey } };
	post(qp, &wr);
	posted++;
}

/* A WRITE, a message and a READ. */
static void post_round(unsigned number)
{
	int slot = number % SLOTS;
	char *source = shared->sources[slot];
	memset(source, value_of(number), BUFFER);
	post_request(number, WRITES, source, BUFFER,
		     peer.address + offsetof(struct shared, inbox) + slot * (uint64_t)BUFFER);
	post_request(number, SENDS, source, number % 2 ? 64 : LETTER, 0);
	memset(shared->landing[slot], 0, BUFFER);
	post_request(number, READS, shared->landing[slot], BUFFER,
		     peer.address + offsetof(struct shared, outbox));
}

/* Whether all bytes are one of two. */
static int consists_of(const char *at, int one, int other)
{
	for (int i = 0; i < BUFFER; i++)
		if ((unsigned char)at[i] != one && (unsigned char)at[i] != other)
			return 0;
	return 1;
}

static void completed(const struct ibv_wc *wc)
{
	unsigned number = wc->wr_id / KINDS;
	int fine = wc->status == IBV_WC_SUCCESS;
	if (wc->wr_id & received) {
		received_posted--;
		unwanted += !fine && wc->status != IBV_WC_WR_FLUSH_ERR;
		if (fine)
			post_letter(wc->wr_id & ~received);
		return;
	}
	posted--;
	if (!fine && first == IBV_WC_SUCCESS)
		first = wc->status;
	else if (!fine)
		others += wc->status != IBV_WC_WR_FLUSH_ERR;
	if (!fine || wc->wr_id % KINDS != READS)
		return;
	tainted += !consists_of(shared->landing[number % SLOTS], READ_VALUE, READ_VALUE);
	if (first == IBV_WC_SUCCESS)
		post_round(number + ROUNDS_AT_ONCE);
}

/* Asks and answers until the connection ends, and all that was asked for is told. */
static int traffic(void)
{
	struct ibv_wc wc;
	for (int i = 0; i < ROUNDS_AT_ONCE; i++)
		post_round(i);
	while (posted || (first != IBV_WC_SUCCESS && received_posted)) {
		if (!wait_for(cq, &wc, PATIENCE))
			return 0;
		completed(&wc);
	}
	return 1;
}

/* Connects to the other end, which may be there no more before it is done. */
static void come_together(void)
{
	char ready = 1;
	shared = (struct shared *)memory_of(sizeof(*shared));
	memset(shared->outbox, READ_VALUE, BUFFER);
	mr = registered(shared, sizeof(*shared));
	new_end(pd, EVERYTHING);
	for (int i = 0; i < RECEIVES; i++)
		post_letter(i);
	struct end own = { qp->qp_num, mr->rkey, (uintptr_t)shared };
	tell(&own, sizeof(own));
	hear(&peer, sizeof(peer));
	must_change(qp, IBV_QPS_RTR, peer.qpn);
	must_change(qp, IBV_QPS_RTS, peer.qpn);
	if (send(other, &ready, 1, MSG_NOSIGNAL) == 1)
		recv(other, &ready, 1, MSG_WAITALL);
}

/* What a slot has once all WRITEs before `number` are done. */
static int before(int number, int slot)
{
	while (--number >= 0)
		if (number % SLOTS == slot)
			return value_of(number);
	return 0;
}

/* Whether the other end's WRITEs up to one in flight have made of the inbox what is there. */
static int is_of_whole_writes(void)
{
	/* From its first lap on, in which slots have nothing yet, all laps are the same. */
	for (int number = 0; number < 2 * VALUES; number++) {
		int flying = number % SLOTS, right = 1;
		for (int slot = 0; slot < SLOTS && right; slot++) {
			int had = before(number, slot);
			int gets = slot == flying ? value_of(number) : had;
			right = consists_of(shared->inbox[slot], had, gets);
		}
		if (right)
			return 1;
	}
	return 0;
}

/* The passes of this process's device that somebody has. */
static int taken_passes(long at, long length)
{
	struct stat status;
	struct dirent *entry;
	int taken = -1;
	DIR *folder = opendir("/proc/self/fd");
	while (folder && taken < 0 && (entry = readdir(folder))) {
		char path[300], link[100] = "";
		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		if (readlink(path, link, sizeof(link) - 1) < 0 ||
		    strncmp(link, "/memfd:peerdma-directory", 24) || stat(path, &status))
			continue;
		FILE *file = fopen(path, "r");
		uint64_t word[8];
		if (!file || fseek(file, at + sizeof(word), SEEK_SET))
			fail("the directory");
		taken = 0;
		for (long done = sizeof(word); done < length; done += sizeof(word)) {
			if (fread(word, sizeof(word), 1, file) != 1)
				fail("the passes");
			taken += word[0] != 0;
		}
		fclose(file);
	}
	if (folder)
		closedir(folder);
	return taken;
}

/* Takes everything back; gives how long that took, and how many passes are taken then. */
static double take_back(long at, long length, int *taken)
{
	double begun = seconds();
	if (ibv_dereg_mr(mr))
		fail("deregistration");
	part();
	double took = seconds() - begun;
	*taken = taken_passes(at, length);
	begun = seconds();
	if (ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		fail("the end of the device");
	return took + seconds() - begun;
}

int main(int argc, char **argv)
{
	const char *source = "design D7", *variable = "PEERDMA_SABOTAGE";
	char how[80];
	ack_timeout = 14;
	if (argc > 1 && !strcmp(argv[1], "as")) {
		open_device();
		come_together();
		return traffic() ? 3 : 4;
	}
	if (argc < 6)
		return 2;
	int own = !strcmp(argv[1], "own");
	if (own) {
		snprintf(how, sizeof(how), "kill-self-%s-%s", argv[2], argv[3]);
		setenv(variable, how, 1);
	}
	pid_t victim = start("victim");
	unsetenv(variable);
	if (!own) {
		snprintf(how, sizeof(how), "kill-%d-%s-%s", victim, argv[2], argv[3]);
		setenv(variable, how, 1);
	}
	open_device();
	retries = 5;
	come_together();
	holds(source, traffic(), "all that was asked for is told");
	int taken, status = 0;
	/* Half of the dead are not waited for yet. */
	int early = atoi(argv[3]) % 2;
	if (early)
		status = end_of(victim);
	row("IBA 9.9.2", IBV_WC_RETRY_EXC_ERR, first, "the first error");
	equal("IBA 10.8.3", 0, others, "later requests that were not flushed");
	equal("IBA 10.8.3", 0, unwanted, "receives that were not flushed");
	equal(source, 0, tainted, "READs of something else");
	holds(source, is_of_whole_writes(), "memory is of whole WRITEs and one in flight");
	double took = take_back(atol(argv[4]), atol(argv[5]), &taken);
	holds(source, took < LIMIT - 1, "nobody is waited for");
	equal(source, 0, taken, "passes that are taken");
	if (!early)
		status = end_of(victim);
	equal(source, SIGKILL, WIFSIGNALED(status) ? WTERMSIG(status) : 0, "the victim's signal");
	return finish();
}
