/*
 * Registered memory whose end no interposed call sees: what the C library unmaps inside itself, and
 * bare system calls. What the program puts at the same address afterwards is its own; a peer's
 * write to the old registration fails.
 *
 *   unseen_end            the kernel tells (userfaultfd)
 *   unseen_end refused    a seccomp filter refuses it, as Docker's default one does: of the C
 * library's ways is told still
 */
#include "rows.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 1 << 20, SMALL = 64 << 10, OLD = 0xa5, NEW = 0x5a, PAGE = 4096 };

static char *source;
static struct ibv_mr *source_mr;

/* Past every symbol of the C library, as a program does that is not linked with it. */
static long bare(long number, const void *address, long len, long third, long fourth, long fifth,
		 long sixth)
{
#ifdef __x86_64__
	register long r10 __asm__("r10") = fourth, r8 __asm__("r8") = fifth,
			  r9 __asm__("r9") = sixth;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(address), "S"(len), "d"(third), "r"(r10), "r"(r8),
			   "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#else
	return syscall(number, address, len, third, fourth, fifth, sixth);
#endif
}

static char *map_bare(char *at, long len)
{
	int how = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
	char *mapped = (char *)bare(SYS_mmap, at, len, PROT_READ | PROT_WRITE, how, -1, 0);
	if (at && mapped != at)
		fail("mmap at the same address");
	return mapped;
}

/* Memory that goes. `take` ends it and sees to it that there is memory of ours again. */
struct way {
	const char *name;
	char *(*make)(void);
	void (*take)(char *memory);
	/* Also where the kernel does not tell. */
	int library;
};

static char *pages_of(char *memory) { return (char *)((uintptr_t)memory & -PAGE); }

static char *make_anonymous(void) { return map_bare(NULL, LARGE); }

static void take_munmap(char *memory)
{
	if (bare(SYS_munmap, memory, LARGE, 0, 0, 0, 0))
		fail("munmap");
	map_bare(memory, LARGE);
}

static void take_mmap(char *memory) { map_bare(memory, LARGE); }

static void take_part(char *memory) { map_bare(memory + LARGE / 2, PAGE); }

static void take_mremap(char *memory)
{
	char *there = map_bare(NULL, LARGE);
	if ((char *)bare(SYS_mremap, memory, LARGE, LARGE, MREMAP_MAYMOVE | MREMAP_FIXED,
			 (long)there, 0) != there)
		fail("mremap");
	map_bare(memory, LARGE);
}

static void take_madvise(char *memory)
{
	if (bare(SYS_madvise, memory, LARGE, MADV_DONTNEED, 0, 0, 0))
		fail("madvise");
}

/* In a child that shares the memory, as posix_spawn's does. */
static void take_in_vfork(char *memory)
{
	pid_t child = vfork();
	if (child == 0) {
		bare(SYS_munmap, memory, LARGE, 0, 0, 0, 0);
		_exit(0);
	}
	if (child < 0 || waitpid(child, NULL, 0) != child)
		fail("vfork");
	map_bare(memory, LARGE);
}

static char *make_shared(void)
{
	int fd = memfd_create("shared", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, LARGE))
		fail("memfd");
	char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return memory;
}

static char *make_block(void) { return malloc(LARGE); }

static char *make_aligned_block(void) { return aligned_alloc(64 << 10, LARGE); }

static void take_free(char *memory)
{
	char *pages = pages_of(memory);
	free(memory);
	map_bare(pages, LARGE);
}

static void take_realloc(char *memory)
{
	/* what lies behind it keeps it from growing in place */
	char *pages = pages_of(memory), *larger = realloc(memory, 64 * LARGE);
	if (!larger || pages_of(larger) == pages)
		fail("a block that moves");
	map_bare(pages, LARGE);
}

static void take_shrink(char *memory)
{
	char *pages = pages_of(memory), *smaller = realloc(memory, LARGE / 4);
	if (pages_of(smaller) != pages)
		fail("a block that shrinks in place");
	map_bare(pages + LARGE / 2, LARGE / 2);
}

enum { BLOCKS = 64, SPARE = 16 };
static char *blocks[BLOCKS];

static void make_blocks(void)
{
	for (int i = 0; i < BLOCKS; i++)
		if (!(blocks[i] = malloc(SMALL)))
			fail("malloc");
}

/*
 * The end of the heap: the last of many blocks that are too small for mappings of their own. What
 * others allocate from here on finds its place in front of them.
 */
static char *make_heap(void)
{
	void *spare[SPARE];
	for (int i = 0; i < SPARE; i++)
		spare[i] = malloc(SMALL);
	make_blocks();
	for (int i = 0; i < SPARE; i++)
		free(spare[i]);
	return blocks[BLOCKS - 16];
}

