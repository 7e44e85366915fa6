/*
 * Long READs and an exchange of small messages between two processes, by two unrelated queue pairs.
 * Four READs of one process's memory are always outstanding; meanwhile a message goes there and
 * back, again and again.
 *
 *   turns serve poll|sleep LENGTH [NODE]  is read and sends the messages back, polling or sleeping;
 * the memory is LENGTH bytes of address space over a small file, or of the GPU's behind NODE turns
 * ask LENGTH                      reads and exchanges; SIGUSR1 asks both for a good end
 *
 * SIGUSR2 asks either to fork: it prints `fork took N`, in microseconds.
 *
 * `ask` prints `read N exchanges M` with each READ that ended, and `ends STATUS exchanges M` with
 * the first error, after which it only exchanges: M is of the messages since the line before. It
 * prints `exchanges M` for each 256 messages, of all, and in the end `longest gap N`: the most
 * microseconds by the wall's clock from one message to the next.
 */
#include "gpu.h"

#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { READS = 4, FILE_LENGTH = 4 << 20, MESSAGE = 64, LINE = 256, GOOD_END = 1 };

static volatile sig_atomic_t asked_to_end, asked_to_fork;

static void on_signal(int number)
{
	if (number == SIGUSR2)
		asked_to_fork = 1;
	else
		asked_to_end = 1;
}

static void fork_if_asked(void)
{
	if (!asked_to_fork)
		return;
	asked_to_fork = 0;
	printf("fork took %lu\n", fork_us());
}

/* What one end must know of the other. */
struct end {
	uint32_t reading, exchanging, rkey;
	uint64_t address;
};

static struct end ours, theirs;
static struct ibv_comp_channel *channel;
static struct ibv_cq *reading_cq, *exchanging_cq;
static struct ibv_qp *reading, *exchanging;
static unsigned char message[2][MESSAGE];
static struct ibv_mr *message_mr;

/* So many bytes of addresses that all show one small file. */
static void *map_repeatedly(size_t length)
{
	int file = memfd_create("turns", MFD_CLOEXEC);
	char *all =
		mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED || ftruncate(file, FILE_LENGTH))
		fail("reserve memory");
	for (size_t at = 0; at < length; at += FILE_LENGTH)
		if (mmap(all + at, FILE_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			 file, at % FILE_LENGTH) == MAP_FAILED)
			fail("map memory");
	close(file);
	return all;
}

static struct ibv_mr *region(size_t length, const char *node)
{
	struct ibv_mr *mr =
		node ? ibv_reg_dmabuf_mr(pd, 0, length, 0, export_buffer(node, length), EVERYTHING)
		     : ibv_reg_mr(pd, map_repeatedly(length), length, EVERYTHING);
	if (!mr)
		fail("register memory");
	return mr;
}

static void make_queues(void)
{
	/* as programs have them */
	ack_timeout = 14;
	retries = rnr_retries = 7;
	channel = ibv_create_comp_channel(context);
	reading_cq = new_cq(64);
	exchanging_cq = ibv_create_cq(context, 64, NULL, channel, 0);
	message_mr = ibv_reg_mr(pd, message, sizeof(message), LOCAL);
	if (!exchanging_cq || !message_mr)
		fail("completion queue and memory for messages");
	reading = new_qp(pd, reading_cq, IBV_QPT_RC);
	exchanging = new_qp(pd, exchanging_cq, IBV_QPT_RC);
	ours.reading = reading->qp_num;
	ours.exchanging = exchanging->qp_num;
}

static void receive_message(void) { receive(exchanging, 0, message[0], MESSAGE, message_mr->lkey); }

static void send_message(int last)
{
	struct ibv_sge sge = { (uintptr_t)message[1], MESSAGE, message_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = last
	};
	post(exchanging, &wr);
}

static int meet(int (*join)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "\0turns" };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
	    join(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 6))
		fail("meet at the socket");
	return fd;
}

/* Tells the other end of ours and connects to it; both are connected afterwards. */
static void introduce(int peer)
{
	char ready = 0;
	if (write(peer, &ours, sizeof(ours)) != sizeof(ours) ||
	    recv(peer, &theirs, sizeof(theirs), MSG_WAITALL) != sizeof(theirs))
		fail("learn of the other end");
	connect_to(reading, theirs.reading);
	connect_to(exchanging, theirs.exchanging);
	receive_message();
	if (write(peer, &ready, 1) != 1 || recv(peer, &ready, 1, MSG_WAITALL) != 1)
		fail("wait for the other end");
	close(peer);
}

