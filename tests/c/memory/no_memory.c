/*
 * A program that gets no memory at one moment. Messages go between two queue pairs of it; at first
 * all is well, then the n-th call for memory fails, for each n, and then that and all after it.
 * Whatever fails, a call says so or the messages arrive: nothing ends the program and nothing waits
 * for ever. And where nothing fails, the messages themselves call for no memory at all. Calls for
 * memory are, in turn, mmap(2) of anybody in the process, by a seccomp filter, and malloc of the
 * HCA's library.
 *
 *   no_memory STEPS                 how many n of each kind are tried, at most
 *   no_memory malloc FIRST LAST     one run, without a child and for a debugger; so with mmap
 */
#include "rows.h"

#include <dlfcn.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { MESSAGES = 50, LENGTH = 4096, DEPTH = 8 };
/* Regions of the second round: more than any table has room for at first. */
enum { REGIONS = 2000 };
/* How a run ends. */
enum { WORKED = 0, REFUSED = 2, SILENT = 3, ASKED = 4 };

/*
 * What fails in this process: the `first` call and those after it up to `last`. Calls are counted
 * at all times.
 */
static struct {
	unsigned first, last;
	unsigned calls;
} *mmaps, *mallocs;

/* While messages go: calls for memory of the library's, but for its registry's thread. */
static int messages_go;
static unsigned calls_meanwhile;

static void count_meanwhile(void)
{
	char name[16] = "";
	if (!__atomic_load_n(&messages_go, __ATOMIC_RELAXED))
		return;
	prctl(PR_GET_NAME, name);
	if (strcmp(name, "peerdma-reg"))
		__atomic_add_fetch(&calls_meanwhile, 1, __ATOMIC_RELAXED);
}

static int fails(typeof(mmaps) calls)
{
	unsigned number = calls ? __atomic_add_fetch(&calls->calls, 1, __ATOMIC_RELAXED) : 0;
	return number && number >= calls->first && number <= calls->last;
}

/* The library's part of the address space. */
static uintptr_t library_start, library_end;

static int find_library(struct dl_phdr_info *info, size_t size, void *data)
{
	if (!strstr(info->dlpi_name, "libibverbs.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
		if (part->p_type == PT_LOAD && end > library_end)
			library_end = end;
	}
	library_start = info->dlpi_addr;
	return 1;
}

static int refused(void *caller)
{
	uintptr_t at = (uintptr_t)caller;
	if (at < library_start || at >= library_end)
		return 0;
	count_meanwhile();
	return fails(mallocs);
}

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_memalign(size_t, size_t);
static void *(*next_realloc)(void *, size_t);

void *malloc(size_t size)
{
	return refused(__builtin_return_address(0)) ? (errno = ENOMEM, NULL) : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return refused(__builtin_return_address(0)) ? (errno = ENOMEM, NULL)
						    : __libc_calloc(count, size);
}

void *realloc(void *block, size_t size)
{
	if (refused(__builtin_return_address(0)))
		return errno = ENOMEM, NULL;
	if (!next_realloc)
		next_realloc = dlsym(RTLD_NEXT, "realloc");
	return next_realloc(block, size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
	if (refused(__builtin_return_address(0)))
		return ENOMEM;
	*block = __libc_memalign(alignment, size);
	return *block ? 0 : ENOMEM;
}

/* mmap(2), which the filter lets through here only. */
long let_through(long number, long a, long b, long c, long d, long e, long f);
extern char after_let_through[];
__asm__(".text\n"
	"let_through:\n"
	"	mov %rdi, %rax\n	mov %rsi, %rdi\n	mov %rdx, %rsi\n	mov %rcx, "
	"%rdx\n"
	"	mov %r8, %r10\n	mov %r9, %r8\n	mov 8(%rsp), %r9\n	syscall\n"
	"after_let_through:\n"
	"	ret\n");

static void on_mmap(int signal, siginfo_t *info, void *data)
{
	greg_t *r = ((ucontext_t *)data)->uc_mcontext.gregs;
	r[REG_RAX] = fails(mmaps) ? -ENOMEM
				  : let_through(SYS_mmap, r[REG_RDI], r[REG_RSI], r[REG_RDX],
						r[REG_R10], r[REG_R8], r[REG_R9]);
}

static void filter_mmap(void)
{
	uint64_t here = (uintptr_t)after_let_through;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, instruction_pointer)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)here, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, instruction_pointer) + 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, here >> 32, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };
	struct sigaction action = { .sa_sigaction = on_mmap, .sa_flags = SA_SIGINFO | SA_NODEFER };
	/*
	 * From 2.41 on glibc's getrandom maps its state at the first call with every signal
	 * blocked, SIGSYS too: refused there, it would end the program.
	 */
	char byte;
	if (getrandom(&byte, 1, 0) != 1)
		fail("a random byte");
	if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail("a filter of system calls");
}

/* Ends the run where a call was refused, which must have a reason. */
static void must(int done, int error)
{
	if (!done)
		exit(error > 0 ? REFUSED : SILENT);
}

#define MADE(call) \
	({ \
		errno = 0; \
		__auto_type made_ = (call); \
		must(made_ != NULL, errno); \
		made_; \
	})
#define DONE(call) \
	({ \
		int error_ = (call); \
		must(!error_, error_ < 0 ? errno : error_); \
	})

static void move(struct ibv_qp *qp, enum ibv_qp_state state, uint32_t peer)
{
	struct ibv_qp_attr attr;
	int mask = attributes(IBV_QPT_RC, state, peer, &attr);
	DONE(ibv_modify_qp(qp, &attr, mask));
}