static void take_heap(char *memory)
{
	char *end = (char *)bare(SYS_brk, NULL, 0, 0, 0, 0, 0);
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	if ((char *)bare(SYS_brk, NULL, 0, 0, 0, 0, 0) > memory)
		fail("a heap that is trimmed");
	if ((char *)bare(SYS_brk, end, 0, 0, 0, 0, 0) != end)
		fail("a heap that grows");
}

static void take_trim(char *memory)
{
	char *end = (char *)bare(SYS_brk, NULL, 0, 0, 0, 0, 0);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	malloc_trim(0);
	mallopt(M_TRIM_THRESHOLD, 128 << 10);
	if ((char *)bare(SYS_brk, NULL, 0, 0, 0, 0, 0) > memory)
		fail("a heap that is trimmed");
	if ((char *)bare(SYS_brk, end, 0, 0, 0, 0, 0) != end)
		fail("a heap that grows");
}

static void *thread_blocks(void *unused)
{
	make_blocks();
	return unused;
}

/* The same in the arena of a thread, whose end is discarded. */
static char *make_arena(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, thread_blocks, NULL) || pthread_join(thread, NULL))
		fail("thread");
	return blocks[BLOCKS - 16];
}

static void take_arena(char *memory)
{
	memset(memory, 1, SMALL);
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	if (memory[SMALL / 2])
		fail("an arena that is trimmed");
}

static char *make_file(void)
{
	static char name[] = "/tmp/peerdma-unseen-end";
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, LARGE))
		fail("a file");
	unlink(name);
	char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return memory;
}

static const struct way ways[] = {
	{ "munmap by a bare system call", make_anonymous, take_munmap, 0 },
	{ "mmap over it by a bare system call", make_anonymous, take_mmap, 0 },
	{ "mmap over a page of it by a bare system call", make_anonymous, take_part, 0 },
	{ "mremap by a bare system call", make_anonymous, take_mremap, 0 },
	{ "madvise by a bare system call", make_anonymous, take_madvise, 0 },
	{ "munmap in a vfork child", make_anonymous, take_in_vfork, 0 },
	{ "munmap of shared memory by a bare system call", make_shared, take_munmap, 0 },
	{ "free of a mapped block", make_block, take_free, 1 },
	{ "free of an aligned mapped block", make_aligned_block, take_free, 1 },
	{ "realloc of a mapped block, which moves", make_block, take_realloc, 1 },
	{ "realloc of a mapped block, which shrinks", make_block, take_shrink, 1 },
	{ "free that trims the heap", make_heap, take_heap, 1 },
	{ "malloc_trim", make_heap, take_trim, 1 },
	{ "free that trims an arena", make_arena, take_arena, 0 },
};

/* From Linux 6.7 on. */
static const struct way of_file = { "munmap of a file's mapping by a bare system call", make_file,
				    take_munmap, 0 };

static int refuse_userfaultfd(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		/* /dev/userfaultfd's */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int is_filled(const char *memory, int byte, int len)
{
	for (int i = 0; i < len; i++)
		if (memory[i] != (char)byte)
			return 0;
	return 1;
}

static void write_to(struct pair *pair, char *memory, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)source, SMALL, source_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)memory, mr->rkey } };
	post(pair->a, &wr);
}

static void lose(const struct way *way)
{
	/* first, so that the end of the heap is the block's */
	struct pair pair = new_pair(IBV_QPT_RC);
	char *memory = way->make();
	/* mremap(2) takes one mapping, and the kernel watches what is registered as one of its own
	 */
	int whole = way->take == take_part || way->take == take_shrink || way->take == take_mremap;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, whole ? LARGE : SMALL, EVERYTHING);
	if (!mr)
		fail("registration");
	write_to(&pair, memory, mr);
	completes("man ibv_post_send", pair.a_cq, 1, IBV_WC_SUCCESS, "%s: before", way->name);
	way->take(memory);
	int writes = way->take != take_arena;
	if (writes)
		memset(memory, NEW, PAGE);
	write_to(&pair, memory, mr);
	completes("IBA 9.9.3", pair.a_cq, 1, IBV_WC_REM_ACCESS_ERR, "%s: after", way->name);
	holds("design D4", is_filled(memory + (writes ? 0 : PAGE), writes ? NEW : 0, PAGE),
	      "what is there instead is untouched");
	row("man ibv_dereg_mr", 0, ibv_dereg_mr(mr), "the MR is deregistered");
	/* The place is as good as any. */
	if (writes && way->make != make_heap && way->take != take_shrink) {
		mr = ibv_reg_mr(pd, memory, SMALL, EVERYTHING);
		end_pair(pair);
		pair = new_pair(IBV_QPT_RC);
		write_to(&pair, memory, mr);
		completes("man ibv_reg_mr", pair.a_cq, 1, IBV_WC_SUCCESS,
			  "registered anew it works");
		holds("man ibv_reg_mr", is_filled(memory, OLD, SMALL), "its bytes are right");
		ibv_dereg_mr(mr);
	}
	end_pair(pair);
}

