/*
 * Regions by way of the Data Direct function (mlx5dv_reg_dmabuf_mr(3)), loaded from libmlx5 as NCCL
 * loads it. argv[1] is a GPU's node, or /dev/udmabuf; argv[2] says what is expected: `works`,
 * `none` where the HCA has no function that it may use, `plain` where the device is no ConnectX,
 * `miswired`: what its keys reach is not the region, so only the first transfers are tried;
 * `unplug`: then "unplug" and "replug" are printed, and a line is read after each; `traffic`:
 * "moving" is printed, and the function has to go; or `move direct` and `move plain`: memory of the
 * GPU is moved, and the bytes a second printed.
 */
#include "gpu.h"

#include "../../crates/verbs/include/peerdma/mr_fd.h"

#include <dlfcn.h>
#include <linux/udmabuf.h>
#include <stdbool.h>
#include <unistd.h>

enum {
	LENGTH = 1 << 16,
	PAGE = 4096,
	IOVA = 0x40000,
	DIRECT = 1,
	RELAXED = IBV_ACCESS_RELAXED_ORDERING
};
#define REG "mlx5dv_reg_dmabuf_mr(3); mlx5_ib reg_user_mr_dmabuf_by_data_direct"
#define PATH "mlx5dv_get_data_direct_sysfs_path(3)"

static struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int);
static int (*sysfs_path)(struct ibv_context *, char *, size_t);
static bool (*is_supported)(struct ibv_device *);

static void *symbol(void *library, const char *name, const char *version)
{
	void *found = dlvsym(library, name, version);
	if (!found)
		fail(name);
	return found;
}

static void load(void)
{
	void *library = dlopen("libmlx5.so.1", RTLD_NOW);
	if (!library)
		fail("libmlx5");
	reg_dmabuf_mr = symbol(library, "mlx5dv_reg_dmabuf_mr", "MLX5_1.25");
	sysfs_path = symbol(library, "mlx5dv_get_data_direct_sysfs_path", "MLX5_1.25");
	is_supported = symbol(library, "mlx5dv_is_supported", "MLX5_1.8");
}

static struct pair pair;
static unsigned char *host, *seen;
static struct ibv_mr *host_mr;

/*
 * What a plain dma-buf gives: without on-demand paging the driver offers none
 * (mlx5_ib_dev_odp_ops).
 */
static int plainly(void)
{
	struct ibv_device_attr_ex all = { 0 };
	int has = !ibv_query_device_ex(context, NULL, &all) &&
		  all.odp_caps.general_caps & IBV_ODP_SUPPORT;
	return has ? 0 : EOPNOTSUPP;
}

static int registers(int fd, uint64_t offset, uint64_t length, uint64_t iova, int access,
		     int mlx5_access)
{
	return POINTER(ibv_dereg_mr,
		       reg_dmabuf_mr(pd, offset, length, iova, fd, access, mlx5_access));
}

static struct ibv_mr *registered(int fd, int access)
{
	struct ibv_mr *mr = reg_dmabuf_mr(pd, PAGE, LENGTH - PAGE, IOVA, fd, access, DIRECT);
	if (!mr)
		fail("register by Data Direct");
	return mr;
}

static void transfer(enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t iova, uint32_t length,
		     enum ibv_wc_status want, const char *what)
{
	static uint64_t id;
	struct pair own = want == IBV_WC_SUCCESS ? pair : new_pair(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)host, length, host_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = ++id,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { iova, rkey } };
	post(own.a, &wr);
	completes("rdma", own.a_cq, id, want, "%s", what);
	if (want != IBV_WC_SUCCESS)
		end_pair(own);
}

static void path_rows(void)
{
	char path[256] = "";
	row(PATH, 0, sysfs_path(context, path, sizeof(path)), "the path of the function");
	holds(PATH, !strncmp(path, "/devices/pci", 12), "lacks /sys");
	char whole[300], id[16] = "";
	snprintf(whole, sizeof(whole), "/sys%s/device", path);
	FILE *file = fopen(whole, "r");
	holds("/sys", file && fgets(id, sizeof(id), file) && !strcmp(id, "0x2100\n"),
	      "and is there, a ConnectX-8's");
	row(PATH, ENOSPC, sysfs_path(context, path, 5), "a buffer of 5 bytes");
	row(PATH, ENOSPC, sysfs_path(context, whole, strlen(path)),
	    "a buffer without room for the end");
	row(PATH, 0, sysfs_path(context, whole, strlen(path) + 1), "a buffer that just takes it");
}

