/*
 * Datagrams to more processes of this host than get a ring of their own: all arrive, those beyond
 * by the wire, and where peers have ended, or nobody names them any more, there is room again.
 *
 *   datagram_rings PEERS
 */
#include "neighbours.h"

#include <poll.h>

enum {
	/* MAX_DATAGRAM_RINGS of hca/adapter/attach.rs. */
	RINGS = 64,
	PEERS = 200,
	ENDED = 10,
	FREED = 5,
	ROUNDS = 3,
	GRH = 40,
	LENGTH = 64,
};

static char *memory;
static struct ibv_mr *mr;

static void new_datagram_end(struct ibv_comp_channel *channel)
{
	cq = ibv_create_cq(context, 64, NULL, channel, 0);
	if (!cq)
		fail("completion queue");
	qp = new_qp(pd, cq, IBV_QPT_UD);
	connect_to(qp, 0);
	memory = memory_of(4096);
	mr = registered(memory, 4096);
}

/* A peer that sleeps until a datagram comes, and says what was in it. */
static void peer(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	if (!channel)
		fail("channel");
	new_datagram_end(channel);
	struct pollfd files[2] = { { channel->fd, POLLIN, 0 }, { other, POLLIN, 0 } };
	tell_number(qp->qp_num);
	for (;;) {
		struct ibv_cq *said;
		struct ibv_wc wc;
		void *unused;
		receive(qp, 1, memory, GRH + LENGTH, mr->lkey);
		if (ibv_req_notify_cq(cq, 0))
			fail("arm");
		tell_number(0);
		while (!ibv_poll_cq(cq, 1, &wc)) {
			if (poll(files, 2, PATIENCE * 1000) <= 0)
				fail("a datagram");
			/* The other end has closed its own. */
			if (files[1].revents)
				return;
			if (ibv_get_cq_event(channel, &said, &unused) || ibv_req_notify_cq(cq, 0))
				fail("event");
			ibv_ack_cq_events(said, 1);
		}
		unsigned value;
		memcpy(&value, memory + GRH, sizeof(value));
		tell_number(wc.status == IBV_WC_SUCCESS ? value : 0);
	}
}

static struct peer {
	pid_t pid;
	int socket;
	uint32_t qpn;
	struct ibv_ah *ah;
	int lives, by_ring;
} peers[PEERS];

static void begin_peer(struct peer *peer)
{
	peer->pid = start("peer");
	peer->socket = other;
	peer->qpn = hear_number();
	peer->lives = 1;
}

static void end_peer(struct peer *peer, int with_handle)
{
	kill(peer->pid, SIGKILL);
	other = peer->socket;
	end_of(peer->pid);
	peer->lives = 0;
	if (with_handle && ibv_destroy_ah(peer->ah))
		fail("destroy an address handle");
}

/* Sends a datagram; gives whether it arrived, and whether by a ring. */
static int arrives(struct peer *peer, int *by_ring)
{
	static unsigned value;
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.ud = { peer->ah, peer->qpn, QKEY } };
	struct ibv_wc wc;
	other = peer->socket;
	value++;
	hear_number();
	memcpy(memory, &value, sizeof(value));
	unsigned long before = device_counter("ring_pkts");
	post(qp, &wr);
	if (!wait_for(cq, &wc, PATIENCE) || wc.status != IBV_WC_SUCCESS)
		return 0;
	int same = hear_number() == value;
	*by_ring = device_counter("ring_pkts") != before;
	return same;
}

/* Datagrams that did not arrive. */
static int lost;

/* Sends some; to one that gets a ring until one passes through it, or `end` has come. */
static void settle(struct peer *peer, int gets_ring, double end)
{
	int by_ring = 0;
	peer->by_ring = 0;
	for (int i = 0; i < ROUNDS || (gets_ring && !peer->by_ring && seconds() < end); i++) {
		lost += !arrives(peer, &by_ring);
		peer->by_ring |= by_ring;
	}
}

static void settle_all(int from, int until, int most_by_ring)
{
	double end = seconds() + PATIENCE / 2;
	for (int i = from; i < until; i++) {
		if (!peers[i].ah)
			peers[i].ah = own_ah();
		if (!peers[i].ah)
			fail("address handle");
		if (peers[i].lives)
			settle(&peers[i], most_by_ring-- > 0, end);
	}
}

static int by_ring(int from, int until)
{
	int count = 0;
	for (int i = from; i < until; i++)
		count += peers[i].lives && peers[i].by_ring;
	return count;
}

int main(int argc, char **argv)
{
	const char *source = "design D7";
	if (argc > 2 && !strcmp(argv[1], "as")) {
		open_device();
		peer();
		return 0;
	}
	int count = argc > 1 ? atoi(argv[1]) : RINGS + 6;
	if (count < RINGS + 1 || count + ENDED > PEERS)
		return 2;
	open_device();
	new_datagram_end(NULL);
	for (int i = 0; i < count; i++)
		begin_peer(&peers[i]);
	settle_all(0, count, RINGS);
	equal(source, RINGS, by_ring(0, RINGS), "peers that are sent to by a ring");
	equal(source, 0, by_ring(RINGS, count), "peers beyond them that are");

	/* Half of the handles stay, though nobody is there any more. */
	for (int i = 0; i < ENDED; i++)
		end_peer(&peers[i], i % 2);
	for (int i = count; i < count + ENDED; i++)
		begin_peer(&peers[i]);
	settle_all(count, count + ENDED, ENDED);
	equal(source, ENDED, by_ring(count, count + ENDED), "new peers that are, for as many ended");
	settle_all(ENDED, RINGS, RINGS);
	equal(source, RINGS - ENDED, by_ring(ENDED, RINGS), "others that still are");

	/* A handle that goes takes its ring with it. */
	for (int i = ENDED; i < ENDED + FREED; i++) {
		if (ibv_destroy_ah(peers[i].ah))
			fail("destroy an address handle");
		peers[i].ah = NULL;
	}
	for (int i = RINGS; i < count; i++) {
		if (ibv_destroy_ah(peers[i].ah))
			fail("destroy an address handle");
		peers[i].ah = NULL;
	}
	settle_all(RINGS, count, FREED);
	equal(source, FREED, by_ring(RINGS, RINGS + FREED), "peers beyond, by new handles");
	equal(source, 0, by_ring(RINGS + FREED, count), "peers beyond those");
	settle_all(ENDED, ENDED + FREED, 0);
	equal(source, 0, by_ring(ENDED, ENDED + FREED), "peers whose handles are new");
	equal("IBA 9.8.3", 0, lost, "datagrams that did not arrive");
	for (int i = 0; i < count + ENDED; i++)
		if (peers[i].lives)
			end_peer(&peers[i], 0);
	return finish();
}