/* Threads whose unmapping holds whatever malloc holds, while registrations come and go. */
static void *churn(void *unused)
{
	for (int i = 0; i < 400; i++) {
		char *memory = malloc(LARGE / 2);
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, LARGE / 2, EVERYTHING);
		if (!mr)
			fail("registration");
		free(memory);
		ibv_dereg_mr(mr);
		char *mapped = map_bare(NULL, LARGE / 2);
		mr = ibv_reg_mr(pd, mapped, LARGE / 2, EVERYTHING);
		if (!mr)
			fail("registration");
		bare(SYS_munmap, mapped, LARGE / 2, 0, 0, 0, 0);
		ibv_dereg_mr(mr);
	}
	return unused;
}

static void many_at_once(void)
{
	pthread_t threads[4];
	struct pair pair = new_pair(IBV_QPT_RC);
	char *memory = map_bare(NULL, LARGE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LARGE, EVERYTHING);
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, churn, NULL))
			fail("thread");
	int right = 1;
	for (int i = 0; i < 200; i++) {
		struct ibv_wc wc;
		write_to(&pair, memory, mr);
		right &= wait_for(pair.a_cq, &wc, 20) && wc.status == IBV_WC_SUCCESS;
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	holds("man ibv_reg_mr", right, "a registration that stays is written meanwhile");
	ibv_dereg_mr(mr);
	end_pair(pair);
	bare(SYS_munmap, memory, LARGE, 0, 0, 0, 0);
}

/* The kernel forgets its watch in a child; nobody waits for a parent's thread there. */
static void in_a_child(void)
{
	char *memory = map_bare(NULL, LARGE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LARGE, EVERYTHING);
	int status;
	pid_t child = fork();
	if (child == 0) {
		alarm(20);
		bare(SYS_munmap, memory, LARGE, 0, 0, 0, 0);
		_exit(7);
	}
	if (!mr || child < 0 || waitpid(child, &status, 0) != child)
		fail("a child");
	holds("man fork", WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child unmaps its copy");
	struct pair pair = new_pair(IBV_QPT_RC);
	write_to(&pair, memory, mr);
	completes("man fork", pair.a_cq, 1, IBV_WC_SUCCESS, "its parent's stays registered");
	bare(SYS_munmap, memory, LARGE, 0, 0, 0, 0);
	ibv_dereg_mr(mr);
	end_pair(pair);
}

/*
 * Memory that a child shall not have (MADV_DONTFORK), as ibv_fork_init(3) would have it: the child
 * ends by SIGSEGV as without us, and the parent's stays registered, and watched where the kernel
 * watches.
 */
static void not_in_a_child(int refused)
{
	char *memory = map_bare(NULL, LARGE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LARGE, EVERYTHING);
	int status;
	if (!mr || bare(SYS_madvise, memory, LARGE, MADV_DONTFORK, 0, 0, 0))
		fail("memory that is not inherited");
	pid_t child = fork();
	if (child == 0) {
		alarm(20);
		*(volatile char *)memory = NEW;
		_exit(7);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		fail("a child");
	holds("man madvise", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
	      "a child does not have what is not inherited");
	struct pair pair = new_pair(IBV_QPT_RC);
	write_to(&pair, memory, mr);
	completes("man madvise", pair.a_cq, 1, IBV_WC_SUCCESS, "its parent's stays registered");
	if (!refused) {
		take_munmap(memory);
		write_to(&pair, memory, mr);
		completes("man madvise", pair.a_cq, 1, IBV_WC_REM_ACCESS_ERR,
			  "and its end is noticed");
	}
	bare(SYS_munmap, memory, LARGE, 0, 0, 0, 0);
	ibv_dereg_mr(mr);
	end_pair(pair);
}

int main(int argc, char **argv)
{
	int refused = argc > 1 && !strcmp(argv[1], "refused"),
	    files = argc > 1 && !strcmp(argv[1], "files");
	if (refused && refuse_userfaultfd())
		fail("a filter");
	/* as they are at first; the C library would raise them */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 128 << 10);
	open_first_device();
	source = map_bare(NULL, SMALL);
	memset(source, OLD, SMALL);
	source_mr = ibv_reg_mr(pd, source, SMALL, EVERYTHING);
	if (!source_mr)
		fail("registration");
	if (files) {
		lose(&of_file);
		return finish();
	}
	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!refused || ways[i].library)
			lose(&ways[i]);
	many_at_once();
	in_a_child();
	not_in_a_child(refused);
	ibv_dereg_mr(source_mr);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