static void wrong_registrations(int fd)
{
	int pipes[2];
	if (pipe(pipes))
		fail("pipe");
	const struct {
		uint64_t offset, length, iova;
		int fd, access, mlx5, want;
		const char *what;
	} rows_of[] = {
		{ 1, PAGE, 1, fd, EVERYTHING, DIRECT, EOPNOTSUPP, "an iova within a page" },
		{ 1, PAGE, 1, -1, EVERYTHING, DIRECT, EOPNOTSUPP,
		  "an iova within a page beats a bad descriptor" },
		{ 0, PAGE, 1, fd, EVERYTHING, DIRECT, EINVAL,
		  "offset and iova differ inside a page" },
		{ 0, PAGE, 0, fd, IBV_ACCESS_REMOTE_WRITE, DIRECT, EINVAL,
		  "remote write without local write" },
		{ 1, PAGE, 1, fd, IBV_ACCESS_ON_DEMAND, DIRECT, EINVAL,
		  "on demand, which no dma-buf takes" },
		{ 0, PAGE, 0, -1, EVERYTHING, DIRECT, EBADF, "no descriptor" },
		{ 0, PAGE, 0, pipes[0], EVERYTHING, DIRECT, EINVAL, "no dma-buf" },
		{ 0, LENGTH + 1, 0, fd, EVERYTHING, DIRECT, EINVAL, "beyond its end" },
		{ -PAGE, 2 * PAGE, 0, fd, EVERYTHING, DIRECT, EINVAL, "a range that wraps" },
		{ 0, PAGE, -PAGE, fd, EVERYTHING, DIRECT, EINVAL, "addresses that wrap" },
		{ 0, 0, 0, fd, EVERYTHING, DIRECT, EINVAL, "nothing" },
		{ 0, PAGE, 0, fd, EVERYTHING, 2, EINVAL, "an unknown flag" },
		{ 0, PAGE, 0, fd, EVERYTHING, 0, plainly(),
		  "without the flag it is a plain region" },
		{ 1, PAGE, 1, fd, EVERYTHING, 0, plainly(), "which takes any iova" },
	};
	for (size_t i = 0; i < sizeof(rows_of) / sizeof(*rows_of); i++)
		row(REG, rows_of[i].want,
		    registers(rows_of[i].fd, rows_of[i].offset, rows_of[i].length, rows_of[i].iova,
			      rows_of[i].access, rows_of[i].mlx5),
		    "%s", rows_of[i].what);
}

/* Registers it, writes to it and reads it. */
static struct ibv_mr *first_transfers(int fd, int ordering, const char *name)
{
	struct ibv_mr *mr = registered(fd, EVERYTHING | ordering);
	equal("ibv_reg_dmabuf_mr(3)", PAGE, (uintptr_t)mr->addr, "the address shown is the offset");
	memset(host, ordering ? 0x5a : 0xa5, PAGE);
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA, PAGE, IBV_WC_SUCCESS, name);
	holds("rdma", !memcmp(seen + PAGE, host, PAGE), "the bytes are in the GPU");
	seen[PAGE + 9] = 7;
	transfer(IBV_WR_RDMA_READ, mr->rkey, IOVA, PAGE, IBV_WC_SUCCESS, "a read of it");
	equal("rdma", 7, host[9], "sees what the GPU wrote");
	return mr;
}

static void transfers(int fd, int ordering, const char *name)
{
	struct ibv_mr *mr = first_transfers(fd, ordering, name);
	struct ibv_sge sge = { IOVA, 64, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 99,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)host + 64, host_mr->rkey } };
	post(pair.a, &wr);
	completes("rdma", pair.a_cq, 99, IBV_WC_SUCCESS, "a write out of it");
	equal("rdma", 7, host[64 + 9], "has its bytes");
	sge.addr = (uintptr_t)host, sge.length = 8, sge.lkey = host_mr->lkey;
	wr = (struct ibv_send_wr){ .wr_id = 98,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				   .wr.atomic = { IOVA, 1, 0, mr->rkey } };
	post(pair.a, &wr);
	completes("rdma", pair.a_cq, 98, IBV_WC_SUCCESS, "an atomic on it");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA + LENGTH - PAGE - 1, 2, IBV_WC_REM_ACCESS_ERR,
		 "a write beyond its end");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA - 1, 1, IBV_WC_REM_ACCESS_ERR,
		 "a write before its iova");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, 0, 1, IBV_WC_REM_ACCESS_ERR,
		 "a write to where the crossing key begins");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, -1ull, 1, IBV_WC_REM_ACCESS_ERR,
		 "a write that wraps");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey ^ 1, IOVA, 1, IBV_WC_REM_ACCESS_ERR, "a wrong tag");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey - 256, IOVA, 1, IBV_WC_REM_ACCESS_ERR,
		 "the driver's own key");

	equal("ibv_rereg_mr(3)", 1,
	      -ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL),
	      "rereg refuses it");
	if (ibv_rereg_mr_fd) {
		errno = 0;
		equal("mlx5_ib_rereg_user_mr", -IBV_REREG_MR_ERR_CMD,
		      -ibv_rereg_mr_fd(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, 0, 0, 0,
				       IBV_MR_FD_TYPE_NONE, -1, EVERYTHING),
		      "and so does that of descriptors");
		row("mlx5_ib_rereg_user_mr", EOPNOTSUPP, errno, "and says why");
	}
	struct ibv_sge range = { IOVA, PAGE, mr->lkey };
	row("mlx5_ib_advise_mr", plainly() ? EOPNOTSUPP : ENOENT,
	    ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &range, 1),
	    "it has nothing to prefetch");
	row(REG, 0, ibv_dereg_mr(mr), "deregister it");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA, 1, IBV_WC_REM_ACCESS_ERR, "its key is gone");

	mr = registered(fd, LOCAL | IBV_ACCESS_REMOTE_READ | ordering);
	transfer(IBV_WR_RDMA_READ, mr->rkey, IOVA, 1, IBV_WC_SUCCESS,
		 "a read of what may be read only");
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA, 1, IBV_WC_REM_ACCESS_ERR, "a write to it");
	row(REG, 0, ibv_dereg_mr(mr), "deregister it");
}

