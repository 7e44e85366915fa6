/*
 * Memory that is a file in memory, or is none, at a target whose neighbour writes and reads it
 * often: what may be mapped at both ends is, for as long as it is used, and what its owner does to
 * the file meanwhile shows as it does by packets.
 *
 *   neighbours_files comes|filtered|changes direct|packets
 *
 * Where calls to the system are filtered (filtered), or address space is limited, none is mapped.
 */
#include "neighbours.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

/* A huge page, so that all kinds have one size. */
enum { SIZE = 2 << 20, OFTEN = 40 };

/* What memory may be, and whether others can map it. */
static const struct kind {
	const char *name;
	int mapped;
} kinds[] = {
	{ "memfd", 1 },	      { "memfd-closed", 0 },	{ "memfd-sealable", 0 },
	{ "memfd-sealed", 0 }, { "memfd-huge", 1 },	{ "path", 1 },
	{ "path-unlinked", 0 }, { "path-kept", 1 },	{ "segment", 0 },
	{ "segment-removed", 0 }, { "segment-huge", 0 }, { "private", 0 },
	{ "anonymous", 0 },   { "anonymous-shared", 0 }, { "several", 1 },
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* What the target is asked to do. */
enum order {
	END,
	/* Fill the memory with a number's pattern, or tell how many bytes are of it. */
	FILL,
	COUNT,
	/* Cut the file in half, or make it as long as it was. */
	CUT,
	GROW,
	/* Take its pages out of its second half. */
	PUNCH,
	/* Give the second half these rights. */
	PROTECT,
	/* Have the key stand for another file. */
	REPLACE,
	/* Meet the other end anew. */
	MEET,
};

struct request {
	enum order order;
	unsigned number;
};

/* Whether requests go directly, and whether memory may be mapped for them. */
static int directly, may_map;
static int file = -1;
static char *memory;
static struct ibv_mr *mr;

/* The byte of a pattern at an offset. */
static char pattern(unsigned number, size_t at) { return (char)(at * 7 + at / 4096 + number); }

static void fill(char *at, unsigned number)
{
	for (size_t i = 0; i < SIZE; i++)
		at[i] = pattern(number, i);
}

static unsigned right_bytes(const char *at, unsigned number)
{
	unsigned right = 0;
	for (size_t i = 0; i < SIZE; i++)
		right += at[i] == pattern(number, i);
	return right;
}

/* --- the target --- */

static char *mapped(int flags, int fd)
{
	char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void new_memfd(unsigned flags)
{
	file = memfd_create("neighbours-files", MFD_CLOEXEC | flags);
	if (file >= 0 && ftruncate(file, SIZE))
		fail("the length of a file");
}

static char *segment(int flags, int remove)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600 | flags);
	if (id < 0)
		return NULL;
	char *at = shmat(id, NULL, 0);
	/* One that stays is removed by whoever asked for it, by its number. */
	if (remove && shmctl(id, IPC_RMID, NULL))
		fail("remove a segment");
	file = remove ? -1 : id;
	return at == (char *)-1 ? NULL : at;
}

/* Memory of a kind; null where this machine has none. */
static char *memory_of_kind(const char *kind)
{
	char path[64];
	snprintf(path, sizeof(path), "/dev/shm/neighbours-files-%d", getpid());
	if (!strncmp(kind, "path", 4)) {
		file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
		if (file < 0 || ftruncate(file, SIZE))
			return NULL;
		char *at = mapped(MAP_SHARED, file);
		if (strcmp(kind, "path"))
			unlink(path);
		if (strcmp(kind, "path-kept")) {
			close(file);
			file = -1;
		}
		return at;
	}
	if (!strncmp(kind, "segment", 7))
		return segment(strcmp(kind, "segment-huge") ? 0 : SHM_HUGETLB | MFD_HUGE_2MB,
			       strcmp(kind, "segment"));
	if (!strcmp(kind, "anonymous"))
		return mapped(MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (!strcmp(kind, "anonymous-shared"))
		return mapped(MAP_SHARED | MAP_ANONYMOUS, -1);
	int sealed = !strcmp(kind, "memfd-sealed");
	new_memfd(!strcmp(kind, "memfd-huge")		       ? MFD_HUGETLB | MFD_HUGE_2MB
		  : sealed || !strcmp(kind, "memfd-sealable") ? MFD_ALLOW_SEALING
							       : 0);
	if (file < 0)
		return NULL;
	char *at = mapped(strcmp(kind, "private") ? MAP_SHARED : MAP_PRIVATE, file);
	/* What is mapped already stays as it is. */
	if (sealed && fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
		fail("seal a file");
	if (!strcmp(kind, "memfd-closed")) {
		close(file);
		file = -1;
	}
	if (at && !strcmp(kind, "several") &&
	    (mprotect(at + 4096, 4096, PROT_READ) ||
	     mprotect(at + 4096, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)))
		fail("divide a mapping");
	return at;
}

/* What `maps` says of the memory: its device and the number of its file. */
static void tell_file(const char *kind)
{
	char line[512], device[16], name[64] = "";
	unsigned long from, to, inode;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %*s %15s %lu", &from, &to, device, &inode) == 4 &&
		    from <= (uintptr_t)memory && (uintptr_t)memory < to)
			snprintf(name, sizeof(name), "%s %lu ", device, inode);
	fclose(maps);
	if (!*name)
		fail(kind);
	tell(name, sizeof(name));
}

/* The same key over another file of the same length, at the same address. */
static void replace(const char *kind)
{
	close(file);
	new_memfd(0);
	if (mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != memory ||
	    ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, SIZE, 0))
		fail("another file");
	struct end now = { qp->qp_num, mr->rkey, (uintptr_t)memory };
	tell_file(kind);
	tell(&now, sizeof(now));
}

