/*
 * Queue pairs and address handles of wrong attributes, and wrong requests to queue pairs: the errno
 * that the manual page names, at once.
 */
#include "rows.h"

#define MAN(page) "man " page

static struct ibv_context *other;
static struct ibv_cq *cq;

static int qp_of(struct ibv_qp_init_attr init)
{
	if (!init.send_cq)
		init.send_cq = cq;
	if (!init.recv_cq)
		init.recv_cq = cq;
	if (!init.qp_type)
		init.qp_type = IBV_QPT_RC;
	return POINTER(ibv_destroy_qp, ibv_create_qp(pd, &init));
}

static void queue_pairs(void)
{
	const char *page = MAN("ibv_create_qp");
	unsigned wr = limits.max_qp_wr + 1, sge = limits.max_sge + 1;
	row(page, 0, qp_of((struct ibv_qp_init_attr){ .cap = { 1, 1, 1, 1, 0 } }),
	    "an ordinary QP");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .cap = { wr, 1, 1, 1, 0 } }),
	    "QP of too many sends");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .cap = { 1, wr, 1, 1, 0 } }),
	    "QP of too many receives");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .cap = { 1, 1, sge, 1, 0 } }),
	    "QP of too many send entries");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .cap = { 1, 1, 1, sge, 0 } }),
	    "QP of too many receive entries");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .cap = { 1, 1, 1, 1, 1 << 20 } }),
	    "QP of too many inline bytes");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .cap = { -1, -1, -1, -1, -1 } }),
	    "QP of 2^32-1 everything");
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .qp_type = 77 }), "QP of type 77");
	row(page, EOPNOTSUPP,
	    qp_of((struct ibv_qp_init_attr){ .qp_type = IBV_QPT_DRIVER, .cap = { 1, 1, 1, 1, 0 } }),
	    "driver QP");
	struct ibv_qp_init_attr none = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &none)), "QP without CQs");
	none.send_cq = cq;
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &none)),
	    "QP without a receive CQ");
	struct ibv_cq *foreign = ibv_create_cq(other, 4, NULL, NULL, 0);
	row(page, EINVAL, qp_of((struct ibv_qp_init_attr){ .send_cq = foreign }),
	    "QP with the CQ of another context");
	ibv_destroy_cq(foreign);
	page = MAN("ibv_create_qp_ex");
	struct ibv_qp_init_attr_ex wide = { .send_cq = cq,
					    .recv_cq = cq,
					    .qp_type = IBV_QPT_RC,
					    .pd = pd,
					    .comp_mask = IBV_QP_INIT_ATTR_PD |
							 IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = 1ull << 40,
					    .cap = { 1, 1, 1, 1, 0 } };
	row(page, EOPNOTSUPP, POINTER(ibv_destroy_qp, ibv_create_qp_ex(context, &wide)),
	    "QP with unknown send operations");
	wide.send_ops_flags = IBV_QP_EX_WITH_TSO;
	row(page, EOPNOTSUPP, POINTER(ibv_destroy_qp, ibv_create_qp_ex(context, &wide)),
	    "QP with TSO");
	wide.qp_type = IBV_QPT_UD;
	wide.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	row(page, EOPNOTSUPP, POINTER(ibv_destroy_qp, ibv_create_qp_ex(context, &wide)),
	    "UD QP with RDMA WRITE");
	wide.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	wide.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	row(page, EOPNOTSUPP, POINTER(ibv_destroy_qp, ibv_create_qp_ex(context, &wide)),
	    "QP with a creation flag");
	wide.comp_mask = 0;
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp_ex(context, &wide)),
	    "extended QP without a PD");
}

static int ah_of(struct ibv_ah_attr attr)
{
	return POINTER(ibv_destroy_ah, ibv_create_ah(pd, &attr));
}

static void address_handles(void)
{
	const char *page = MAN("ibv_create_ah");
	struct ibv_port_attr port;
	ibv_query_port(context, 1, &port);
	struct ibv_ah_attr good = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 }
	};
	struct ibv_ah_attr attr = good;
	row(page, 0, ah_of(good), "an ordinary AH");
	attr.is_global = 0;
	row(page, EINVAL, ah_of(attr), "AH without a GRH");
	attr = good;
	attr.port_num = 0;
	row(page, EINVAL, ah_of(attr), "AH on port 0");
	attr.port_num = 2;
	row(page, EINVAL, ah_of(attr), "AH on port 2");
	attr = good;
	attr.grh.sgid_index = port.gid_tbl_len - 1;
	row(page, EINVAL, ah_of(attr), "AH with an empty GID index");
	attr.grh.sgid_index = 255;
	row(page, EINVAL, ah_of(attr), "AH with a GID index behind the table");
	attr = good;
	memset(&attr.grh.dgid, 0, sizeof(attr.grh.dgid));
	row(page, EINVAL, ah_of(attr), "AH to GID 0");
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { .version_tclass_flow = htobe32(6u << 28) };
	page = MAN("ibv_init_ah_from_wc");
	equal(page, 1, ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr) != 0,
	      "AH attributes from a GRH to nobody here");
	equal(page, 1, ibv_init_ah_from_wc(context, 2, &wc, &grh, &attr) != 0,
	      "AH attributes from a GRH on port 2");
}