static void foreign_domain(int fd)
{
	struct ibv_pd *own = pd, *other = ibv_alloc_pd(context);
	pd = other;
	struct ibv_mr *mr = registered(fd, EVERYTHING);
	pd = own;
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA, 1, IBV_WC_REM_ACCESS_ERR,
		 "a queue pair of another domain");
	row("ibv_dealloc_pd(3)", EBUSY, ibv_dealloc_pd(other), "a domain with a region stays");
	row(REG, 0, ibv_dereg_mr(mr), "deregister it");
	row("ibv_dealloc_pd(3)", 0, ibv_dealloc_pd(other), "and goes then");
}

static void told(const char *what)
{
	char line[16];
	puts(what);
	if (!fgets(line, sizeof(line), stdin))
		fail("to be told");
}

static void unplug(int fd)
{
	char path[256];
	struct ibv_mr *before = registered(fd, EVERYTHING),
		      *plain = reg_dmabuf_mr(pd, 0, LENGTH, 0, fd, EVERYTHING, 0);
	row("ibv_reg_dmabuf_mr(3)", plainly(), plain ? 0 : errno, "register it plainly too");
	transfer(IBV_WR_RDMA_WRITE, before->rkey, IOVA, PAGE, IBV_WC_SUCCESS, "before");
	told("unplug");
	transfer(IBV_WR_RDMA_WRITE, before->rkey, IOVA, 1, IBV_WC_REM_ACCESS_ERR,
		 "unplugged: a write");
	transfer(IBV_WR_RDMA_READ, before->rkey, IOVA, 1, IBV_WC_REM_ACCESS_ERR, "a read");
	if (plain)
		transfer(IBV_WR_RDMA_WRITE, plain->rkey, 0, 1, IBV_WC_SUCCESS,
			 "a plain region of the buffer goes on");
	row(REG, EINVAL, registers(fd, 0, PAGE, 0, EVERYTHING, DIRECT), "no new registration");
	row(PATH, ENODEV, sysfs_path(context, path, sizeof(path)), "no path");
	told("replug");
	row(PATH, 0, sysfs_path(context, path, sizeof(path)), "replugged: a path");
	transfer(IBV_WR_RDMA_WRITE, before->rkey, IOVA, 1, IBV_WC_REM_ACCESS_ERR,
		 "what was lost stays lost");
	struct ibv_mr *after = registered(fd, EVERYTHING);
	transfer(IBV_WR_RDMA_WRITE, after->rkey, IOVA, PAGE, IBV_WC_SUCCESS,
		 "a new registration works");
	row(REG, 0, ibv_dereg_mr(before), "the old handle lived until now");
	row(REG, 0, ibv_dereg_mr(after), "and the new one goes");
	if (plain)
		row(REG, 0, ibv_dereg_mr(plain), "and the plain one");
}

/*
 * Writes until a write fails, which must be because the key is gone, and then nothing arrives any
 * more.
 */
static void traffic(int fd)
{
	struct ibv_mr *mr = registered(fd, EVERYTHING);
	struct ibv_sge sge = { (uintptr_t)host, LENGTH - PAGE, host_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { IOVA, mr->rkey } };
	struct ibv_wc wc;
	do {
		post(pair.a, &wr);
		if (!wait_for(pair.a_cq, &wc, 20))
			fail("a write under way");
		if (++wr.wr_id == 8)
			puts("moving");
	} while (wc.status == IBV_WC_SUCCESS);
	equal("rdma", IBV_WC_REM_ACCESS_ERR, wc.status, "the key is gone under a write");
	memset(host, 0x77, LENGTH);
	transfer(IBV_WR_RDMA_WRITE, mr->rkey, IOVA, PAGE, IBV_WC_REM_ACCESS_ERR, "and stays gone");
	holds("rdma", seen[PAGE] != 0x77, "no byte arrives any more");
	row(REG, 0, ibv_dereg_mr(mr), "deregister it");
}