static void next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	must(n == 1, ENOMEM);
	/* an operation that cannot be done for want of memory fails */
	must(wc.status == IBV_WC_SUCCESS, wc.status);
}

static void many_regions(char *memory)
{
	struct ibv_mr *mr[REGIONS];
	int made = 0;
	while (made < REGIONS && (mr[made] = ibv_reg_mr(pd, memory, LENGTH, LOCAL)))
		made++;
	int error = made < REGIONS ? errno : 0;
	while (made > 0)
		DONE(ibv_dereg_mr(mr[--made]));
	must(!error, error);
}

/* Messages from one queue pair to another, from the device's opening to its closing. */
static void messages(void)
{
	static char memory[2 * LENGTH] __attribute__((aligned(4096)));
	struct ibv_device **list = MADE(ibv_get_device_list(NULL));
	must(list[0] != NULL, ENOMEM);
	context = MADE(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	pd = MADE(ibv_alloc_pd(context));
	DONE(ibv_query_gid(context, 1, gid_index, &gid));
	struct ibv_mr *mr = MADE(ibv_reg_mr(pd, memory, sizeof(memory), LOCAL));
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	for (int i = 0; i < 2; i++) {
		cq[i] = MADE(ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0));
		struct ibv_qp_init_attr init = { .send_cq = cq[i],
						 .recv_cq = cq[i],
						 .qp_type = IBV_QPT_RC,
						 .sq_sig_all = 1,
						 .cap = { DEPTH, DEPTH, 4, 4, 64 } };
		qp[i] = MADE(ibv_create_qp(pd, &init));
	}
	for (int i = 0; i < 2; i++) {
		move(qp[i], IBV_QPS_INIT, 0);
		move(qp[i], IBV_QPS_RTR, qp[!i]->qp_num);
		move(qp[i], IBV_QPS_RTS, 0);
	}
	__atomic_store_n(&messages_go, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_sge from = { (uintptr_t)memory, LENGTH, mr->lkey };
		struct ibv_sge to = { (uintptr_t)memory + LENGTH, LENGTH, mr->lkey };
		struct ibv_recv_wr request = { .sg_list = &to, .num_sge = 1 }, *bad_request;
		struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND },
				   *bad;
		DONE(ibv_post_recv(qp[1], &request, &bad_request));
		DONE(ibv_post_send(qp[0], &wr, &bad));
		next(cq[0]);
		next(cq[1]);
	}
	__atomic_store_n(&messages_go, 0, __ATOMIC_RELAXED);
	if (!mmaps->first && !mallocs->first && calls_meanwhile) {
		printf("NOT messages without a call for memory: %u calls\n", calls_meanwhile);
		exit(ASKED);
	}
	many_regions(memory);
	for (int i = 0; i < 2; i++) {
		DONE(ibv_destroy_qp(qp[i]));
		DONE(ibv_destroy_cq(cq[i]));
	}
	DONE(ibv_dereg_mr(mr));
	DONE(ibv_dealloc_pd(pd));
	DONE(ibv_close_device(context));
	exit(WORKED);
}

/* Runs the messages in a child with calls `first` to `last` failing; gives how it ended (wait(2)).
 */
static int run(typeof(mmaps) calls, unsigned first, unsigned last)
{
	int status;
	mmaps->calls = mallocs->calls = mmaps->first = mallocs->first = mmaps->last =
		mallocs->last = 0;
	calls->first = first;
	calls->last = last;
	pid_t child = fork();
	if (child < 0)
		fail("a child");
	if (child == 0) {
		alarm(20);
		if (calls == mmaps)
			filter_mmap();
		messages();
	}
	while (waitpid(child, &status, 0) != child)
		;
	return status;
}

static void sweep(typeof(mmaps) calls, const char *what, unsigned steps)
{
	int worked = run(calls, 0, 0);
	unsigned total = calls->calls, refusals = 0;
	printf("# %u calls of %s\n", total, what);
	holds("a run with memory", worked == WORKED && total > 0, what);
	for (unsigned all = 0; all < 2; all++) {
		for (unsigned step = 0; step < steps && step < total; step++) {
			unsigned n = total <= steps ? step + 1 : 1 + (uint64_t)step * total / steps;
			int status = run(calls, n, all ? UINT32_MAX : n);
			int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
			char found[40], name[80];
			snprintf(name, sizeof(name), "%s %u of %u fails%s", what, n, total,
				 all ? ", and all after it" : "");
			snprintf(found, sizeof(found),
				 WIFEXITED(status) ? "exit status %d" : "signal %d",
				 WIFEXITED(status) ? code : WTERMSIG(status));
			verdict(code == WORKED || code == REFUSED, name, found,
				"messages or a refusal", "ENOMEM");
			refusals += code == REFUSED;
		}
	}
	holds("a failing call is noticed", refusals > 0, what);
}

int main(int argc, char **argv)
{
	unsigned steps = argc > 1 ? atoi(argv[1]) : 100;
	setvbuf(stdout, NULL, _IOLBF, 0);
	next_realloc = dlsym(RTLD_NEXT, "realloc");
	dl_iterate_phdr(find_library, NULL);
	mmaps = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	mallocs = mmaps + 1;
	if (mmaps == MAP_FAILED || !library_end)
		fail("the library, and a page");
	if (argc == 4) {
		typeof(mmaps) calls = strcmp(argv[1], "mmap") ? mallocs : mmaps;
		*calls = (typeof(*calls)){ strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0) };
		if (calls == mmaps)
			filter_mmap();
		messages();
	}
	sweep(mmaps, "mmap", steps);
	sweep(mallocs, "malloc", steps);
	return finish();
}
