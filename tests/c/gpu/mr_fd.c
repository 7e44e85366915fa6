/*
 * Regions over a descriptor, registered and registered anew. argv[1] is a GPU's node; argv[2] says
 * whether the device offers re-registration: `both` or `reg`.
 */
#include "gpu.h"

#include "../../crates/verbs/include/peerdma/mr_fd.h"

#include <unistd.h>

enum {
	LENGTH = 1 << 16,
	HALF = LENGTH / 2,
	PAGE = 4096,
	NONE = IBV_MR_FD_TYPE_NONE,
	DMABUF = IBV_MR_FD_TYPE_DMABUF
};
enum {
	TRANSLATION = IBV_REREG_MR_CHANGE_TRANSLATION,
	ACCESS = IBV_REREG_MR_CHANGE_ACCESS,
	PD = IBV_REREG_MR_CHANGE_PD
};
#define REG "RFC 2020 ib_uverbs_reg_mr_fd"
#define REREG "RFC 2020 ib_uverbs_rereg_mr_fd; enum ibv_rereg_mr_err_code"

static struct pair pair;
static unsigned char *host;
static struct ibv_mr *host_mr;

/* Writes `byte` to the first byte of a region. */
static void put(struct ibv_mr *mr, uint64_t iova, unsigned char byte, enum ibv_wc_status want,
		const char *what)
{
	host[0] = byte;
	struct ibv_sge sge = { (uintptr_t)host, 1, host_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = byte,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { iova, mr->rkey } };
	post(pair.a, &wr);
	completes("rdma", pair.a_cq, byte, want, "%s", what);
}

static void wrong_registrations(int fd, int pipe_end)
{
	const struct {
		uint64_t start, length, iova;
		int type, fd, access, want;
		const char *what;
	} rows_of[] = {
		{ 0, LENGTH, 1, DMABUF, fd, EVERYTHING, EINVAL,
		  "start and iova differ inside a page" },
		{ 0, LENGTH, 0, DMABUF, fd, IBV_ACCESS_REMOTE_WRITE, EINVAL,
		  "remote write without local write" },
		{ 0, LENGTH, 0, DMABUF, fd, IBV_ACCESS_MW_BIND, EINVAL,
		  "an access that dma-bufs do not take" },
		{ 0, LENGTH, 0, 7, fd, EVERYTHING, EINVAL, "an unknown type of descriptor" },
		{ 0, LENGTH, 0, DMABUF, -1, EVERYTHING, EBADF, "no descriptor" },
		{ 0, LENGTH, 0, DMABUF, pipe_end, EVERYTHING, EINVAL, "no dma-buf" },
		{ 0, LENGTH + 1, 0, DMABUF, fd, EVERYTHING, EINVAL, "beyond its end" },
		{ -PAGE, 2 * PAGE, 0, DMABUF, fd, EVERYTHING, EINVAL, "a range that wraps" },
		{ 0, PAGE, 0, NONE, -1, EVERYTHING, EFAULT, "address 0 of the program" },
	};
	for (size_t i = 0; i < sizeof(rows_of) / sizeof(*rows_of); i++)
		row(REG, rows_of[i].want,
		    POINTER(ibv_dereg_mr,
			    ibv_reg_mr_fd(pd, rows_of[i].start, rows_of[i].length, rows_of[i].iova,
					  rows_of[i].type, rows_of[i].fd, rows_of[i].access)),
		    "%s", rows_of[i].what);
}

