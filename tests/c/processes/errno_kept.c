/*
 * errno as the program left it: 0 at its start (ISO C 7.5), and what it was after calls that
 * succeed and are the kernel's alone, with a device open and without.
 */
#include "rows.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { MARK = 4242 };

static int at_start;

/* Before main, and after the preloaded library's own beginning. */
__attribute__((constructor)) static void note(void)
{
	at_start = errno;
}

/* The call succeeds, and errno is what it was. */
#define KEPT(call)                                                                            \
	do {                                                                                   \
		errno = MARK;                                                                  \
		int succeeded = (call) >= 0, found = errno;                                    \
		if (!succeeded)                                                                \
			fail(#call);                                                           \
		equal("errno(3)", MARK, found, "after %s", #call);                             \
	} while (0)

static void calls(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct stat about;
	char text[64];
	int fd, ends[2], asked, shared;
	void *memory;

	KEPT(fd = open("/dev/zero", O_RDWR));
	KEPT(read(fd, text, sizeof(text)));
	KEPT(fstat(fd, &about));
	KEPT(stat("/dev/zero", &about));
	KEPT(lstat("/dev/zero", &about));
	KEPT(access("/dev/zero", R_OK));
	/* Where the tree is asked before the machine. */
	KEPT(stat("/sys/dev/char/1:5", &about));
	KEPT(close(open("/sys/dev/char/1:5/uevent", O_RDONLY)));
	KEPT(readlink("/proc/self/exe", text, sizeof(text)));
	KEPT(fcntl(fd, F_GETFD));
	KEPT(fcntl(fd, F_DUPFD_CLOEXEC, 100) - 100);
	KEPT(dup2(fd, 101));
	KEPT(close(101));
	KEPT(close_range(100, 110, 0));
	KEPT((memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0)) ==
			     MAP_FAILED ?
		     -1 :
		     0);
	KEPT(mprotect(memory, page, PROT_READ));
	KEPT(madvise(memory, page, MADV_DONTNEED));
	KEPT((memory = mremap(memory, 4 * page, 2 * page, 0)) == MAP_FAILED ? -1 : 0);
	KEPT(munmap(memory, 2 * page));
	KEPT(close(fd));
	KEPT(shared = shmget(IPC_PRIVATE, page, IPC_CREAT | 0600));
	KEPT((memory = shmat(shared, NULL, 0)) == (void *)-1 ? -1 : 0);
	KEPT(shmdt(memory));
	KEPT(shmctl(shared, IPC_RMID, NULL));
	KEPT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	KEPT(send(ends[0], "a", 1, 0));
	KEPT(write(ends[0], "b", 1));
	KEPT(ioctl(ends[1], FIONREAD, &asked));
	KEPT(recv(ends[1], text, 1, 0));
	KEPT(close(ends[0]));
	KEPT(close(ends[1]));
	KEPT(prctl(PR_GET_DUMPABLE));
	KEPT(sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = SIG_IGN }, NULL));
	KEPT(chdir("/"));
	KEPT(sbrk(0) == (void *)-1 ? -1 : 0);
	errno = MARK;
	free(malloc(32 << 20));
	equal("free(3)", MARK, errno, "after free of a mapping");
}

int main(void)
{
	equal("ISO C 7.5", 0, at_start, "errno before main");
	calls();
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	static char bytes[1 << 16];
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, bytes, sizeof(bytes), 0) : NULL;
	if (!mr)
		fail("a region");
	calls();
	errno = MARK;
	int failed = ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(context);
	equal("errno(3)", MARK, errno, "after verbs");
	holds("libibverbs", !failed, "which succeed");
	return finish();
}
