/*
 * NETLINK_RDMA sockets: ways to ask beside libmnl's, wrong arguments, an answer that does not fit
 * the receive buffer at once, and that sockets of other protocols are the kernel's, errno included.
 */
#include "rows.h"
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <linux/genetlink.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct request {
	struct nlmsghdr head;
	struct nlattr attribute;
	uint32_t index;
};

static struct request request_of(int command, int flags, uint32_t index)
{
	return (struct request){ { sizeof(struct request), RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command),
				   NLM_F_REQUEST | flags, 5, 0 },
				 { 8, RDMA_NLDEV_ATTR_DEV_INDEX },
				 index };
}

static const struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };

static int opened(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
	if (fd < 0)
		fail("a NETLINK_RDMA socket");
	return fd;
}

/* Kind of the next message on `fd`, 0 if there is none; an error's number is in `*error`. */
static int next_kind(int fd, int *error)
{
	static char buffer[8192];
	ssize_t length = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
	struct nlmsghdr *head = (void *)buffer;
	if (length < (ssize_t)sizeof(*head))
		return 0;
	*error =
		head->nlmsg_type == NLMSG_ERROR ? -((struct nlmsgerr *)NLMSG_DATA(head))->error : 0;
	return head->nlmsg_type;
}

static void ways_to_ask(void)
{
	const char *page = "netlink(7)";
	int fd = opened(), copy = dup(fd), error;
	int get = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET);
	struct request ask = request_of(RDMA_NLDEV_CMD_GET, 0, 0);
	struct iovec parts[] = { { &ask, 7 }, { (char *)&ask + 7, sizeof(ask) - 7 } };
	struct msghdr unnamed = { .msg_iov = parts, .msg_iovlen = 2 };
	struct msghdr named = { (void *)&kernel, sizeof(kernel), parts, 2 };
	equal(page, sizeof(ask), sendmsg(fd, &unnamed, 0),
	      "sendmsg without an address, before it is bound");
	equal(page, get, next_kind(fd, &error), "it is answered");
	equal(page, sizeof(ask), sendmsg(fd, &named, 0), "sendmsg to the kernel");
	equal(page, get, next_kind(fd, &error), "it is answered");
	equal(page, sizeof(ask), send(fd, &ask, sizeof(ask), 0), "send");
	equal(page, get, next_kind(fd, &error), "it is answered");
	equal(page, sizeof(ask), write(fd, &ask, sizeof(ask)), "write");
	equal(page, get, next_kind(fd, &error), "it is answered");
	equal(page, sizeof(ask),
	      sendto(copy, &ask, sizeof(ask), 0, (void *)&kernel, sizeof(kernel)),
	      "sendto on a copy");
	equal(page, get, next_kind(fd, &error), "it is answered");
	pid_t child = fork();
	if (!child) {
		int own = opened(), wrong_error;
		sendto(own, &ask, sizeof(ask), 0, (void *)&kernel, sizeof(kernel));
		_exit(next_kind(own, &wrong_error) == get ? 0 : 1);
	}
	int status = 1;
	waitpid(child, &status, 0);
	equal("fork(2)", 0, status, "a forked child asks by a socket of its own");
	close(copy);
	close(fd);
}

static void wrong_arguments(void)
{
	int fd = opened(), error = 0;
	errno = 0;
	holds("netlink(7)",
	      sendto(fd, (void *)8, 64, 0, (void *)&kernel, sizeof(kernel)) < 0 && errno == EFAULT,
	      "no memory is EFAULT");
	static char large[1 << 17];
	errno = 0;
	holds("netlink(7)",
	      sendto(fd, large, sizeof(large), 0, (void *)&kernel, sizeof(kernel)) < 0 &&
		      errno == EMSGSIZE,
	      "too long is EMSGSIZE");
	struct request wrong = request_of(RDMA_NLDEV_CMD_GET, 0, 99);
	equal("netlink(7)", sizeof(wrong), write(fd, &wrong, sizeof(wrong)),
	      "a device that is not there");
	equal("kernel nldev.c", NLMSG_ERROR, next_kind(fd, &error), "it is answered by an error");
	equal("kernel nldev.c", EINVAL, error, "which is EINVAL");
	close(fd);
}

static void small_buffer(void)
{
	enum { QPS = 3000 };
	static struct ibv_qp *qps[QPS];
	struct ibv_cq *cq = new_cq(16);
	for (int i = 0; i < QPS; i++)
		qps[i] = new_qp(pd, cq, IBV_QPT_RC);
	int fd = opened(), small = 1, error, kind, tables = 0;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	struct request ask = request_of(RDMA_NLDEV_CMD_RES_QP_GET, NLM_F_DUMP, 0);
	equal("netlink(7)", sizeof(ask), write(fd, &ask, sizeof(ask)),
	      "ask for 3000 queue pairs with a small receive buffer");
	do {
		struct pollfd readable = { fd, POLLIN };
		if (poll(&readable, 1, 10000) != 1)
			break;
		kind = next_kind(fd, &error);
		tables += kind != NLMSG_DONE;
	} while (kind && kind != NLMSG_DONE);
	holds("netlink(7)", kind == NLMSG_DONE && tables > 30, "all come as they are read");
	close(fd);
	for (int i = 0; i < QPS; i++)
		ibv_destroy_qp(qps[i]);
	ibv_destroy_cq(cq);
}