static void wrong_reregistrations(struct ibv_mr *mr, int fd)
{
	const struct {
		int flags, code, want;
		uint64_t start, length, iova;
		int type, fd, access;
		const char *what;
	} rows_of[] = {
		{ 0, IBV_REREG_MR_ERR_CMD, EINVAL, 0, 0, 0, NONE, -1, 0, "nothing to change" },
		{ 8, IBV_REREG_MR_ERR_CMD, EOPNOTSUPP, 0, 0, 0, NONE, -1, 0, "an unknown change" },
		{ PD, IBV_REREG_MR_ERR_INPUT, EINVAL, 0, 0, 0, NONE, -1, 0,
		  "a domain that is none" },
		{ TRANSLATION, IBV_REREG_MR_ERR_INPUT, EINVAL, 0, 0, 0, DMABUF, fd, 0,
		  "no length" },
		{ TRANSLATION, IBV_REREG_MR_ERR_INPUT, EINVAL, 0, PAGE, 0, DMABUF, fd, LOCAL,
		  "access without its flag" },
		{ TRANSLATION, IBV_REREG_MR_ERR_CMD, EINVAL, 0, PAGE, 1, DMABUF, fd, 0,
		  "start and iova differ inside a page" },
		{ TRANSLATION, IBV_REREG_MR_ERR_CMD, EINVAL, 0, PAGE, 0, 7, fd, 0,
		  "an unknown type of descriptor" },
		{ TRANSLATION, IBV_REREG_MR_ERR_CMD, EBADF, 0, PAGE, 0, DMABUF, -1, 0,
		  "no descriptor" },
		{ TRANSLATION, IBV_REREG_MR_ERR_CMD, EINVAL, 0, LENGTH + 1, 0, DMABUF, fd, 0,
		  "beyond the end" },
		{ ACCESS, IBV_REREG_MR_ERR_CMD, EINVAL, 0, 0, 0, NONE, -1, IBV_ACCESS_MW_BIND,
		  "an access that dma-bufs do not take" },
	};
	for (size_t i = 0; i < sizeof(rows_of) / sizeof(*rows_of); i++) {
		errno = 0;
		int code = ibv_rereg_mr_fd(mr, rows_of[i].flags, NULL, rows_of[i].start,
					   rows_of[i].length, rows_of[i].iova, rows_of[i].type,
					   rows_of[i].fd, rows_of[i].access);
		int found = errno;
		equal(REREG, -rows_of[i].code, -code, "%s, the code", rows_of[i].what);
		row(REREG, rows_of[i].want, found, "%s", rows_of[i].what);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("arguments");
	open_first_device();
	int both = !strcmp(argv[2], "both");
	uint64_t commands = ibv_mr_fd_commands(context);
	equal(REG, 1ull << 41 | (both ? 1ull << 42 : 0), commands, "the command mask");
	int gpu = open_gpu(argv[1]), fds[2], pipes[2];
	unsigned char *seen[2];
	for (int i = 0; i < 2; i++) {
		uint32_t handle = new_buffer(gpu, LENGTH);
		seen[i] = map_buffer(gpu, handle, LENGTH);
		struct prime_handle prime = { .handle = handle, .flags = O_CLOEXEC | O_RDWR };
		if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
			fail("export it");
		fds[i] = prime.fd;
	}
	if (pipe(pipes))
		fail("pipe");
	wrong_registrations(fds[0], pipes[0]);
	host = aligned_alloc(PAGE, LENGTH);
	memset(host, 0, LENGTH);
	host_mr = ibv_reg_mr_fd(pd, (uintptr_t)host, LENGTH, (uintptr_t)host, NONE, -1, LOCAL);
	struct ibv_mr *mr = ibv_reg_mr_fd(pd, HALF, HALF, 0x10000, DMABUF, fds[0], EVERYTHING);
	if (!host_mr || !mr)
		fail("register memory by descriptor and by none");
	equal("ibv_reg_dmabuf_mr(3)", HALF, (uintptr_t)mr->addr, "the address shown is the offset");
	pair = new_pair(IBV_QPT_RC);
	put(mr, 0x10000, 1, IBV_WC_SUCCESS, "a write by the descriptor");
	equal("rdma", 1, seen[0][HALF], "where it must be");
	if (!both) {
		errno = 0;
		int code = ibv_rereg_mr_fd(mr, TRANSLATION, NULL, 0, LENGTH, 0, DMABUF, fds[1], 0);
		equal(REREG, -IBV_REREG_MR_ERR_INPUT, -code, "what the mask lacks is refused");
		row(REREG, EOPNOTSUPP, errno, "and says why");
		return finish();
	}
	wrong_reregistrations(mr, fds[1]);
	put(mr, 0x10000, 2, IBV_WC_SUCCESS, "errors leave the region as it was");
	uint32_t key = mr->rkey;
	equal(REREG, 0,
	      ibv_rereg_mr_fd(mr, TRANSLATION, NULL, 0, LENGTH, 0x20000, DMABUF, fds[1], 0),
	      "to another buffer");
	equal(REREG, key, mr->rkey, "under the same key");
	equal(REREG, LENGTH, mr->length, "with its length");
	put(mr, 0x20000, 3, IBV_WC_SUCCESS, "a write to the other buffer");
	equal("rdma", 3, seen[1][0], "which has it");
	equal("rdma", 2, seen[0][HALF], "and the first has not");
	unsigned char *other = aligned_alloc(PAGE, LENGTH);
	memset(other, 0, LENGTH);
	equal(REREG, 0,
	      ibv_rereg_mr_fd(mr, TRANSLATION, NULL, (uintptr_t)other, LENGTH, 0, NONE, -1, 0),
	      "to host memory");
	put(mr, 0, 4, IBV_WC_SUCCESS, "a write to host memory");
	equal("rdma", 4, other[0], "which has it");
	equal("ibv_rereg_mr(3)", 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, EVERYTHING),
	      "plain rereg takes it now");
	equal(REREG, 0,
	      ibv_rereg_mr_fd(mr, TRANSLATION | ACCESS, NULL, 0, PAGE, 0, DMABUF, fds[0],
			      IBV_ACCESS_REMOTE_READ),
	      "back to a buffer, for reading");
	equal("ibv_rereg_mr(3)", 1, -ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL),
	      "plain rereg refuses a dma-buf");
	errno = 0;
	equal("ib_umem_check_rereg", 4,
	      -ibv_rereg_mr_fd(mr, ACCESS, NULL, 0, 0, 0, NONE, -1, EVERYTHING),
	      "to write what was registered for reading");
	row("ib_umem_check_rereg", EACCES, errno, "and says why");
	put(mr, 0, 5, IBV_WC_REM_ACCESS_ERR, "a write where only reading is allowed");
	row(REG, 0, ibv_dereg_mr(mr), "deregister it");
	return finish();
}