/*
 * Posts a chain of three with a wrong request in the middle: the first is posted, bad_wr is the
 * second.
 */
static void bad_middle(struct ibv_qp *qp, const char *what, struct ibv_send_wr middle)
{
	struct ibv_send_wr last = { .opcode = IBV_WR_SEND }, *bad = NULL;
	middle.next = &last;
	struct ibv_send_wr first = {
		.wr_id = 5, .next = &middle, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	};
	row(MAN("ibv_post_send"), EINVAL, ibv_post_send(qp, &first, &bad), "post %s", what);
	verdict(bad == &middle, "bad_wr is that request",
		bad == &first ? "the one before" : "another", "it", MAN("ibv_post_send"));
	struct ibv_wc wc;
	while (wait_for(qp->send_cq, &wc, 0.01))
		;
}

static void posting(void)
{
	const char *page = MAN("ibv_post_send");
	char *memory = aligned_alloc(4096, 1 << 16);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1 << 16, EVERYTHING);
	struct ibv_sge sges[64];
	for (int i = 0; i < 64; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 1,
				    .opcode = IBV_WR_SEND,
				    .sg_list = sges,
				    .num_sge = 1 },
			   *bad;
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = sges, .num_sge = 1 },
			   *bad_receive = NULL;
	/* A lost peer: requests stay in the queue until the QP is destroyed. */
	struct ibv_cq *own = new_cq(64);
	struct ibv_qp *qp = new_qp(pd, own, IBV_QPT_RC), *peer = new_qp(pd, own, IBV_QPT_RC);
	row(page, EINVAL, ibv_post_send(qp, &send, &bad), "post a send in RESET");
	row(MAN("ibv_post_recv"), EINVAL, ibv_post_recv(qp, &receive, &bad_receive),
	    "post a receive in RESET");
	must_change(qp, IBV_QPS_INIT, 0);
	row(page, EINVAL, ibv_post_send(qp, &send, &bad), "post a send in INIT");
	must_change(qp, IBV_QPS_RTR, peer->qp_num);
	row(page, EINVAL, ibv_post_send(qp, &send, &bad), "post a send in RTR");
	struct ibv_qp_attr slow;
	int mask = attributes(IBV_QPT_RC, IBV_QPS_RTS, 0, &slow);
	slow.timeout = 0;
	if (ibv_modify_qp(qp, &slow, mask))
		fail("RTS without a timeout");
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	ibv_query_qp(qp, &attr, IBV_QP_CAP, &init);
	struct ibv_send_wr wrong = send;
	wrong.num_sge = init.cap.max_send_sge + 1;
	bad_middle(qp, "a send with an entry too many", wrong);
	wrong.num_sge = -1;
	bad_middle(qp, "a send with -1 entries", wrong);
	wrong = send;
	wrong.opcode = 99;
	bad_middle(qp, "operation 99", wrong);
	wrong.opcode = IBV_WR_TSO;
	bad_middle(qp, "TSO", wrong);
	ibv_destroy_qp(qp);
	qp = new_qp(pd, own, IBV_QPT_RC);
	must_change(qp, IBV_QPS_INIT, 0);
	must_change(qp, IBV_QPS_RTR, peer->qp_num);
	if (ibv_modify_qp(qp, &slow, mask))
		fail("RTS without a timeout");
	sges[0].length = init.cap.max_inline_data + 1;
	wrong = send;
	wrong.send_flags = IBV_SEND_INLINE;
	bad_middle(qp, "too many inline bytes", wrong);
	sges[0].length = 16;
	wrong.opcode = IBV_WR_RDMA_READ;
	bad_middle(qp, "an inline READ", wrong);
	wrong = send;
	wrong.send_flags = 1 << 20;
	bad_middle(qp, "an unknown flag", wrong);
	ibv_destroy_qp(qp);
	qp = new_qp(pd, own, IBV_QPT_RC);
	must_change(qp, IBV_QPS_INIT, 0);
	must_change(qp, IBV_QPS_RTR, peer->qp_num);
	if (ibv_modify_qp(qp, &slow, mask))
		fail("RTS without a timeout");
	ibv_query_qp(qp, &attr, IBV_QP_CAP, &init);
	unsigned posted = 0;
	while (posted <= init.cap.max_send_wr && (errno = ibv_post_send(qp, &send, &bad)) == 0)
		posted++;
	row(page, ENOMEM, errno, "post a send into a full queue");
	holds(page, bad == &send && posted == init.cap.max_send_wr,
	      "the send queue takes as many as it says");
	receive.num_sge = init.cap.max_recv_sge + 1;
	page = MAN("ibv_post_recv");
	row(page, EINVAL, ibv_post_recv(qp, &receive, &bad_receive),
	    "post a receive with an entry too many");
	holds(page, bad_receive == &receive, "bad_wr is that receive");
	receive.num_sge = 1;
	for (posted = 0; posted <= init.cap.max_recv_wr &&
			 (errno = ibv_post_recv(qp, &receive, &bad_receive)) == 0;)
		posted++;
	row(page, ENOMEM, errno, "post a receive into a full queue");
	holds(page, posted == init.cap.max_recv_wr, "the receive queue takes as many as it says");
	ibv_destroy_qp(qp);
	qp = new_qp(pd, own, IBV_QPT_UC);
	connect_to(qp, peer->qp_num);
	wrong = send;
	wrong.opcode = IBV_WR_RDMA_READ;
	bad_middle(qp, "a READ on UC", wrong);
	wrong.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	bad_middle(qp, "an atomic on UC", wrong);
	ibv_destroy_qp(qp);
	ibv_destroy_qp(peer);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(own);
	free(memory);
}