static void others(void)
{
	int fd = opened();
	close(fd);
	int again = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	struct {
		struct nlmsghdr head;
		struct {
			unsigned char family;
		} body;
	} ask = { { sizeof(ask), 18 /* RTM_GETLINK */, NLM_F_REQUEST | NLM_F_DUMP, 1, 0 }, { 0 } };
	int error;
	equal("rtnetlink(7)", sizeof(ask), write(again, &ask, sizeof(ask)),
	      "a route socket of the same number");
	equal("rtnetlink(7)", 16 /* RTM_NEWLINK */, next_kind(again, &error),
	      "the kernel answers it");
	close(again);
}

/* The kernel's errno for a socket that the C library does not make, 0 if there is one. */
static int kernels_errno(int kind, int protocol)
{
	int fd = syscall(SYS_socket, AF_NETLINK, kind, protocol);
	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static int our_errno(int kind, int protocol)
{
	int fd = socket(AF_NETLINK, kind, protocol);
	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

/* A socket of another protocol is the kernel's, and so is its errno where there is none. */
static void as_the_kernel(const char *where, int want)
{
	static const struct {
		const char *name;
		int number;
	} protocols[] = { { "NETLINK_ROUTE", NETLINK_ROUTE },
			  { "NETLINK_GENERIC", NETLINK_GENERIC } };
	for (unsigned i = 0; i < 2; i++) {
		int kind = SOCK_RAW | SOCK_CLOEXEC, number = protocols[i].number;
		equal("netlink(7)", want, kernels_errno(kind, number), "the kernel's %s %s",
		      protocols[i].name, where);
		equal("netlink(7)", want, our_errno(kind, number), "socket(%s) %s",
		      protocols[i].name, where);
	}
	equal("netlink(7)", want, our_errno(SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA),
	      "socket(NETLINK_RDMA) %s", where);
}

static void made_as_the_kernels(void)
{
	as_the_kernel("is there", 0);
	equal("netlink(7)", kernels_errno(SOCK_RAW, 99), our_errno(SOCK_RAW, 99),
	      "a protocol that is none");
	equal("netlink(7)", kernels_errno(SOCK_STREAM, NETLINK_ROUTE),
	      our_errno(SOCK_STREAM, NETLINK_ROUTE), "a kind that is none");
	struct rlimit all, few;
	int next = dup(0);
	if (next < 0 || getrlimit(RLIMIT_NOFILE, &all))
		fail("a descriptor and their limit");
	close(next);
	few = (struct rlimit){ next, all.rlim_max };
	if (setrlimit(RLIMIT_NOFILE, &few))
		fail("a limit of descriptors");
	as_the_kernel("where no descriptor is left", EMFILE);
	if (setrlimit(RLIMIT_NOFILE, &all))
		fail("the limit as it was");
	as_the_kernel("once there are some again", 0);
}

/* libnl's way: bound, its own address asked for, and the kernel asked for a family. */
static void generic(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC), error;
	struct sockaddr_nl own = { .nl_family = AF_NETLINK };
	socklen_t length = sizeof(own);
	equal("bind(2)", 0, bind(fd, (void *)&own, sizeof(own)), "bind a generic socket");
	equal("getsockname(2)", 0, getsockname(fd, (void *)&own, &length), "ask for its address");
	struct {
		struct nlmsghdr head;
		struct genlmsghdr generic;
		struct nlattr attribute;
		uint16_t id, zero;
	} ask = { { sizeof(ask), GENL_ID_CTRL, NLM_F_REQUEST, 1, 0 },
		  { CTRL_CMD_GETFAMILY, 1, 0 },
		  { 6, CTRL_ATTR_FAMILY_ID },
		  GENL_ID_CTRL,
		  0 };
	equal("netlink(7)", sizeof(ask),
	      sendto(fd, &ask, sizeof(ask), 0, (void *)&kernel, sizeof(kernel)),
	      "ask for the controller's family");
	equal("kernel genetlink.c", GENL_ID_CTRL, next_kind(fd, &error), "the kernel answers it");
	close(fd);
}

int main(void)
{
	open_first_device();
	ways_to_ask();
	wrong_arguments();
	small_buffer();
	others();
	made_as_the_kernels();
	generic();
	return finish();
}
