/*
 * Moves data by every operation between two devices and compares each byte: an ordinary verbs
 * program, built against the distribution's headers, that runs on the software HCA, on the kernel's
 * rxe or on hardware.
 *
 *   crosscheck -p PORT [-g GID-INDEX] [-t RC|UC|UD] [-m MTU-CODE]            one end waits
 *   crosscheck -p PORT [-g GID-INDEX] [-t RC|UC|UD] [-m MTU-CODE] ADDRESS    the other drives
 *
 * The driver tells the waiting end over TCP what to prepare and what to verify. Exit status 0 only
 * if all was right.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 4 << 20, GRH = 40, QKEY = 0x11111111 };

struct address {
	uint32_t qpn, psn, rkey, mtu;
	uint64_t va;
	union ibv_gid gid;
};

enum request { FILL, VERIFY, EXPECT, WORD, BYE };

struct message {
	uint32_t request, seed, length, imm;
	uint64_t word;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static unsigned char *buffer;
static struct address here, there;
static int tcp = -1;

static void fail(const char *what)
{
	fprintf(stderr, "crosscheck: %s (errno %d: %s)\n", what, errno, strerror(errno));
	exit(1);
}

static void whole(ssize_t (*io)(int, void *, size_t), void *data, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t n = io(tcp, (char *)data + done, length - done);
		if (n <= 0)
			fail("the other end is gone");
		done += n;
	}
}

static ssize_t put(int fd, void *data, size_t length) { return write(fd, data, length); }
static void say(void *data, size_t length) { whole(put, data, length); }
static void hear(void *data, size_t length) { whole(read, data, length); }

static unsigned char pattern(uint32_t seed, uint32_t at)
{
	uint32_t x = seed * 2654435761u + at * 40503u;
	return (x ^ x >> 13 ^ at) & 0xff;
}

static void fill(unsigned char *at, uint32_t seed, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		at[i] = pattern(seed, i);
}

static int differs(const unsigned char *at, uint32_t seed, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		if (at[i] != pattern(seed, i)) {
			fprintf(stderr, "crosscheck: byte %u of %u is %#x, not %#x\n", i, length,
				at[i], pattern(seed, i));
			return 1;
		}
	return 0;
}

static void completion(struct ibv_wc *wc, enum ibv_wc_opcode opcode, const char *what)
{
	int n;
	while ((n = ibv_poll_cq(cq, 1, wc)) == 0)
		;
	if (n < 0)
		fail("poll");
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "crosscheck: %s: %s\n", what, ibv_wc_status_str(wc->status));
		exit(1);
	}
	if (wc->opcode != opcode) {
		fprintf(stderr, "crosscheck: %s: completion of opcode %d\n", what, wc->opcode);
		exit(1);
	}
}

static void modify(struct ibv_qp_attr *attr, int mask, const char *what)
{
	errno = ibv_modify_qp(qp, attr, mask);
	if (errno)
		fail(what);
}

static void open_device(int gid_index, int mtu, enum ibv_qp_type type)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !list[0])
		fail("no device");
	context = ibv_open_device(list[0]);
	if (!context)
		fail("open");
	struct ibv_port_attr port;
	if (ibv_query_port(context, 1, &port))
		fail("query port");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	if (!pd || !cq || posix_memalign((void **)&buffer, 4096, BUFFER))
		fail("objects");
	memset(buffer, 0, BUFFER);
	mr = ibv_reg_mr(pd, buffer, BUFFER,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .qp_type = type,
					 .sq_sig_all = 1,
					 .cap = { 64, 64, 2, 2, 0 } };
	qp = ibv_create_qp(pd, &init);
	if (!mr || !qp)
		fail("registration or queue pair");
	here.qpn = qp->qp_num;
	here.psn = getpid() * 7919 & 0xffffff;
	here.rkey = mr->rkey;
	here.va = (uintptr_t)buffer;
	here.mtu = mtu && mtu < (int)port.active_mtu ? mtu : (int)port.active_mtu;
	if (ibv_query_gid(context, 1, gid_index, &here.gid))
		fail("query gid");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qkey = QKEY,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (type == IBV_QPT_RC)
		attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	modify(&attr,
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		       (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS),
	       "to INIT");
}

static void connect_qp(int gid_index, enum ibv_qp_type type)
{
	struct ibv_ah_attr path = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = there.gid, .sgid_index = gid_index, .hop_limit = 64 }
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .ah_attr = path,
				    .dest_qp_num = there.qpn,
				    .rq_psn = there.psn,
				    .max_dest_rd_atomic = 4,
				    .min_rnr_timer = 12,
				    .path_mtu = here.mtu < there.mtu ? here.mtu : there.mtu };
	int mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	modify(&attr, mask, "to RTR");
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = here.psn;
	attr.timeout = 18;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	modify(&attr, mask, "to RTS");
	if (type == IBV_QPT_UD && !(ah = ibv_create_ah(pd, &path)))
		fail("address handle");
}

static void receive(uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)buffer, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
	errno = ibv_post_recv(qp, &wr, &bad);
	if (errno)
		fail("post receive");
}

static void post(enum ibv_wr_opcode opcode, uint32_t at, uint32_t length, uint32_t imm,
		 uint64_t compare_add, uint64_t swap)
{
	/* Two entries that meet at an odd place. */
	uint32_t cut = length > 16 && opcode != IBV_WR_ATOMIC_CMP_AND_SWP &&
				       opcode != IBV_WR_ATOMIC_FETCH_AND_ADD
			       ? length / 3
			       : length;
	struct ibv_sge sge[2] = { { (uintptr_t)buffer + at, cut, mr->lkey },
				  { (uintptr_t)buffer + at + cut, length - cut, mr->lkey } };
	struct ibv_send_wr wr = { .wr_id = 9,
				  .sg_list = sge,
				  .num_sge = cut < length ? 2 : 1,
				  .opcode = opcode,
				  .imm_data = htonl(imm) },
			   *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = there.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = there.va;
		wr.wr.atomic.rkey = there.rkey;
		wr.wr.atomic.compare_add = compare_add;
		wr.wr.atomic.swap = swap;
	} else {
		wr.wr.rdma.remote_addr = there.va;
		wr.wr.rdma.rkey = there.rkey;
	}
	errno = ibv_post_send(qp, &wr, &bad);
	if (errno)
		fail("post send");
}