/* A datagram longer than the port's MTU is not sent, and that is no error (IBA C10-93.1.1). */
static void datagrams_beyond_the_mtu(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_send_wr send,
				     struct ibv_sge *sge)
{
	static char room[40 + 16];
	struct ibv_mr *mr = ibv_reg_mr(pd, room, sizeof(room), LOCAL);
	struct ibv_port_attr port;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	if (!mr || ibv_query_port(context, 1, &port))
		fail("the port's MTU");
	const uint32_t lengths[] = { (128u << port.active_mtu) + 1, 4097, 16 };
	send.send_flags = IBV_SEND_SIGNALED;
	receive(qp, 9, room, sizeof(room), mr->lkey);
	for (int i = 0; i < 3; i++) {
		sge->length = lengths[i];
		send.wr_id = i;
		row("IBA C10-93.1.1", 0, ibv_post_send(qp, &send, &bad),
		    "post a datagram of %u bytes", lengths[i]);
	}
	unsigned sent = 0, received = 0;
	for (int i = 0; i < 4; i++) {
		if (!wait_for(cq, &wc, 10) || wc.status)
			fail("a datagram's completion");
		if (wc.opcode == IBV_WC_RECV)
			received += wc.byte_len;
		else
			sent++;
	}
	equal("IBA C10-93.1.1", 3, sent, "datagrams completed");
	equal("IBA C10-93.1.1", 40 + 16, received, "bytes of the one that arrived");
	ibv_dereg_mr(mr);
}

static void posting_datagrams(void)
{
	const char *page = MAN("ibv_post_send");
	char *memory = aligned_alloc(4096, 1 << 16);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1 << 16, EVERYTHING);
	struct ibv_cq *own = new_cq(16);
	struct ibv_qp *qp = new_qp(pd, own, IBV_QPT_UD);
	struct ibv_ah *ah = own_ah();
	struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;
	connect_to(qp, 0);
	row(page, EINVAL, ibv_post_send(qp, &send, &bad), "post a datagram without an AH");
	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = qp->qp_num;
	send.wr.ud.remote_qkey = QKEY;
	datagrams_beyond_the_mtu(qp, own, send, &sge);
	send.opcode = IBV_WR_RDMA_WRITE;
	row(page, EINVAL, ibv_post_send(qp, &send, &bad), "post a WRITE on UD");
	send.opcode = IBV_WR_RDMA_READ;
	row(page, EINVAL, ibv_post_send(qp, &send, &bad), "post a READ on UD");
	ibv_destroy_qp(qp);
	ibv_destroy_ah(ah);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(own);
	free(memory);
}

/*
 * No options of a vendor for connections, as rxe: librdmacm asks, and goes on at exactly this
 * errno.
 */
static void connection_options(void)
{
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	struct ibv_ece ece = { .vendor_id = 0 };
	row(MAN("ibv_query_ece"), EOPNOTSUPP, ibv_query_ece(qp, &ece), "query ECE");
	row(MAN("ibv_set_ece"), EOPNOTSUPP, ibv_set_ece(qp, &ece), "set no ECE");
	ece = (struct ibv_ece){ .vendor_id = 0x15b3, .options = 1 };
	row(MAN("ibv_set_ece"), EOPNOTSUPP, ibv_set_ece(qp, &ece), "set another vendor's ECE");
	ibv_destroy_qp(qp);
}

int main(void)
{
	open_first_device();
	other = ibv_open_device(context->device);
	cq = new_cq(64);
	if (!other)
		fail("a second context");
	queue_pairs();
	address_handles();
	posting();
	posting_datagrams();
	connection_options();
	ibv_destroy_cq(cq);
	row(MAN("ibv_alloc_pd"), 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(other);
	ibv_close_device(context);
	return finish();
}