static void target(const char *kind)
{
	struct request request;
	memory = memory_of_kind(kind);
	tell_number(memory != NULL);
	if (!memory)
		return;
	mr = registered(memory, SIZE);
	tell_file(kind);
	meet(pd, EVERYTHING, mr);
	for (;;) {
		int failed = 0;
		unsigned answer = 0;
		hear(&request, sizeof(request));
		switch (request.order) {
		case FILL:
			fill(memory, request.number);
			break;
		case COUNT:
			answer = right_bytes(memory, request.number);
			break;
		case CUT:
			failed = ftruncate(file, SIZE / 2);
			break;
		case GROW:
			failed = ftruncate(file, SIZE);
			break;
		case PUNCH:
			failed = fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					   SIZE / 2, SIZE / 2);
			break;
		case PROTECT:
			failed = mprotect(memory + SIZE / 2, SIZE / 2, request.number);
			break;
		case REPLACE:
			replace(kind);
			continue;
		case MEET:
			part();
			meet(pd, EVERYTHING, mr);
			continue;
		case END:
			if (!strcmp(kind, "segment"))
				shmctl(file, IPC_RMID, NULL);
			if (!strcmp(kind, "path")) {
				char path[64];
				snprintf(path, sizeof(path), "/dev/shm/neighbours-files-%d",
					 getpid());
				unlink(path);
			}
			return;
		}
		if (failed)
			fail("a change of the file");
		tell_number(answer);
	}
}

/* --- the initiator, which judges --- */

static char *own;
static struct ibv_mr *own_mr;
static struct end peer;
/* The file of the target's memory as `maps` shows it. */
static char name_of_file[64];

static unsigned ask(enum order order, unsigned number)
{
	struct request request = { order, number };
	tell(&request, sizeof(request));
	return hear_number();
}

/* Mappings of the target's file here, which shares none with it otherwise. */
static unsigned views(void)
{
	char line[512];
	unsigned found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps))
		found += !!strstr(line, name_of_file) && !strstr(line, " 0 ");
	if (maps)
		fclose(maps);
	return found;
}

static enum ibv_wc_status moves(int read, size_t at, size_t length)
{
	struct ibv_sge sge = { (uintptr_t)own + at, length, own_mr->lkey };
	return one_sided(read, sge, peer.address + at, peer.rkey);
}

/* All of it, in pieces of many lengths, at odd places too. */
static unsigned moves_all(int read)
{
	static const size_t lengths[] = { 8, 1, 2, 5, 64, 4096, 8, 100, 65536, 3, 300000, 16 };
	unsigned failed = 0;
	size_t at = 0;
	for (unsigned i = 0; at < SIZE; i++) {
		size_t length = lengths[i % (sizeof(lengths) / sizeof(lengths[0]))];
		if (length > SIZE - at)
			length = SIZE - at;
		failed += moves(read, at, length) != IBV_WC_SUCCESS;
		at += length;
	}
	return failed;
}

/* Bytes go both ways, as the target sees them itself. */
static void both_ways(const char *kind, unsigned number)
{
	fill(own, number);
	equal("IBA 9.4", 0, moves_all(0), "%s: WRITEs that failed", kind);
	equal("IBA 9.4.3", SIZE, ask(COUNT, number), "%s: bytes that the target has", kind);
	ask(FILL, number + 1);
	equal("IBA 9.4", 0, moves_all(1), "%s: READs that failed", kind);
	equal("IBA 9.4.4", SIZE, right_bytes(own, number + 1), "%s: bytes of the target's", kind);
}

static void use_it_often(void)
{
	for (int i = 0; i < OFTEN; i++)
		moves(i % 2, 0, 8);
}

static void views_go(const char *kind)
{
	unsigned rest = 1;
	for (double end = seconds() + PATIENCE; rest && seconds() < end; usleep(10000))
		rest = views();
	equal("design D7", 0, rest, "%s: views that are not used any more", kind);
}

/* The view that there is afterwards is one of this connection. */
static void is_mapped(const char *what, int mapped)
{
	views_go(what);
	use_it_often();
	equal("design D7", mapped, views(), "%s: views in use", what);
}

