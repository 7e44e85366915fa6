/*
 * The QP state machine from outside: every change of state that is not allowed, every attribute
 * that a change requires left away, every attribute that it does not allow given, and values out of
 * range. The table is that of Linux `ib_modify_qp_is_ok`; ibv_modify_qp(3) has its required column.
 */
#include "rows.h"

static const char *source = "man ibv_modify_qp, Linux qp_state_table";
static struct ibv_cq *cq;
static uint32_t peer;

enum { TYPES = 3, STATES = 7 };
static const enum ibv_qp_type types[TYPES] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
static const char *const type_names[] = { [IBV_QPT_RC] = "RC",
					  [IBV_QPT_UC] = "UC",
					  [IBV_QPT_UD] = "UD" };
static const char *const state_names[STATES] = {
	"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"
};

/* Changes of state that exist, by old state, as bits of new ones. */
static const unsigned allowed[STATES] = {
	[IBV_QPS_RESET] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_INIT,
	[IBV_QPS_INIT] =
		1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR | 1 << IBV_QPS_INIT | 1 << IBV_QPS_RTR,
	[IBV_QPS_RTR] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR | 1 << IBV_QPS_RTS,
	[IBV_QPS_RTS] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR | 1 << IBV_QPS_RTS | 1 << IBV_QPS_SQD,
	[IBV_QPS_SQD] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR | 1 << IBV_QPS_RTS | 1 << IBV_QPS_SQD,
	[IBV_QPS_SQE] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR | 1 << IBV_QPS_RTS,
	[IBV_QPS_ERR] = 1 << IBV_QPS_RESET | 1 << IBV_QPS_ERR,
};

/*
 * Attributes that a change requires. Only changes into INIT from RESET, RTR and into RTS from RTR
 * require any.
 */
static int required(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	struct ibv_qp_attr unused;
	if ((from == IBV_QPS_RESET && to == IBV_QPS_INIT) ||
	    (from == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
	    (from == IBV_QPS_RTR && to == IBV_QPS_RTS))
		return attributes(type, to, peer, &unused) & ~IBV_QP_STATE;
	return 0;
}

/* Attributes that a change allows beyond those. */
static int optional(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	int rc = type == IBV_QPT_RC, ud = type == IBV_QPT_UD;
	int rts =
		IBV_QP_CUR_STATE |
		(ud ? IBV_QP_QKEY : IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE) |
		(rc ? IBV_QP_MIN_RNR_TIMER : 0);
	if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
		return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
		return IBV_QP_PKEY_INDEX |
		       (ud ? IBV_QP_QKEY : IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS);
	if (from == IBV_QPS_SQE && to == IBV_QPS_RTS)
		return IBV_QP_CUR_STATE | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	if (to == IBV_QPS_RTS)
		return rts;
	if (from == IBV_QPS_RTS && to == IBV_QPS_SQD)
		return IBV_QP_EN_SQD_ASYNC_NOTIFY;
	if (from == IBV_QPS_SQD && to == IBV_QPS_SQD) {
		if (ud)
			return IBV_QP_PKEY_INDEX | IBV_QP_QKEY;
		return IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
		       IBV_QP_PATH_MIG_STATE |
		       (rc ? IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
					IBV_QP_MIN_RNR_TIMER
			   : 0);
	}
	return 0;
}

/* A QP of a type in a state. */
static struct ibv_qp *qp_in(enum ibv_qp_type type, enum ibv_qp_state state)
{
	struct ibv_qp *qp = new_qp(pd, cq, type);
	if (state == IBV_QPS_RESET)
		return qp;
	must_change(qp, IBV_QPS_INIT, peer);
	if (state == IBV_QPS_INIT)
		return qp;
	if (state == IBV_QPS_ERR) {
		must_change(qp, IBV_QPS_ERR, peer);
		return qp;
	}
	must_change(qp, IBV_QPS_RTR, peer);
	if (state == IBV_QPS_RTR)
		return qp;
	must_change(qp, IBV_QPS_RTS, peer);
	if (state == IBV_QPS_SQD)
		must_change(qp, IBV_QPS_SQD, peer);
	if (state != IBV_QPS_SQE)
		return qp;
	/* Only a failed request leads there: one whose key is none. */
	struct ibv_ah *ah = own_ah();
	struct ibv_sge sge = { 0, 8, 0 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .wr_id = 4 },
			   *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 1;
	errno = ibv_post_send(qp, &wr, &bad);
	if (!ah || errno)
		fail("a request with a wrong key");
	completes("IBA 10.3.1.6", cq, 4, IBV_WC_LOC_PROT_ERR, "%s: a request with a wrong key",
		  type_names[type]);
	equal("IBA 10.3.1.6", IBV_QPS_SQE, state_of(qp), "%s: it leads to SQE", type_names[type]);
	ibv_destroy_ah(ah);
	return qp;
}

static void try_change(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	const char *t = type_names[type], *f = state_names[from], *n = state_names[to];
	struct ibv_qp *qp = qp_in(type, from);
	struct ibv_qp_attr attr;
	if (!(allowed[from] & 1 << to)) {
		int mask = attributes(type, to, peer, &attr);
		row(source, EINVAL, ibv_modify_qp(qp, &attr, mask), "%s %s to %s", t, f, n);
		row(source, EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE), "%s %s to %s, bare", t,
		    f, n);
		equal(source, from, state_of(qp), "%s %s to %s leaves the state", t, f, n);
		ibv_destroy_qp(qp);
		return;
	}
	int needs = required(type, from, to), may = needs | optional(type, from, to) | IBV_QP_STATE;
	attributes(type, to, peer, &attr);
	for (int bit = 0; bit <= 20; bit++) {
		int name = 1 << bit;
		if (needs & name)
			row(source, EINVAL,
			    ibv_modify_qp(qp, &attr, IBV_QP_STATE | (needs & ~name)),
			    "%s %s to %s without attribute %#x", t, f, n, name);
		else if (!(may & name))
			row(source, EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | needs | name),
			    "%s %s to %s with attribute %#x", t, f, n, name);
	}
	row(source, EOPNOTSUPP, ibv_modify_qp(qp, &attr, IBV_QP_STATE | needs | 1 << 29),
	    "%s %s to %s with bit 29", t, f, n);
	equal(source, from, state_of(qp), "%s %s: nothing refused changed the state", t, f);
	row(source, 0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | needs), "%s %s to %s", t, f, n);
	equal(source, to, state_of(qp), "%s %s is %s then", t, f, n);
	ibv_destroy_qp(qp);
}

