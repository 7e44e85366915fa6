/*
 * Memory that is a file of a file system that a process serves (FUSE), which never says what kind
 * of file system it is: a neighbour that writes to it often is not held up by that.
 *
 *   unanswered writes direct|packets
 */
#include "neighbours.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

enum { SIZE = 2 << 20, REQUESTS = 200, SLOW = 2, SERVED = 20, FILE_ID = 2 };

static char folder[] = "/tmp/unanswered-XXXXXX";

/* --- who serves the file system --- */

static int device;
static char content[SIZE];

static void answer(const struct fuse_in_header *to, int error, const void *what, size_t length)
{
	static char room[SIZE + sizeof(struct fuse_out_header)];
	struct fuse_out_header head = { sizeof(head) + length, error, to->unique };
	memcpy(room, &head, sizeof(head));
	if (length)
		memcpy(room + sizeof(head), what, length);
	if (write(device, room, head.len) < 0 && errno != ENOENT)
		fail("answer the kernel");
}

static struct fuse_attr attributes_of(uint64_t node)
{
	struct fuse_attr is = { .ino = node, .nlink = 1, .blksize = 4096, .mode = S_IFDIR | 0755 };
	if (node == FILE_ID) {
		is.mode = S_IFREG | 0666;
		is.size = SIZE;
	}
	return is;
}

static void serve(const struct fuse_in_header *asked)
{
	const void *more = asked + 1;
	const struct fuse_read_in *read = more;
	const struct fuse_write_in *write = more;
	struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 1 << 17 };
	struct fuse_entry_out entry = { .nodeid = FILE_ID,
					.entry_valid = 999,
					.attr_valid = 999,
					.attr = attributes_of(FILE_ID) };
	struct fuse_attr_out attr = { .attr_valid = 999, .attr = attributes_of(asked->nodeid) };
	struct fuse_open_out opened = { .open_flags = FOPEN_KEEP_CACHE };
	struct fuse_write_out written = { 0 };
	switch (asked->opcode) {
	case FUSE_INIT:
		answer(asked, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		answer(asked, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		answer(asked, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer(asked, 0, &opened, sizeof(opened));
		break;
	case FUSE_READ:
		answer(asked, 0, content + read->offset, read->size);
		break;
	case FUSE_WRITE:
		memcpy(content + write->offset, write + 1, write->size);
		written.size = write->size;
		answer(asked, 0, &written, sizeof(written));
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_FSYNC:
		answer(asked, 0, NULL, 0);
		break;
	case FUSE_STATFS:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(asked, -ENOSYS, NULL, 0);
	}
}

/* Mounts it where nobody else sees it, and serves it until the program ends, or for so long. */
static void serve_a_file_system(void)
{
	char options[64];
	static char asked[(1 << 17) + 8192];
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    !mkdtemp(folder))
		fail("a mount namespace");
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (device < 0 || mount("unanswered", folder, "fuse", 0, options))
		fail("mount a file system");
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(SERVED);
		for (;;)
			if (read(device, asked, sizeof(asked)) > 0)
				serve((void *)asked);
			else if (errno == ENODEV)
				exit(0);
	}
	close(device);
}

int main(int argc, char **argv)
{
	char path[64];
	if (argc < 3)
		return 2;
	int is_other = !strcmp(argv[1], "as");
	if (!is_other)
		serve_a_file_system();
	open_device();
	if (is_other) {
		int file = open(argv[2], O_RDWR | O_CLOEXEC);
		char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (at == MAP_FAILED)
			fail("map a file");
		meet(pd, EVERYTHING, registered(at, SIZE));
		hear_number();
		return 0;
	}
	snprintf(path, sizeof(path), "%s/file", folder);
	pid_t child = start(path);
	char *own = memory_of(4096);
	struct ibv_mr *mr = registered(own, 4096);
	struct end peer = meet(pd, EVERYTHING, NULL);
	unsigned failed = 0;
	double slowest = 0;
	for (int i = 0; i < REQUESTS; i++) {
		struct ibv_sge sge = { (uintptr_t)own, 8, mr->lkey };
		double begin = seconds();
		failed += one_sided(0, sge, peer.address, peer.rkey) != IBV_WC_SUCCESS;
		if (seconds() - begin > slowest)
			slowest = seconds() - begin;
	}
	equal("IBA 9.4", 0, failed, "WRITEs that failed");
	holds("design D7", slowest < SLOW, "nobody waits for who serves the file system");
	tell_number(0);
	ended_well(child);
	umount2(folder, MNT_DETACH);
	rmdir(folder);
	return finish();
}
