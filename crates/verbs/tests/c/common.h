/* What the test programs share: a failed check prints itself and makes the program fail. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, \
				errno); \
			failures++; \
		} \
	} while (0)

/* A verb that returns the error number. */
#define STATUS(call, wanted) \
	do { \
		int got_ = (call); \
		if (got_ != (wanted)) { \
			fprintf(stderr, "%s:%d: %s is %d, not %s\n", __FILE__, __LINE__, #call, \
				got_, #wanted); \
			failures++; \
		} \
	} while (0)

/* A verb that returns NULL and sets errno. */
#define REFUSED(call, wanted) \
	do { \
		errno = 0; \
		void *got_ = (void *)(call); \
		if (got_ || errno != (wanted)) { \
			fprintf(stderr, "%s:%d: %s is %p with errno %d, not %s\n", __FILE__, \
				__LINE__, #call, got_, errno, #wanted); \
			failures++; \
		} \
	} while (0)

/* A verb that returns -1 and sets errno. */
#define MINUS_ONE(call, wanted) \
	do { \
		errno = 0; \
		int got_ = (call); \
		if (got_ != -1 || errno != (wanted)) { \
			fprintf(stderr, "%s:%d: %s is %d with errno %d, not %s\n", __FILE__, \
				__LINE__, #call, got_, errno, #wanted); \
			failures++; \
		} \
	} while (0)

static inline struct ibv_context *open_context(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list ? ibv_open_device(list[0]) : NULL;

	if (!context) {
		perror("no device");
		exit(2);
	}
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_qp_init_attr basic_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 8,
			 .max_send_sge = 2,
			 .max_recv_sge = 2,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	return init;
}

/* Connects a QP to `peer` (which may be itself) at GID 0 and brings it to RTS. */
static inline int connect_qp(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 1,
		.timeout = 14,
		.retry_cnt = 3,
		.rnr_retry = 3,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } },
	};
	int failed;

	if (ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid))
		return errno;
	failed = ibv_modify_qp(
		qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (failed)
		return failed;
	attr.qp_state = IBV_QPS_RTR;
	failed = ibv_modify_qp(qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER);
	if (failed)
		return failed;
	attr.qp_state = IBV_QPS_RTS;
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(got == 1);
	return wc;
}

/* Posts one request of `opcode` over `length` bytes at `addr`. */
static inline int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, void *addr, uint32_t length,
		       struct ibv_mr *mr, void *remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)addr, length, mr ? mr->lkey : 0 };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad = NULL;
	int failed;

	wr.wr.rdma.remote_addr = (uintptr_t)remote;
	wr.wr.rdma.rkey = rkey;
	failed = ibv_post_send(qp, &wr, &bad);
	CHECK(!failed || bad == &wr);
	return failed;
}

static inline int post_receive(struct ibv_qp *qp, void *addr, uint32_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)addr, length, mr ? mr->lkey : 0 };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad = NULL;
	int failed = ibv_post_recv(qp, &wr, &bad);

	CHECK(!failed || bad == &wr);
	return failed;
}