static struct message ask(enum request request, uint32_t seed, uint32_t length, uint32_t imm)
{
	struct message m = { request, seed, length, imm, 0 };
	say(&m, sizeof(m));
	hear(&m, sizeof(m));
	if (m.request != request)
		fail("the other end found a difference");
	return m;
}

static void wait_side(void)
{
	for (;;) {
		struct message m;
		struct ibv_wc wc;
		uint32_t grh = ah ? GRH : 0;
		hear(&m, sizeof(m));
		switch (m.request) {
		case FILL:
			fill(buffer, m.seed, m.length);
			break;
		case VERIFY:
			if (differs(buffer, m.seed, m.length))
				m.request = BYE;
			break;
		case EXPECT:
			memset(buffer, 0, m.length + grh);
			receive(m.length + grh);
			say(&m, sizeof(m));
			completion(&wc, m.word ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
				   "receive");
			hear(&m, sizeof(m));
			if (m.imm &&
			    (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != m.imm))
				m.request = BYE;
			if (!m.word && wc.byte_len != m.length + grh)
				m.request = BYE;
			if (differs(buffer + grh, m.seed, m.length))
				m.request = BYE;
			break;
		case WORD:
			memcpy(&m.word, buffer, 8);
			break;
		case BYE:
			say(&m, sizeof(m));
			return;
		}
		say(&m, sizeof(m));
		if (m.request == BYE)
			exit(1);
	}
}

static void send_checked(enum ibv_wr_opcode opcode, uint32_t seed, uint32_t length, uint32_t imm)
{
	struct ibv_wc wc;
	int write = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct message m = { EXPECT, seed, length, imm, write };
	say(&m, sizeof(m));
	hear(&m, sizeof(m));
	fill(buffer, seed, length);
	post(opcode, 0, length, imm, 0, 0);
	completion(&wc, write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND, "send");
	say(&m, sizeof(m));
	hear(&m, sizeof(m));
	if (m.request != EXPECT)
		fail("a message arrived changed");
}

