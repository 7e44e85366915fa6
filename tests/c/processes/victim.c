/*
 * A program for tools/hostile.py to send to: it shows its queue pairs on standard output, one line
 *
 *   target NAME TYPE QPN PSN RKEY ADDRESS LENGTH
 *
 * each, and a line `address IP`. It moves and checks data over a busy pair until the file in its
 * argument appears, and now and then makes a prey anew. Then it checks that
 *  - the busy pair never failed and every byte was right,
 *  - the quiet queue pairs, at whose exact PSN nothing acceptable was aimed, work as if nothing had
 * been sent,
 *  - the prey, at which acceptable forgeries were aimed, works again after a reset, its requests
 * completed once,
 *  - nothing was written outside the memory that the prey's key opens.
 *
 *   victim STOP-FILE [6]      6: over the first IPv6 address
 */
#include "rows.h"
#include <arpa/inet.h>
#include <unistd.h>

enum {
	CHUNK = 32 << 10,
	PREY = 24,
	QUIET = 3,
	PSN = 77,
	RECEIVES = 4,
	REQUESTS = 4,
	PATIENCE = 60,
	CLOSED = 0x5a
};

static const enum ibv_qp_type quiet_types[QUIET] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
static const char *const quiet_names[QUIET] = { "quiet-rc", "quiet-uc", "quiet-ud" };

/* Busy and quiet pairs use the first part, the prey's key opens the second, nobody's key the third.
 */
static char *memory;
static struct ibv_mr *mr, *open_mr;
static struct pair busy, quiet[QUIET];

/*
 * A prey receives (`a`, odd ones send as well, to a peer that is silent) and has its own completion
 * queue.
 */
static struct pair prey[PREY];

static char *open_memory(void) { return memory + BUFFER; }
static char *closed_memory(void) { return memory + 2 * BUFFER; }

static void show(const char *name, const char *type, struct ibv_qp *qp)
{
	printf("target %s %s %u %d %u %lu %d\n", name, type, qp->qp_num, PSN, open_mr->rkey,
	       (long)open_memory(), BUFFER);
}

/* One WRITE and one SEND over a pair, both checked. Gives whether all was right. */
static int exchange(struct pair *pair, unsigned number)
{
	char *from = memory, *to = memory + BUFFER / 2;
	struct ibv_sge sge = { (uintptr_t)from, CHUNK, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)to, mr->rkey } };
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int right;
	memset(from, number, CHUNK);
	memset(to, ~number, 2 * CHUNK);
	receive(pair->b, 2, to + CHUNK, CHUNK, mr->lkey);
	post(pair->a, &wr);
	wr.opcode = IBV_WR_SEND;
	post(pair->a, &wr);
	for (int i = 0; i < 2; i++)
		if (!wait_for(pair->a_cq, &wc, PATIENCE) || wc.status != IBV_WC_SUCCESS) {
			printf("exchange %u: %s\n", number, ibv_wc_status_str(wc.status));
			return 0;
		}
	right = wait_for(pair->b_cq, &wc, PATIENCE) && wc.status == IBV_WC_SUCCESS &&
		wc.byte_len == CHUNK;
	return right && !memcmp(from, to, CHUNK) && !memcmp(from, to + CHUNK, CHUNK);
}

/*
 * One SEND with immediate data; small, so that it fits a datagram. A datagram goes again where none
 * arrives: what is left of the flood may fill the socket still, and there is one receive for it.
 */
static void deliver(struct pair *pair, const char *name)
{
	struct ibv_ah *ah = NULL;
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 5,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = 0x77 };
	if (pair->a->qp_type == IBV_QPT_UD) {
		ah = own_ah();
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = pair->b->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	memset(memory, 0x3c, 64);
	post(pair->a, &wr);
	completes("peers of others", pair->a_cq, 5, IBV_WC_SUCCESS, "%s sends", name);
	/* The receive that waited all the time must hold this message, not a hostile one. */
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	int arrived = wait_for(pair->b_cq, &wc, ah ? 0.5 : 10);
	for (int again = 0; ah && !arrived && again < 20; again++) {
		post(pair->a, &wr);
		completes("peers of others", pair->a_cq, 5, IBV_WC_SUCCESS, "%s sends", name);
		arrived = wait_for(pair->b_cq, &wc, 0.5);
	}
	int came = arrived && wc.status == IBV_WC_SUCCESS && wc.wr_id == 6;
	unsigned grh = pair->a->qp_type == IBV_QPT_UD ? 40 : 0;
	equal("peers of others", 1, came, "%s receives, in its first receive", name);
	equal("peers of others", 64 + grh, wc.byte_len, "%s receives as many bytes as were sent",
	      name);
	holds("peers of others", wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x77,
	      "its immediate data");
	holds("peers of others", !memcmp(memory + BUFFER / 4 + grh, memory, 64), "its bytes");
	equal("peers of others", IBV_QPS_RTS, state_of(pair->b), "%s stands in RTS", name);
	if (ah)
		ibv_destroy_ah(ah);
}

static int asks(int i) { return prey[i].a->qp_type == IBV_QPT_RC && i % 2; }

/*
 * Gives a fresh prey its receives and, if it asks, requests that wait for answers which only a
 * forger gives.
 */