static void states(void)
{
	for (int t = 0; t < TYPES; t++)
		for (int from = 0; from < STATES; from++) {
			/* RC never enters SQE. */
			if (types[t] == IBV_QPT_RC && from == IBV_QPS_SQE)
				continue;
			for (int to = 0; to < STATES; to++)
				try_change(types[t], from, to);
		}
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RESET);
	struct ibv_qp_attr attr = { .qp_state = 7 };
	row(source, EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE), "change to state 7");
	attr.qp_state = -1;
	row(source, EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE), "change to state -1");
	ibv_destroy_qp(qp);
	qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	attr = (struct ibv_qp_attr){ .cur_qp_state = IBV_QPS_SQD, .qp_state = IBV_QPS_RTS };
	row(source, EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE),
	    "a wrong cur_qp_state");
	ibv_destroy_qp(qp);
}

/* A value out of range in an otherwise ordinary change. `member` is an lvalue in attr. */
#define WRONG_VALUE(from, to, member, value, what) \
	do { \
		struct ibv_qp *qp_ = qp_in(IBV_QPT_RC, from); \
		struct ibv_qp_attr attr; \
		int mask_ = attributes(IBV_QPT_RC, to, peer, &attr); \
		attr.member = value; \
		row("IBA 11.2.5.2, Linux core/verbs.c", EINVAL, ibv_modify_qp(qp_, &attr, mask_), \
		    what); \
		equal(source, from, state_of(qp_), what " leaves the state"); \
		ibv_destroy_qp(qp_); \
	} while (0)