static void drive(enum ibv_qp_type type)
{
	static const uint32_t sizes[] = { 0, 1, 8, 100, 255, 1024, 4096, 10001, 65536, 1000003 };
	struct ibv_wc wc;
	uint32_t seed = 1, moved = 0;
	uint32_t limit = type == IBV_QPT_UD ? 128u << here.mtu : BUFFER;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes) && sizes[i] <= limit;
	     i++, moved++) {
		uint32_t length = sizes[i];
		send_checked(IBV_WR_SEND, seed++, length, 0);
		send_checked(IBV_WR_SEND_WITH_IMM, seed++, length, 0xabcd0001 + i);
		if (type == IBV_QPT_UD)
			continue;
		send_checked(IBV_WR_RDMA_WRITE_WITH_IMM, seed++, length, 0x12340001 + i);
		if (type == IBV_QPT_UC)
			continue;
		fill(buffer, ++seed, length);
		post(IBV_WR_RDMA_WRITE, 0, length, 0, 0, 0);
		completion(&wc, IBV_WC_RDMA_WRITE, "write");
		ask(VERIFY, seed, length, 0);
		ask(FILL, ++seed, length, 0);
		memset(buffer, 0, length);
		post(IBV_WR_RDMA_READ, 0, length, 0, 0, 0);
		completion(&wc, IBV_WC_RDMA_READ, "read");
		if (differs(buffer, seed, length))
			exit(1);
	}
	if (type == IBV_QPT_RC) {
		uint64_t word, was = 0;
		ask(FILL, ++seed, 8, 0);
		for (int i = 0; i < 8; i++)
			((unsigned char *)&was)[i] = pattern(seed, i);
		for (int i = 1; i <= 20; i++) {
			post(IBV_WR_ATOMIC_FETCH_AND_ADD, 4096, 8, 0, 1000 + i, 0);
			completion(&wc, IBV_WC_FETCH_ADD, "fetch and add");
			memcpy(&word, buffer + 4096, 8);
			if (word != was)
				fail("fetch and add returned a wrong value");
			was += 1000 + i;
		}
		for (int i = 0; i < 20; i++) {
			int hit = i % 2;
			post(IBV_WR_ATOMIC_CMP_AND_SWP, 4096, 8, 0, hit ? was : was + 1, i);
			completion(&wc, IBV_WC_COMP_SWAP, "compare and swap");
			memcpy(&word, buffer + 4096, 8);
			if (word != was)
				fail("compare and swap returned a wrong value");
			if (hit)
				was = i;
		}
		if (ask(WORD, 0, 0, 0).word != was)
			fail("the word differs after atomics");
	}
	struct message m = { .request = BYE };
	say(&m, sizeof(m));
	hear(&m, sizeof(m));
	printf("crosscheck: all data right, %u sizes, seed %u\n", moved, seed);
}

static void meet(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_family = address ? AF_UNSPEC : AF_INET6,
				  .ai_socktype = SOCK_STREAM,
				  .ai_flags = address ? 0 : AI_PASSIVE },
			*found;
	if (getaddrinfo(address, port, &hints, &found))
		fail("address");
	int fd = socket(found->ai_family, SOCK_STREAM, 0), on = 1, off = 0;
	if (fd < 0)
		fail("socket");
	if (address) {
		if (connect(fd, found->ai_addr, found->ai_addrlen))
			fail("connect");
		tcp = fd;
		return;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1))
		fail("listen");
	tcp = accept(fd, NULL, NULL);
	if (tcp < 0)
		fail("accept");
}

int main(int argc, char **argv)
{
	const char *port = "18515";
	int option, gid_index = 0, mtu = 0;
	enum ibv_qp_type type = IBV_QPT_RC;
	while ((option = getopt(argc, argv, "p:g:t:m:")) != -1)
		switch (option) {
		case 'p':
			port = optarg;
			break;
		case 'g':
			gid_index = atoi(optarg);
			break;
		case 'm':
			mtu = atoi(optarg);
			break;
		case 't':
			type = !strcmp(optarg, "UC")   ? IBV_QPT_UC
			       : !strcmp(optarg, "UD") ? IBV_QPT_UD
						       : IBV_QPT_RC;
			break;
		default:
			return 2;
		}
	const char *address = optind < argc ? argv[optind] : NULL;
	setvbuf(stdout, NULL, _IONBF, 0);
	open_device(gid_index, mtu, type);
	meet(address, port);
	say(&here, sizeof(here));
	hear(&there, sizeof(there));
	connect_qp(gid_index, type);
	char ready = 1;
	say(&ready, 1);
	hear(&ready, 1);
	if (address)
		drive(type);
	else
		wait_side();
	ibv_destroy_qp(qp);
	if (ah)
		ibv_destroy_ah(ah);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