static void arm(int i)
{
	struct ibv_qp *qp = prey[i].a;
	for (int r = 0; r < RECEIVES; r++)
		receive(qp, r, open_memory(), 4096, open_mr->lkey);
	if (!asks(i))
		return;
	struct ibv_qp_attr attr = { .timeout = 0, .qp_state = IBV_QPS_RTS };
	must_change(prey[i].b, IBV_QPS_RESET, 0);
	must_change(qp, IBV_QPS_SQD, 0);
	if (ibv_modify_qp(qp, &attr, IBV_QP_TIMEOUT) || ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		fail("a QP without ACK timeout");
	struct ibv_sge sge = { (uintptr_t)open_memory(), 8192, open_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .wr.rdma = { (uintptr_t)open_memory(), open_mr->rkey } };
	for (int w = 0; w < REQUESTS; w++) {
		wr.wr_id = RECEIVES + w;
		wr.opcode = w % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		post(qp, &wr);
	}
}

static void set_up(void)
{
	char name[20];
	memory = aligned_alloc(4096, 3 * BUFFER);
	memset(closed_memory(), CLOSED, BUFFER);
	mr = ibv_reg_mr(pd, memory, BUFFER, EVERYTHING);
	open_mr = ibv_reg_mr(pd, open_memory(), BUFFER, EVERYTHING);
	/* Registered, but with no right for anyone else. */
	if (!mr || !open_mr || !ibv_reg_mr(pd, closed_memory(), BUFFER, LOCAL))
		fail("registrations");
	busy = new_pair(IBV_QPT_RC);
	for (int i = 0; i < QUIET; i++) {
		quiet[i] = new_pair(quiet_types[i]);
		receive(quiet[i].b, 6, memory + BUFFER / 4, 4096, mr->lkey);
		show(quiet_names[i], quiet_names[i] + 6, quiet[i].b);
	}
	for (int i = 0; i < PREY; i++) {
		enum ibv_qp_type type = i % 8 == 6   ? IBV_QPT_UC
					: i % 8 == 7 ? IBV_QPT_UD
						     : IBV_QPT_RC;
		prey[i] = new_pair(type);
		arm(i);
		snprintf(name, sizeof(name), "%s-%d", asks(i) ? "asking" : "prey", i);
		show(name, type == IBV_QPT_RC ? "rc" : type == IBV_QPT_UC ? "uc" : "ud", prey[i].a);
	}
	char address[INET6_ADDRSTRLEN];
	int ip4 = IN6_IS_ADDR_V4MAPPED((struct in6_addr *)&gid);
	inet_ntop(ip4 ? AF_INET : AF_INET6, gid.raw + (ip4 ? 12 : 0), address, sizeof(address));
	printf("address %s\nready\n", address);
}

/* From any state to RTS. A forgery may end a QP that is in RTR already; then it is one more time.
 */
static void reconnect(struct ibv_qp *qp, uint32_t peer)
{
	do {
		must_change(qp, IBV_QPS_RESET, peer);
		must_change(qp, IBV_QPS_INIT, peer);
		must_change(qp, IBV_QPS_RTR, peer);
	} while (change(qp, IBV_QPS_RTS, peer) && state_of(qp) == IBV_QPS_ERR);
}

/*
 * Ends a prey, whatever it lived through: each of its requests must have completed once. Then makes
 * it anew.
 */
static unsigned revive(int i)
{
	struct ibv_wc wc;
	unsigned seen[RECEIVES + REQUESTS] = { 0 }, wrong_count = 0;
	if (state_of(prey[i].a) != IBV_QPS_ERR)
		must_change(prey[i].a, IBV_QPS_ERR, 0);
	while (ibv_poll_cq(prey[i].a_cq, 1, &wc) == 1)
		wc.wr_id < RECEIVES + REQUESTS ? seen[wc.wr_id]++ : wrong_count++;
	for (int r = 0; r < RECEIVES + REQUESTS; r++)
		wrong_count += seen[r] != (r < RECEIVES || asks(i));
	reconnect(prey[i].a, prey[i].b->qp_num);
	reconnect(prey[i].b, prey[i].a->qp_num);
	return wrong_count;
}

int main(int argc, char **argv)
{
	unsigned rounds = 0, right = 0, unequal = 0;
	if (argc < 2)
		return 2;
	open_first_device();
	while (argc > 2 && IN6_IS_ADDR_V4MAPPED((struct in6_addr *)&gid))
		if (ibv_query_gid(context, 1, ++gid_index, &gid))
			fail("an IPv6 address");
	/* A flood of packets makes others get lost; that alone must end nothing. */
	ack_timeout = 16;
	retries = 7;
	set_up();
	while (access(argv[1], F_OK) && right == rounds) {
		right += exchange(&busy, rounds);
		unequal += revive(rounds % PREY);
		arm(rounds % PREY);
		rounds++;
	}
	/* What was sent last is still on its way. */
	for (int i = 0; i < 50 && right == rounds; i++)
		right += exchange(&busy, rounds++);
	printf("%u rounds\n", rounds);
	equal("IBA 10.3.1.7", 0, unequal, "every request of a prey completed once");
	equal("peers of others", rounds, right, "the busy pair moved all its data");
	equal("peers of others", IBV_QPS_RTS, state_of(busy.a), "the busy pair stands in RTS");
	for (int i = 0; i < QUIET; i++)
		deliver(&quiet[i], quiet_names[i]);
	for (int i = 0; i < PREY; i++) {
		equal("IBA 10.3.1.7", 0, revive(i), "prey %d: every request completed once", i);
		/* The quiet pairs showed UC and UD. */
		if (prey[i].a->qp_type == IBV_QPT_RC)
			holds("peers of others", exchange(&prey[i], i), "after a reset it works");
	}
	int same = 1;
	for (int i = 0; i < BUFFER; i++)
		same &= closed_memory()[i] == CLOSED;
	holds("peers of others", same, "memory that no key opens is untouched");
	ibv_close_device(context);
	return finish();
}