/* Starts a target with a kind of memory; 0 where there is none. */
static pid_t met(const char *kind)
{
	pid_t child = start(kind);
	if (!hear_number()) {
		printf("this machine has no memory that is %s\n", kind);
		ended_well(child);
		return 0;
	}
	hear(name_of_file, sizeof(name_of_file));
	peer = meet(pd, EVERYTHING, NULL);
	return child;
}

static void end(pid_t child)
{
	struct request request = { END, 0 };
	tell(&request, sizeof(request));
	ended_well(child);
	part();
}

static void comes(const struct kind *kind)
{
	pid_t child = met(kind->name);
	if (!child)
		return;
	unsigned long before = device_counter("direct_requests");
	equal("design D7", 0, views(), "%s: views before it is used", kind->name);
	both_ways(kind->name, 1);
	use_it_often();
	equal("design D7", may_map && kind->mapped, views(), "%s: views in use", kind->name);
	both_ways(kind->name, 3);
	views_go(kind->name);
	both_ways(kind->name, 5);
	unsigned long direct = device_counter("direct_requests") - before;
	holds("design D7", directly ? direct > OFTEN : !direct, "some went directly, or none");
	end(child);
}

/* Ends the connection that a failed request has ended, and makes another. */
static void meet_again(void)
{
	struct request request = { MEET, 0 };
	tell(&request, sizeof(request));
	part();
	peer = meet(pd, EVERYTHING, NULL);
}

/* What the key stood for before is mapped here yet. */
static void with_another_file(unsigned number)
{
	struct request request = { REPLACE, 0 };
	tell(&request, sizeof(request));
	hear(name_of_file, sizeof(name_of_file));
	hear(&peer, sizeof(peer));
	both_ways("replaced", number);
	is_mapped("replaced", may_map);
	both_ways("replaced", number + 2);
}

/* A request to the second half, and the first again afterwards. */
static void outcome(const char *what, int read)
{
	enum ibv_wc_status status = moves(read, SIZE / 2 + 4096, 65536);
	printf("outcome %s, %s: %s\n", what, read ? "READ" : "WRITE", ibv_wc_status_str(status));
	if (status != IBV_WC_SUCCESS)
		meet_again();
}

/*
 * The file loses its end and gets one anew, or a hole, may not be written, or is replaced by
 * another one, while it is mapped here.
 */
static void changes(const char *kind)
{
	pid_t child = met(kind);
	if (!child)
		fail(kind);
	for (int round = 0; round < 2; round++) {
		unsigned number = 20 * round;
		ask(FILL, number);
		is_mapped("whole", may_map);
		moves_all(1);
		ask(CUT, 0);
		for (int read = 0; read < 2; read++)
			outcome("beyond the end", read);
		is_mapped("cut", 0);
		equal("IBA 9.4", IBV_WC_SUCCESS, moves(0, SIZE / 2 - 65536, 65536),
		      "a WRITE up to the end");
		ask(GROW, 0);
		is_mapped("grown", may_map);
		memset(own, 1, SIZE);
		equal("IBA 9.4", IBV_WC_SUCCESS, moves(1, SIZE / 2, SIZE / 2),
		      "a READ of what it has got");
		unsigned zeros = 0;
		for (size_t i = SIZE / 2; i < SIZE; i++)
			zeros += !own[i];
		equal("man ftruncate", SIZE / 2, zeros, "zeros there");
		both_ways("grown", number + 1);
		ask(PUNCH, 0);
		fill(own, number + 5);
		equal("IBA 9.4", 0, moves_all(0), "WRITEs into a hole that failed");
		equal("man fallocate", SIZE, ask(COUNT, number + 5), "bytes that filled it");
		equal("design D7", may_map, views(), "views afterwards");
		ask(PROTECT, PROT_READ);
		for (int read = 0; read < 2; read++)
			outcome("of what may only be read", read);
		equal("man mprotect", SIZE, ask(COUNT, number + 5), "bytes as they were");
		ask(PROTECT, PROT_READ | PROT_WRITE);
		is_mapped("with all rights again", may_map);
		both_ways("with all rights again", number + 6);
		with_another_file(number + 8);
	}
	end(child);
}

/* A filter that lets every call through. */
static void filter_calls(void)
{
	struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &all };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail("filter calls to the system");
}

static int address_space_is_limited(void)
{
	struct rlimit limit;
	return getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur != RLIM_INFINITY;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	const char *story = argv[1];
	open_device();
	if (!strcmp(story, "as")) {
		target(argv[2]);
		return 0;
	}
	directly = !strcmp(argv[2], "direct");
	may_map = directly && !prctl(PR_GET_SECCOMP) && !address_space_is_limited();
	if (!strcmp(story, "filtered")) {
		filter_calls();
		may_map = 0;
		story = "comes";
	}
	own = memory_of(SIZE);
	own_mr = registered(own, SIZE);
	for (unsigned kind = 0; kind < KINDS && !strcmp(story, "comes"); kind++)
		comes(&kinds[kind]);
	if (!strcmp(story, "changes"))
		changes("memfd");
	return finish();
}