static void values(void)
{
	struct ibv_port_attr port;
	ibv_query_port(context, 1, &port);
	WRONG_VALUE(IBV_QPS_RESET, IBV_QPS_INIT, port_num, 0, "port 0");
	WRONG_VALUE(IBV_QPS_RESET, IBV_QPS_INIT, port_num, 2, "port 2");
	WRONG_VALUE(IBV_QPS_RESET, IBV_QPS_INIT, pkey_index, 5, "P_Key index 5");
	WRONG_VALUE(IBV_QPS_RESET, IBV_QPS_INIT, pkey_index, 0xffff, "P_Key index 65535");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, path_mtu, 0, "path MTU 0");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, path_mtu, 6, "path MTU 6");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, path_mtu, 9, "path MTU 9");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, path_mtu, 1024, "path MTU in bytes");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.is_global, 0, "no GRH");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.port_num, 2, "a path over port 2");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.grh.sgid_index, port.gid_tbl_len - 1,
		    "an empty source GID");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.grh.sgid_index, 255,
		    "a source GID behind the table");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, ah_attr.grh.dgid, (union ibv_gid){ .raw = { 0 } },
		    "destination GID 0");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, max_dest_rd_atomic, limits.max_qp_rd_atom + 1,
		    "max_dest_rd_atomic too large");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, max_dest_rd_atomic, 255, "max_dest_rd_atomic 255");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, min_rnr_timer, 32, "min_rnr_timer 32");
	WRONG_VALUE(IBV_QPS_INIT, IBV_QPS_RTR, dest_qp_num, 1 << 24, "a QP number of 25 bits");
	WRONG_VALUE(IBV_QPS_RTR, IBV_QPS_RTS, max_rd_atomic, limits.max_qp_init_rd_atom + 1,
		    "max_rd_atomic too large");
	WRONG_VALUE(IBV_QPS_RTR, IBV_QPS_RTS, timeout, 32, "timeout 32");
	WRONG_VALUE(IBV_QPS_RTR, IBV_QPS_RTS, retry_cnt, 8, "retry_cnt 8");
	WRONG_VALUE(IBV_QPS_RTR, IBV_QPS_RTS, rnr_retry, 8, "rnr_retry 8");
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RESET);
	struct ibv_qp_attr attr;
	int mask = attributes(IBV_QPT_RC, IBV_QPS_INIT, peer, &attr);
	attr.qp_access_flags = ~0u;
	row("Linux core/uverbs_cmd.c", 0, ibv_modify_qp(qp, &attr, mask),
	    "every access right there is, and those there are not");
	ibv_destroy_qp(qp);
}

/*
 * Alternate paths (ib_core's _ib_modify_qp refuses them on RoCE), and the state of a QP without
 * one.
 */
static void migration(void)
{
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	must_change(qp, IBV_QPS_INIT, 0);
	struct ibv_qp_attr attr;
	int mask = attributes(IBV_QPT_RC, IBV_QPS_RTR, peer, &attr);
	attr.alt_ah_attr = attr.ah_attr;
	attr.alt_port_num = 1;
	attr.alt_timeout = 10;
	row("Linux core/verbs.c", EINVAL, ibv_modify_qp(qp, &attr, mask | IBV_QP_ALT_PATH),
	    "an alternate path");
	equal(source, IBV_QPS_INIT, state_of(qp), "an alternate path leaves the state");
	must_change(qp, IBV_QPS_RTR, peer);
	mask = attributes(IBV_QPT_RC, IBV_QPS_RTS, peer, &attr);
	static const enum ibv_mig_state wrong[] = { IBV_MIG_REARM, IBV_MIG_ARMED, 3, 0xffffffff };
	for (int i = 0; i < 4; i++) {
		attr.path_mig_state = wrong[i];
		row("IBA 17.2.8", EINVAL, ibv_modify_qp(qp, &attr, mask | IBV_QP_PATH_MIG_STATE),
		    "migration state %u without an alternate path", wrong[i]);
	}
	attr.path_mig_state = IBV_MIG_MIGRATED;
	row("IBA 17.2.8", 0, ibv_modify_qp(qp, &attr, mask | IBV_QP_PATH_MIG_STATE),
	    "migration state migrated");
	struct ibv_qp_init_attr init;
	ibv_query_qp(qp, &attr, ~0, &init);
	equal("ibv_query_qp(3)", IBV_MIG_MIGRATED, attr.path_mig_state, "the migration state");
	ibv_destroy_qp(qp);
}

/* ib_core cuts a PSN to 24 bits and goes on. */
static void long_psns(void)
{
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	must_change(qp, IBV_QPS_INIT, 0);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int mask = attributes(IBV_QPT_RC, IBV_QPS_RTR, peer, &attr);
	attr.rq_psn = 0xab123456;
	row("Linux core/verbs.c", 0, ibv_modify_qp(qp, &attr, mask), "a PSN of 32 bits");
	ibv_query_qp(qp, &attr, ~0, &init);
	equal("Linux core/verbs.c", 0x123456, attr.rq_psn, "its 24 bits");
	ibv_destroy_qp(qp);
}

int main(void)
{
	open_first_device();
	cq = new_cq(16);
	struct ibv_qp *other = new_qp(pd, cq, IBV_QPT_RC);
	peer = other->qp_num;
	states();
	values();
	migration();
	long_psns();
	ibv_destroy_qp(other);
	row("man ibv_destroy_cq", 0, ibv_destroy_cq(cq), "nothing uses the CQ");
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