enum { MOVED = 4 << 20, PIECE = 1 << 18, TIMES = 4 };

static struct ibv_mr *moved(const char *node, int direct)
{
	struct ibv_mr *mr = reg_dmabuf_mr(pd, 0, MOVED, 0, export_buffer(node, MOVED), EVERYTHING,
					  direct ? DIRECT : 0);
	if (!mr)
		fail("register what is moved");
	return mr;
}

/* Moves memory within the GPU, there and back through the HCA. */
static void move(const char *node, int direct)
{
	struct ibv_mr *from = moved(node, direct), *to = moved(node, direct);
	double start = seconds();
	for (int i = 0; i < TIMES * MOVED / PIECE; i++) {
		uint64_t at = (uint64_t)i * PIECE % MOVED;
		struct ibv_sge sge = { at, PIECE, from->lkey };
		struct ibv_send_wr wr = { .wr_id = i,
					  .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE,
					  .wr.rdma = { at, to->rkey } };
		post(pair.a, &wr);
		struct ibv_wc wc;
		if (!wait_for(pair.a_cq, &wc, 20) || wc.status)
			fail("move a piece");
	}
	printf("%.0f bytes a second\n", TIMES * (double)MOVED / (seconds() - start));
}

/* A buffer of LENGTH bytes, zeroed, mapped at `seen`. */
static int gpu_buffer(const char *node)
{
	int gpu = open_gpu(node);
	uint32_t handle = new_buffer(gpu, LENGTH);
	seen = map_buffer(gpu, handle, LENGTH);
	struct prime_handle prime = { .handle = handle, .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
		fail("export it");
	return prime.fd;
}

/* The same of host memory. */
static int udmabuf(const char *node)
{
	int device = open(node, O_RDWR | O_CLOEXEC),
	    memfd = memfd_create("pages", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	if (device < 0 || memfd < 0 || ftruncate(memfd, LENGTH) ||
	    fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		fail(node);
	seen = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	struct udmabuf_create create = { .memfd = memfd,
					 .flags = UDMABUF_FLAGS_CLOEXEC,
					 .size = LENGTH };
	int fd = ioctl(device, UDMABUF_CREATE, &create);
	if (seen == MAP_FAILED || fd < 0)
		fail("UDMABUF_CREATE");
	return fd;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[2], "move")) {
		load();
		open_first_device();
		/* Slow links are no reason to send again. */
		ack_timeout = 20;
		pair = new_pair(IBV_QPT_RC);
		move(argv[1], !strcmp(argv[3], "direct"));
		return 0;
	}
	if (argc != 3)
		fail("arguments");
	load();
	open_first_device();
	int fd = strcmp(argv[1], "/dev/udmabuf") ? gpu_buffer(argv[1]) : udmabuf(argv[1]);
	int plain = !strcmp(argv[2], "plain");
	const char *direct = "a write by Data Direct";
	char path[256];
	equal("mlx5dv_is_supported(3)", !plain, is_supported(context->device),
	      "whether it is a ConnectX");
	if (plain || !strcmp(argv[2], "none")) {
		row(PATH, plain ? EOPNOTSUPP : ENODEV, sysfs_path(context, path, sizeof(path)),
		    "no function");
		row(REG, plain ? EOPNOTSUPP : EINVAL, registers(fd, 0, PAGE, 0, EVERYTHING, DIRECT),
		    "no region by it");
		row(REG, plain ? EOPNOTSUPP : 0, registers(fd, 0, PAGE, 0, EVERYTHING, 0),
		    "a region without it");
		return finish();
	}
	host = aligned_alloc(PAGE, LENGTH);
	host_mr = ibv_reg_mr(pd, host, LENGTH, EVERYTHING);
	if (!host_mr)
		fail("register host memory");
	pair = new_pair(IBV_QPT_RC);
	if (!strcmp(argv[2], "unplug")) {
		unplug(fd);
		return finish();
	}
	if (!strcmp(argv[2], "traffic")) {
		traffic(fd);
		return finish();
	}
	path_rows();
	if (!strcmp(argv[2], "miswired")) {
		patience = 3;
		first_transfers(fd, 0, direct);
		return finish();
	}
	wrong_registrations(fd);
	transfers(fd, 0, direct);
	transfers(fd, RELAXED, "a write with relaxed ordering");
	foreign_domain(fd);
	return finish();
}