static void sleep_until_completion(void)
{
	struct ibv_cq *cq;
	void *nothing;
	if (ibv_get_cq_event(channel, &cq, &nothing))
		fail("wait for a completion");
	ibv_ack_cq_events(cq, 1);
}

/* Sends messages back until the last. */
static void echo(int sleeps)
{
	struct ibv_wc wc;
	for (;;) {
		fork_if_asked();
		if (sleeps && ibv_req_notify_cq(exchanging_cq, 0))
			fail("ask for an event");
		int n;
		while ((n = ibv_poll_cq(exchanging_cq, 1, &wc)) == 1) {
			if (wc.status != IBV_WC_SUCCESS)
				fail(ibv_wc_status_str(wc.status));
			if (!(wc.opcode & IBV_WC_RECV))
				continue;
			receive_message();
			send_message((int)wc.imm_data);
			if (wc.imm_data == GOOD_END)
				return;
		}
		if (n == 0 && sleeps)
			sleep_until_completion();
	}
}

static void serve(int sleeps, size_t length, const char *node)
{
	struct ibv_mr *mr = region(length, node);
	ours.rkey = mr->rkey;
	ours.address = node ? 0 : (uintptr_t)mr->addr;
	int listener = meet(bind);
	if (listen(listener, 1))
		fail("listen");
	printf("serves\n");
	introduce(accept(listener, NULL, NULL));
	echo(sleeps);
	/* the last message has left when it has completed */
	struct ibv_wc wc;
	wait_for(exchanging_cq, &wc, 10);
}

static void post_read(struct ibv_mr *local, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)local->addr, length, local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_READ,
				  .wr.rdma = { theirs.address, theirs.rkey } };
	post(reading, &wr);
}

/* Whether a message came back; another goes out then. */
static int exchanged(void)
{
	struct ibv_wc wc;
	if (ibv_poll_cq(exchanging_cq, 1, &wc) != 1)
		return 0;
	if (wc.status != IBV_WC_SUCCESS)
		fail(ibv_wc_status_str(wc.status));
	if (!(wc.opcode & IBV_WC_RECV))
		return 0;
	if (wc.imm_data == GOOD_END)
		return -1;
	receive_message();
	send_message(asked_to_end ? GOOD_END : 0);
	return 1;
}

static void ask(size_t length)
{
	struct ibv_mr *local = region(length, NULL);
	introduce(meet(connect));
	printf("reads\n");
	for (int i = 0; i < READS; i++)
		post_read(local, length);
	send_message(0);
	unsigned long done = 0, exchanges = 0, before = 0;
	double latest = seconds(), longest = 0;
	int failed = 0, came;
	while ((came = exchanged()) >= 0) {
		if (came) {
			double now = seconds();
			longest = now - latest > longest ? now - latest : longest;
			latest = now;
			if (++exchanges % LINE == 0)
				printf("exchanges %lu\n", exchanges);
		}
		fork_if_asked();
		struct ibv_wc wc;
		if (failed || ibv_poll_cq(reading_cq, 1, &wc) != 1)
			continue;
		if (wc.status == IBV_WC_SUCCESS) {
			printf("read %lu exchanges %lu\n", ++done, exchanges - before);
			post_read(local, length);
		} else {
			failed = 1;
			printf("ends %s exchanges %lu\n", ibv_wc_status_str(wc.status),
			       exchanges - before);
		}
		before = exchanges;
	}
	printf("longest gap %lu\n", (unsigned long)(longest * 1e6));
	printf("good end\n");
}

int main(int argc, char **argv)
{
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_signal);
	open_first_device();
	make_queues();
	if ((argc == 4 || argc == 5) && !strcmp(argv[1], "serve"))
		serve(!strcmp(argv[2], "sleep"), strtoul(argv[3], NULL, 0),
		      argc == 5 ? argv[4] : NULL);
	else if (argc == 3 && !strcmp(argv[1], "ask"))
		ask(strtoul(argv[2], NULL, 0));
	else
		fail("arguments");
	return 0;
}
