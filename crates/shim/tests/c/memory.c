/* Which ranges the callback hears of, and that the calls themselves do what they always do. */
#include "check.h"
#include <malloc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>

static size_t (*invalidated)(size_t *, size_t *);
static size_t page;

static char *map(size_t pages)
{
	char *address = mmap(NULL, pages * page, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(address != MAP_FAILED);
	memset(address, 0x5a, pages * page);
	return address;
}

/* Exactly one call, for these pages. */
#define TOLD(start, pages) \
	do { \
		size_t at, length; \
		CHECK(invalidated(&at, &length) == 1); \
		CHECK(at == (size_t)(start) && length == (pages) * page); \
	} while (0)

#define TOLD_NOTHING() \
	do { \
		size_t at, length; \
		CHECK(invalidated(&at, &length) == 0); \
	} while (0)

static void unmapping(void)
{
	char *a = map(4);
	errno = 77;
	CHECK(munmap(a + page, 2 * page) == 0);
	CHECK(errno == 77);
	TOLD(a + page, 2);
	CHECK(munmap(a, 1) == 0); /* a part of a page is the page */
	TOLD(a, 1);
	FAILS(munmap(a + 3 * page + 1, page), EINVAL);
	FAILS(munmap(a + 3 * page, 0), EINVAL);
	FAILS(munmap(a + 3 * page, (size_t)-1), EINVAL);
	TOLD_NOTHING();
	CHECK(munmap(a + 3 * page, page) == 0);
	TOLD(a + 3 * page, 1);
}

static void mapping_over(void)
{
	char *a = map(2);
	CHECK(mmap(a, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == a);
	TOLD(a, 1);
	CHECK(a[0] == 0 && a[page] == 0x5a);
	CHECK(mmap64(a + page, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	      a + page);
	TOLD(a + page, 1);
	CHECK(mmap(a, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != a); /* a hint only */
	CHECK(mmap(a, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
	      MAP_FAILED);
	CHECK(errno == EEXIST);
	TOLD_NOTHING();
}

static void remapping(void)
{
	char *a = map(8);
	CHECK(mremap(a, 8 * page, 6 * page, 0) == a);
	TOLD(a + 6 * page, 2);
	CHECK(mremap(a, 6 * page, 6 * page, MREMAP_MAYMOVE) == a);
	TOLD_NOTHING();
	CHECK(mremap(a, 6 * page, 8 * page, MREMAP_MAYMOVE) == a); /* its own hole: in place */
	TOLD_NOTHING();
	char *wall = mmap(a + 8 * page, page, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(wall == a + 8 * page || errno == EEXIST);
	CHECK(mremap(a, 8 * page, 9 * page, 0) == MAP_FAILED && errno == ENOMEM);
	TOLD_NOTHING();
	char *b = mremap(a, 8 * page, 64 * page, MREMAP_MAYMOVE);
	CHECK(b != MAP_FAILED && b != a && b[0] == 0x5a && b[6 * page] == 0);
	TOLD(a, 8);
	char *target = map(64);
	CHECK(mremap(b, 64 * page, 64 * page, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
	size_t at, length;
	CHECK(invalidated(&at, &length) == 2 && at == (size_t)b &&
	      length == 64 * page); /* target, then source */
	CHECK(target[0] == 0x5a);
}

static void advising(void)
{
	char *a = map(4);
	CHECK(madvise(a + page, page, MADV_DONTNEED) == 0);
	TOLD(a + page, 1);
	CHECK(a[page] == 0 && a[0] == 0x5a);
	CHECK(madvise(a, page, MADV_FREE) == 0);
	TOLD(a, 1);
	CHECK(madvise(a, 4 * page, MADV_WILLNEED) == 0);
	CHECK(madvise(a, 4 * page, MADV_DONTFORK) == 0);
	TOLD_NOTHING();
}

static void detaching(void)
{
	int id = shmget(IPC_PRIVATE, 3 * page, 0600);
	CHECK(id >= 0);
	char *a = shmat(id, NULL, 0);
	CHECK(a != (void *)-1);
	CHECK(shmctl(id, IPC_RMID, NULL) == 0);
	TOLD_NOTHING();
	CHECK(shmat(id, a, SHM_REMAP) == a);
	TOLD(a, 3);
	/* Twice in a row, and another one behind it. */
	char *room = map(8);
	int other = shmget(IPC_PRIVATE, page, 0600);
	CHECK(shmat(id, room, SHM_REMAP) == room);
	TOLD(room, 3);
	CHECK(shmat(id, room + 3 * page, SHM_REMAP) == room + 3 * page);
	TOLD(room + 3 * page, 3);
	CHECK(shmat(other, room + 6 * page, SHM_REMAP) == room + 6 * page);
	TOLD(room + 6 * page, 1);
	CHECK(shmctl(other, IPC_RMID, NULL) == 0);
	for (int i = 0; i < 2; i++) {
		CHECK(shmdt(room + 3 * i * page) == 0);
		TOLD(room + 3 * i * page, 3);
	}
	CHECK(shmdt(a) == 0);
	TOLD(a, 3);
	FAILS(shmdt(a), EINVAL);
	TOLD_NOTHING();
}

/* What the kernel tells nobody of who watches the memory. */
static void replacing_pages(void)
{
	int file = memfd_create("pages", MFD_CLOEXEC);
	CHECK(ftruncate(file, 2 * page) == 0);
	char *a = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(a != MAP_FAILED);
	a[page] = 7;
	CHECK(remap_file_pages(a, page, 0, 1, 0) == 0);
	TOLD(a, 1);
	CHECK(a[0] == 7);
	FAILS(remap_file_pages(a, page, PROT_READ, 1, 0), EINVAL);
	TOLD_NOTHING();
	/* MADV_GUARD_INSTALL, which Linux before 6.13 refuses. */
	CHECK(madvise(a + page, page, 102) == 0 || errno == EINVAL);
	TOLD(a + page, 1);
	CHECK(munmap(a, 2 * page) == 0);
	TOLD(a, 2);
	close(file);
}

static void shrinking_heap(void)
{
	char *end = sbrk(0);
	CHECK(sbrk(8 * page) == end);
	TOLD_NOTHING();
	char *now = sbrk(0);
	CHECK(now == end + 8 * page && sbrk(-4 * (intptr_t)page) == now);
	TOLD(((size_t)now - 4 * page + page - 1) / page * page,
	     ((size_t)now % page ? 3 : 4) + ((size_t)now % page ? 1 : 0));
	CHECK(brk(end) == 0);
	size_t at, length;
	CHECK(invalidated(&at, &length) == 1 && length == 4 * page);
	/* No heap ends before it begins: nothing goes. */
	CHECK(brk(NULL) == 0 && sbrk(0) == end);
	CHECK(brk((void *)page) == 0 && brk(&invalidated) == 0 && sbrk(0) == end);
	TOLD_NOTHING();
}

/* A block of this size is a mapping of its own, with two words in front. */
enum { LARGE = 1 << 20 };

static void freeing(void)
{
	char *a = malloc(LARGE), *front = a - 16;
	CHECK(a && (size_t)front % page == 0);
	TOLD_NOTHING();
	errno = 77;
	free(a);
	CHECK(errno == 77);
	TOLD(front, LARGE / page + 1);
	free(NULL);
	free(malloc(100));
	TOLD_NOTHING();
	/* What lies in front of an aligned one goes with it. */
	a = aligned_alloc(16 * page, LARGE);
	CHECK(a);
	free(a);
	size_t at, length;
	CHECK(invalidated(&at, &length) == 1 && at < (size_t)a && at + length >= (size_t)a + LARGE);
}

static void resizing(void)
{
	char *a = malloc(LARGE), *front = a - 16;
	char *b = realloc(a, 2 * LARGE);
	CHECK(b);
	TOLD_NOTHING(); /* the kernel tells of it, as far as anybody said */
	void (*watch_heap)(void) = find("peerdma_test_watch_heap");
	watch_heap();
	front = b - 16;
	a = realloc(b, LARGE);
	CHECK(a == b);
	TOLD(front + LARGE + page, LARGE / page);
	b = realloc(a, 64 * LARGE);
	CHECK(b);
	if (b != a)
		TOLD(front, LARGE / page + 1);
	else
		TOLD_NOTHING();
	front = b - 16;
	CHECK(realloc(b, (size_t)-1 / 4) == NULL);
	TOLD_NOTHING(); /* it is still there */
	free(realloc(b, 64 * LARGE));
	TOLD(front, 64 * LARGE / page + 1);
	b = malloc(64 * LARGE);
	CHECK(b);
	front = b - 16;
	volatile size_t nothing = 0;
	CHECK(realloc(b, nothing) == NULL);
	TOLD(front, 64 * LARGE / page + 1); /* of no size it is freed */
}

static void trimming(void)
{
	char *blocks[16];
	for (int i = 0; i < 16; i++)
		blocks[i] = malloc(64 << 10);
	char *end = sbrk(0);
	CHECK(blocks[15] > blocks[0] && blocks[15] < end);
	for (int i = 15; i >= 0; i--)
		free(blocks[i]);
	char *now = sbrk(0);
	CHECK(now < end);
	size_t at, length;
	CHECK(invalidated(&at, &length) >= 1 && at >= (size_t)now && at + length <= (size_t)end);
}

static void forking(void)
{
	char *a = map(1);
	pid_t child = fork();
	if (child == 0) {
		/* The engine stayed in the parent, and so did its callback. */
		CHECK(munmap(a, page) == 0);
		TOLD_NOTHING();
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(munmap(a, page) == 0);
	TOLD(a, 1);
}

/* Who looks for them without a version, to write over them, finds the C library's. */
static void looked_up(void)
{
	static const char *const names[] = { "mmap", "mmap64", "munmap", "mremap", "madvise",
					     "shmat", "shmdt",	"brk",	  "sbrk" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		Dl_info of;
		CHECK(dladdr(dlsym(RTLD_DEFAULT, names[i]), &of) != 0);
		CHECK(strstr(of.dli_fname, "/libc.so.6") != NULL);
	}
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	/* As they are at first; the C library would raise them. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 128 << 10);
	invalidated = find("peerdma_test_invalidated");
	CHECK(munmap(map(1), page) == 0);
	TOLD_NOTHING(); /* nobody watches yet */
	void (*watch)(void) = find("peerdma_test_watch");
	watch();
	unmapping();
	mapping_over();
	remapping();
	advising();
	detaching();
	replacing_pages();
	shrinking_heap();
	freeing();
	resizing();
	trimming();
	forking();
	looked_up();
	puts("done");
	return 0;
}
