/*
 * A device of 300 ports: which calls can name which, that each port is checked where it is named,
 * and that traffic leaves by the port it belongs to.
 *
 * phys_port_cnt has 8 bits and stands at 255; the extended count says how many there are.
 */
#include "rows.h"
#include <dlfcn.h>

enum { PORTS = 300 };

static void counts(void)
{
	equal("ibv_query_device(3)", 255, limits.phys_port_cnt, "the count of 8 bits");
	struct ibv_device_attr_ex wide;
	row("ibv_query_device_ex(3)", 0, ibv_query_device_ex(context, NULL, &wide),
	    "the extended query");
	equal("ibv_query_device_ex(3)", PORTS, wide.phys_port_cnt_ex, "the extended count");
	equal("ibv_query_device_ex(3)", 255, wide.orig_attr.phys_port_cnt,
	      "the count of 8 bits beside it");
}

static void queries(void)
{
	struct ibv_port_attr port;
	row("ibv_query_port(3)", EINVAL, ibv_query_port(context, 0, &port), "port 0");
	for (int number = 1; number <= 255; number += 127)
		row("ibv_query_port(3)", 0, ibv_query_port(context, number, &port), "port %d",
		    number);
	struct ibv_gid_entry entry;
	static const struct {
		uint32_t port;
		int want;
	} wide[] = { { 0, EINVAL },	    { 1, 0 },	    { 255, 0 }, { 256, 0 }, { PORTS, 0 },
		     { PORTS + 1, EINVAL }, { ~0u, EINVAL } };
	for (unsigned i = 0; i < sizeof(wide) / sizeof(wide[0]); i++)
		row("ibv_query_gid_ex(3)", wide[i].want,
		    ibv_query_gid_ex(context, wide[i].port, gid_index, &entry, 0), "GID of port %u",
		    wide[i].port);
	if (ibv_query_gid_ex(context, PORTS, gid_index, &entry, 0))
		fail("GID of the last port");
	equal("ibv_query_gid_ex(3)", PORTS, entry.port_num, "whose port it is");
	holds("ibv_query_gid_ex(3)", !memcmp(&entry.gid, &gid, sizeof(gid)), "the GID of its port");

	int (*speed)(struct ibv_context *, uint32_t, uint64_t *) =
		dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
	uint64_t units;
	if (!speed)
		fail("ibv_query_port_speed");
	row("ibv_query_port_speed(3)", 0, speed(context, PORTS, &units), "speed of port 300");
	row("ibv_query_port_speed(3)", EINVAL, speed(context, PORTS + 1, &units),
	    "speed of port 301");

	enum { MOST = PORTS * 256 };
	static struct ibv_gid_entry table[MOST];
	int one = 0, found = ibv_query_gid_table(context, table, MOST, 0);
	for (int i = 0; i < found; i++)
		one += table[i].port_num == 1;
	equal("ibv_query_gid_table(3)", one * PORTS, found, "entries of all ports");
	equal("ibv_query_gid_table(3)", PORTS, found > 0 ? table[found - 1].port_num : 0,
	      "the last one's port");
}

/* Changes `qp` to `next` with attributes for `port`, towards `peer`. */
static int step(struct ibv_qp *qp, enum ibv_qp_state next, uint32_t peer, int port)
{
	struct ibv_qp_attr attr;
	int mask = attributes(qp->qp_type, next, peer, &attr);
	attr.port_num = attr.ah_attr.port_num = port;
	return ibv_modify_qp(qp, &attr, mask);
}

static void connections(struct ibv_cq *cq)
{
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	row("ibv_modify_qp(3)", 0, step(qp, IBV_QPS_INIT, 0, 255), "a QP on port 255");
	row("Linux uverbs modify_qp", EINVAL, step(qp, IBV_QPS_RTR, qp->qp_num, 254),
	    "a path over port 254");
	row("ibv_modify_qp(3)", 0, step(qp, IBV_QPS_RTR, qp->qp_num, 255), "a path over port 255");
	row("ibv_modify_qp(3)", 0, step(qp, IBV_QPS_RTS, qp->qp_num, 255), "ready to send");
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	ibv_query_qp(qp, &attr, ~0, &init);
	equal("ibv_query_qp(3)", 255, attr.port_num, "the QP's port");
	equal("ibv_query_qp(3)", 255, attr.ah_attr.port_num, "the path's port");
	char byte = 7, landed = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, &landed, 1, LOCAL);
	receive(qp, 1, &landed, 1, mr->lkey);
	struct ibv_sge sge = { (uintptr_t)&byte, 1, 0 };
	struct ibv_send_wr wr = { .wr_id = 2,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_INLINE };
	post(qp, &wr);
	struct ibv_wc wc;
	for (int i = 0; i < 2; i++)
		if (!wait_for(cq, &wc, 10) || wc.status)
			fail("a message over port 255");
	equal("ibv_post_send(3)", 7, landed, "the message over port 255");
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
}

static struct ibv_ah *ah_on(int port)
{
	struct ibv_qp_attr attr;
	attributes(IBV_QPT_RC, IBV_QPS_RTR, 0, &attr);
	attr.ah_attr.port_num = port;
	return ibv_create_ah(pd, &attr.ah_attr);
}

static void datagrams(struct ibv_cq *cq)
{
	row("ibv_create_ah(3)", EINVAL, POINTER(ibv_destroy_ah, ah_on(0)),
	    "an address handle on port 0");
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_UD);
	if (step(qp, IBV_QPS_INIT, 0, 200) || step(qp, IBV_QPS_RTR, 0, 200) ||
	    step(qp, IBV_QPS_RTS, 0, 200))
		fail("a UD QP on port 200");
	struct ibv_ah *own = ah_on(200), *other = ah_on(201);
	if (!own || !other)
		fail("address handles");
	struct ibv_send_wr wr = { .wr_id = 1,
				  .opcode = IBV_WR_SEND,
				  .wr.ud = { other, qp->qp_num, QKEY } },
			   *bad;
	row("IBV_DEVICE_UD_AV_PORT_ENFORCE", EINVAL, ibv_post_send(qp, &wr, &bad),
	    "send by another port's handle");
	wr.wr.ud.ah = own;
	row("ibv_post_send(3)", 0, ibv_post_send(qp, &wr, &bad), "send by a handle of its port");
	completes("ibv_post_send(3)", cq, 1, IBV_WC_SUCCESS, "a datagram over port 200");
	ibv_destroy_qp(qp);
	ibv_destroy_ah(own);
	ibv_destroy_ah(other);
}

int main(void)
{
	open_first_device();
	counts();
	queries();
	struct ibv_cq *cq = new_cq(16);
	connections(cq);
	datagrams(cq);
	return finish();
}
