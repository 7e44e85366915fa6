/*
 * The end of what two processes of one host share, amid WRITEs or READs of a mebibyte: the memory,
 * its key, the queue pair, a process. What its owner took back is touched no more from then on, and
 * whoever is left hears of it as it would over a network.
 *
 *   neighbours_part STORY direct|packets ROUNDS SEED
 *
 * Of the stories whose names begin with gpu-, the memory is in a buffer of the GPU at the node GPU
 * of the environment. PEERDMA there is the program that moves it and takes it back. Of those whose
 * names begin with file-, it is a file in memory, which the initiator may map as well.
 */
#include "gpu.h"
#include "neighbours.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

/* Whether plain requests are to go directly here. */
static int directly;

enum {
	BUFFERS = 4,
	/* What the owner writes to memory that it took back, and nobody else ever. */
	SENTINEL = 0xff,
	LOOK_US = 200000,
	/* A WRITE takes a fraction of it: some rounds end amid one, some between two. */
	LONGEST_DELAY_US = 500,
	/* How long the owner of memory waits for a neighbour that stands still, seconds. */
	LIMIT = 5,
};

#define FILE_NAME "neighbours-part"

/* How the owner takes it back, and what its neighbour is told then. */
static const struct way {
	const char *name;
	enum ibv_wc_status told;
} ways[] = {
	{ "dereg", IBV_WC_REM_ACCESS_ERR },
	{ "munmap", IBV_WC_REM_ACCESS_ERR },
	{ "map-over", IBV_WC_REM_ACCESS_ERR },
	{ "mremap", IBV_WC_REM_ACCESS_ERR },
	{ "dontneed", IBV_WC_REM_ACCESS_ERR },
	{ "rereg-memory", IBV_WC_REM_ACCESS_ERR },
	{ "rereg-access", IBV_WC_REM_ACCESS_ERR },
	{ "rereg-pd", IBV_WC_REM_ACCESS_ERR },
	{ "qp-access", IBV_WC_REM_INV_REQ_ERR },
	{ "qp-err", IBV_WC_RETRY_EXC_ERR },
	{ "qp-reset", IBV_WC_RETRY_EXC_ERR },
	{ "qp-destroy", IBV_WC_RETRY_EXC_ERR },
	{ "gpu-dereg", IBV_WC_REM_ACCESS_ERR },
	{ "gpu-qp-access", IBV_WC_REM_INV_REQ_ERR },
	{ "gpu-qp-err", IBV_WC_RETRY_EXC_ERR },
	{ "gpu-revoke", IBV_WC_REM_ACCESS_ERR },
	{ "file-dereg", IBV_WC_REM_ACCESS_ERR },
	{ "file-munmap", IBV_WC_REM_ACCESS_ERR },
	{ "file-bare-munmap", IBV_WC_REM_ACCESS_ERR },
	{ "file-map-over", IBV_WC_REM_ACCESS_ERR },
	{ "file-mremap", IBV_WC_REM_ACCESS_ERR },
	{ "file-dontneed", IBV_WC_REM_ACCESS_ERR },
	{ "file-rereg-access", IBV_WC_REM_ACCESS_ERR },
	{ "file-qp-err", IBV_WC_RETRY_EXC_ERR },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* How the initiator fared. */
struct report {
	unsigned successes, direct, others, tainted, views;
	enum ibv_wc_status first;
};

/* What the initiator is to do. */
struct command {
	int go, read, timeout, retries;
};

/* A counter as it is while no other thread asks: two that do at once may be told 0. */
static unsigned long counter(const char *name)
{
	static pthread_mutex_t asks = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&asks);
	unsigned long value = device_counter(name);
	pthread_mutex_unlock(&asks);
	return value;
}

static uint64_t seed;
static _Thread_local char *sources;
static _Thread_local struct ibv_mr *sources_mr;

static void new_sources(void)
{
	sources = memory_of(BUFFERS * BUFFER);
	sources_mr = registered(sources, BUFFERS * BUFFER);
}

static char *source_of(unsigned number) { return sources + number % BUFFERS * BUFFER; }

static void post_one(const struct end *peer, int read, unsigned number)
{
	struct ibv_sge sge = { (uintptr_t)source_of(number), BUFFER, sources_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = number,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				  .wr.rdma = { peer->address, peer->rkey } };
	memset(source_of(number), number % 250 + 1, BUFFER);
	post(qp, &wr);
}

static int has_sentinel(const char *at) { return memchr(at, SENTINEL, BUFFER) != NULL; }

/* Asks again and again until a request fails. `each` is told of every success. */
static struct report pound(struct end peer, int read, void (*each)(unsigned))
{
	struct report report = { .first = IBV_WC_SUCCESS };
	unsigned long before = counter("direct_requests");
	unsigned posted = 0, done = 0;
	struct ibv_wc wc;
	while (posted < BUFFERS)
		post_one(&peer, read, posted++);
	while (done < posted) {
		if (!wait_for(cq, &wc, PATIENCE))
			fail("a completion");
		done++;
		if (read)
			report.tainted += has_sentinel(source_of(wc.wr_id));
		if (wc.status == IBV_WC_SUCCESS && report.first == IBV_WC_SUCCESS) {
			report.successes++;
			if (each)
				each(report.successes);
			post_one(&peer, read, posted++);
		} else if (report.first == IBV_WC_SUCCESS) {
			report.first = wc.status;
		} else {
			report.others += wc.status != IBV_WC_WR_FLUSH_ERR;
		}
	}
	report.direct = counter("direct_requests") - before;
	report.views = views_of("/memfd:" FILE_NAME);
	return report;
}

static void pounder(void)
{
	struct command command;
	new_sources();
	for (;;) {
		hear(&command, sizeof(command));
		if (!command.go)
			return;
		ack_timeout = command.timeout;
		retries = command.retries;
		struct report report = pound(meet(pd, EVERYTHING, NULL), command.read, NULL);
		tell(&report, sizeof(report));
		part();
	}
}

/* The memory that is taken away, and where else its pages are then. */
static char *memory, *elsewhere;
static struct ibv_mr *mr;
/* Whether it is in a GPU's buffer, and the descriptors of GPU and buffer then. */
static int on_gpu, gpu, buffer;
/* Whether it is a file, and the file then. */
static int on_file, file;
static struct ibv_pd *second;
static unsigned long reads_before;

static void spin(unsigned long us)
{
	double end = seconds() + us * 1e-6;
	while (seconds() < end)
		;
}

/* A new buffer of the GPU, registered, and mapped if it need not move. */
static void new_gpu_memory(int map)
{
	gpu = open_gpu(getenv("GPU"));
	struct prime_handle prime = { .handle = new_buffer(gpu, BUFFER),
				      .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
		fail("export a buffer");
	buffer = prime.fd;
	if (map)
		memory = (char *)map_buffer(gpu, prime.handle, BUFFER);
	/* The address of such a region is its offset in the buffer. */
	mr = ibv_reg_dmabuf_mr(pd, 0, BUFFER, 0, buffer, EVERYTHING);
	if (!mr)
		fail("register a buffer");
}

/* The file as it is, wherever else it was mapped: at a place if that is free. */
static char *file_at(char *at)
{
	int flags = MAP_SHARED | (at ? MAP_FIXED_NOREPLACE : 0);
	char *mapped = mmap(at, BUFFER, PROT_READ | PROT_WRITE, flags, file, 0);
	if (mapped == MAP_FAILED && at)
		return file_at(NULL);
	if (mapped == MAP_FAILED)
		fail("map a file");
	return mapped;
}

static void new_target_memory(void)
{
	if (on_gpu) {
		new_gpu_memory(1);
	} else if (on_file) {
		file = memfd_create(FILE_NAME, MFD_CLOEXEC);
		if (file < 0 || ftruncate(file, BUFFER))
			fail("a file in memory");
		memory = file_at(NULL);
		mr = registered(memory, BUFFER);
	} else {
		memory = memory_of(BUFFER);
		mr = registered(memory, BUFFER);
	}
	elsewhere = memory_of(BUFFER);
	memset(memory, 0, BUFFER);
	memset(elsewhere, 0, BUFFER);
}

/* Registers memory, has the other end pound it, and returns amid that. */
static void have_it_pounded(int read, enum ibv_wc_status told)
{
	/* What must fail by silence fails soon, what must be answered has time. */
	int silent = told == IBV_WC_RETRY_EXC_ERR;
	int soon = directly ? 12 : 14;
	struct command command = { 1, read, silent ? soon : 16, silent ? 3 : 7 };
	new_target_memory();
	reads_before = counter("rx_read_requests");
	tell(&command, sizeof(command));
	meet(pd, EVERYTHING, mr);
	/* Amid the first, or after it. */
	volatile char *touched = memory + (next_random(&seed) % 2 ? 0 : BUFFER - 1);
	double end = seconds() + PATIENCE;
	while (read ? counter("rx_read_requests") == reads_before : !*touched)
		if (seconds() > end)
			fail("no request came");
	spin(next_random(&seed) % LONGEST_DELAY_US);
}

/* New memory at a place that was left, or elsewhere if a thread of the library's was faster. Of a
 * file it is the same, which nobody is to write any more wherever it is. */
static char *mapped_again(char *at)
{
	if (on_file)
		return file_at(at);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	char *again = mmap(at, BUFFER, PROT_READ | PROT_WRITE, flags, -1, 0);
	return again == MAP_FAILED ? memory_of(BUFFER) : again;
}

static void take_back(unsigned way)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .qp_access_flags = LOCAL };
	int failed = 0, map = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, rw = PROT_READ | PROT_WRITE;
	const char *name = ways[way].name;
	if (!strncmp(name, "gpu-", 4))
		name += 4;
	if (!strncmp(name, "file-", 5))
		name += 5;
	if (!strcmp(name, "revoke")) {
		int status;
		pid_t child = start_on_gpu("revoke", NULL);
		failed = waitpid(child, &status, 0) != child || status;
	} else if (!strcmp(name, "dereg")) {
		failed = ibv_dereg_mr(mr);
		mr = NULL;
	} else if (!strcmp(name, "munmap")) {
		failed = munmap(memory, BUFFER);
		memory = mapped_again(memory);
	} else if (!strcmp(name, "bare-munmap")) {
		failed = syscall(SYS_munmap, memory, BUFFER);
		memory = mapped_again(memory);
	} else if (!strcmp(name, "map-over")) {
		failed = mmap(memory, BUFFER, rw, map, -1, 0) != memory;
		if (on_file) {
			munmap(elsewhere, BUFFER);
			elsewhere = file_at(NULL);
		}
	} else if (!strcmp(name, "mremap")) {
		failed = mremap(memory, BUFFER, BUFFER, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) !=
			 elsewhere;
		memory = mapped_again(memory);
	} else if (!strcmp(name, "dontneed")) {
		failed = madvise(memory, BUFFER, MADV_DONTNEED);
	} else if (!strcmp(name, "rereg-memory")) {
		failed = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, elsewhere, BUFFER,
				      0);
	} else if (!strcmp(name, "rereg-access")) {
		failed = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL);
	} else if (!strcmp(name, "rereg-pd")) {
		failed = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0);
	} else if (!strcmp(name, "qp-access")) {
		failed = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	} else if (!strcmp(name, "qp-err")) {
		failed = change(qp, IBV_QPS_ERR, 0);
	} else if (!strcmp(name, "qp-reset")) {
		failed = change(qp, IBV_QPS_RESET, 0);
	} else if (!strcmp(name, "qp-destroy")) {
		part();
		qp = NULL;
	}
	if (failed)
		fail(name);
}

/* From now on the memory is its owner's alone. Gives whether it stays as the owner made it. */
static int stays_as_it_is(void)
{
	memset(memory, SENTINEL, BUFFER);
	memset(elsewhere, SENTINEL, BUFFER);
	usleep(LOOK_US);
	for (int i = 0; i < BUFFER; i++)
		if ((unsigned char)memory[i] != SENTINEL ||
		    (unsigned char)elsewhere[i] != SENTINEL) {
			fprintf(stderr, "byte %d became %d, or %d\n", i, (unsigned char)memory[i],
				(unsigned char)elsewhere[i]);
			return 0;
		}
	return 1;
}

static void forget_it(void)
{
	if (qp)
		part();
	if (mr && ibv_dereg_mr(mr))
		fail("deregistration");
	munmap(memory, BUFFER);
	munmap(elsewhere, BUFFER);
	if (on_gpu && (close(buffer) || close(gpu)))
		fail("close a GPU");
	if (on_file && close(file))
		fail("close a file");
}

static void end_pounder(pid_t child)
{
	struct command command = { 0 };
	tell(&command, sizeof(command));
	ended_well(child);
}

/* Whether the kernel gives this process descriptors of the other end's, and it may ask. */
static int may_take_descriptors(pid_t child)
{
	int process = syscall(SYS_pidfd_open, child, 0);
	int taken = process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, 0, 0);
	if (taken >= 0)
		close(taken);
	if (process >= 0)
		close(process);
	return taken >= 0 && prctl(PR_GET_SECCOMP) == 0;
}

/* Of a bare call of the system the kernel tells when the pages have gone already. */
static int is_told(unsigned way, enum ibv_wc_status status)
{
	int may_fault = strstr(ways[way].name, "bare-") && status == IBV_WC_REM_OP_ERR;
	return status == ways[way].told || may_fault;
}

static void taken_back(unsigned way, int rounds)
{
	unsigned right[2] = { 0 }, told[2] = { 0 }, tainted = 0, others = 0;
	unsigned successes = 0, direct = 0, seen = 0;
	struct report report;
	pid_t child = start("pounder");
	int may = directly && may_take_descriptors(child);
	on_gpu = !strncmp(ways[way].name, "gpu-", 4);
	on_file = !strncmp(ways[way].name, "file-", 5);
	for (int round = 0; round < 2 * rounds; round++) {
		int read = round % 2;
		have_it_pounded(read, ways[way].told);
		take_back(way);
		if (read) {
			/* What its owner writes now is not shown to anyone. */
			memset(memory, SENTINEL, BUFFER);
			memset(elsewhere, SENTINEL, BUFFER);
			right[read]++;
		} else {
			right[read] += stays_as_it_is();
		}
		hear(&report, sizeof(report));
		if (!is_told(way, report.first))
			fprintf(stderr, "round %d: %s after %u\n", round,
				ibv_wc_status_str(report.first), report.successes);
		told[read] += is_told(way, report.first);
		tainted += report.tainted;
		others += report.others;
		successes += report.successes;
		direct += report.direct;
		seen += report.views > 0;
		forget_it();
	}
	printf("%u requests succeeded, %u went directly\n", successes, direct);
	printf("in %u rounds the memory was mapped at the initiator\n", seen);
	if (on_file)
		equal("design D7", may, seen > 0, "some rounds had it mapped at both ends");
	equal("design D7", rounds, right[0], "%s: rounds in which nobody wrote", ways[way].name);
	equal("design D7", 0, tainted, "READs that show what came later");
	equal("IBA 9.9.3", rounds, told[0], "WRITEs that end with %s",
	      ibv_wc_status_str(ways[way].told));
	equal("IBA 9.9.3", rounds, told[1], "READs that end with %s",
	      ibv_wc_status_str(ways[way].told));
	equal("IBA 10.8.3", 0, others, "later requests that were not flushed");
	equal("design D7", directly ? successes : 0, direct, "requests that went directly");
	end_pounder(child);
}

static void killed_initiator(int rounds)
{
	unsigned right = 0, soon = 0;
	for (int round = 0; round < rounds; round++) {
		pid_t child = start("pounder");
		have_it_pounded(0, IBV_WC_REM_ACCESS_ERR);
		double begun = seconds();
		kill(child, SIGKILL);
		/* It may be dead and not be waited for, or be gone. */
		if (round % 2)
			end_of(child);
		take_back(0);
		soon += seconds() - begun < LIMIT - 1;
		right += stays_as_it_is();
		if (round % 2 == 0)
			end_of(child);
		forget_it();
	}
	equal("design D7", rounds, soon, "deregistrations that waited for nobody");
	equal("design D7", rounds, right, "rounds in which nobody wrote");
}

/* The state of a process in proc_pid_stat(5). */
static char process_state(pid_t process)
{
	char path[40], state = 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", process);
	FILE *file = fopen(path, "r");
	if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		fail(path);
	fclose(file);
	return state;
}

/* Bytes that a visitor may write yet that goes on after it was waited for no more. */
enum { LATE = 8 << 10 };

static void stopped(int rounds)
{
	unsigned soon = 0, told = 0, few = 0;
	struct report report;
	pid_t child = start("pounder");
	for (int round = 0; round < rounds; round++) {
		have_it_pounded(0, IBV_WC_REM_ACCESS_ERR);
		kill(child, SIGSTOP);
		while (process_state(child) != 'T')
			;
		double begun = seconds();
		unsigned late = 0;
		take_back(0);
		double took = seconds() - begun;
		soon += took < LIMIT + 5;
		memset(memory, SENTINEL, BUFFER);
		kill(child, SIGCONT);
		hear(&report, sizeof(report));
		for (int i = 0; i < BUFFER; i++)
			late += (unsigned char)memory[i] != SENTINEL;
		printf("deregistration took %.3f s, %u bytes came afterwards\n", took, late);
		few += late <= LATE;
		told += report.first == IBV_WC_REM_ACCESS_ERR && !report.others;
		forget_it();
	}
	equal("design D7", rounds, soon, "deregistrations that ended in time");
	equal("design D7", rounds, few, "of them after which at most a step was written");
	equal("IBA 9.9.3", rounds, told, "initiators that were told when they went on");
	end_pounder(child);
}

/* A target that gets memory written until it is killed, or becomes another program. */
static void target(int becomes_another)
{
	char address[24], program[] = "/proc/self/exe";
	memory = memory_of(BUFFER);
	memset(memory, 0, BUFFER);
	volatile char *touched = memory + BUFFER - 1;
	seed = hear_number();
	meet(pd, EVERYTHING, registered(memory, BUFFER));
	while (!becomes_another)
		pause();
	while (!*touched)
		;
	spin(next_random(&seed) % LONGEST_DELAY_US);
	snprintf(address, sizeof(address), "%p", memory);
	execl(program, "neighbours_part", "watch", address, NULL);
	fail("execve");
}

/* The other program: it has memory of its own where the first had some for its neighbour. */
static int watch(const char *address)
{
	void *at = (void *)strtoull(address, NULL, 0);
	memory = mmap(at, BUFFER, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	/* The new program may have got the place for something else. */
	if (memory == MAP_FAILED)
		memory = memory_of(BUFFER);
	memset(memory, SENTINEL, BUFFER);
	tell_number(memory == at);
	for (;;) {
		for (int i = 0; i < BUFFER; i++)
			if ((unsigned char)memory[i] != SENTINEL)
				return 3;
		usleep(1000);
	}
}

static pid_t victim;
static unsigned killed_after;

static void kill_it(unsigned successes)
{
	if (successes != killed_after)
		return;
	spin(next_random(&seed) % LONGEST_DELAY_US);
	kill(victim, SIGKILL);
}

static void lost_target(int becomes_another, int rounds)
{
	unsigned told = 0, unharmed = 0, at_its_place = 0, some = 0, direct = 0;
	new_sources();
	ack_timeout = 14;
	retries = 3;
	for (int round = 0; round < rounds; round++) {
		victim = start(becomes_another ? "becoming" : "target");
		killed_after = 5 + next_random(&seed) % 20;
		tell_number(next_random(&seed));
		struct report report = pound(meet(pd, EVERYTHING, NULL), 0,
					     becomes_another ? NULL : kill_it);
		told += report.first == IBV_WC_RETRY_EXC_ERR && !report.others;
		some += report.successes > 0;
		direct += report.direct;
		if (becomes_another) {
			at_its_place += hear_number();
			usleep(LOOK_US);
			int alive = !waitpid(victim, NULL, WNOHANG);
			kill(victim, SIGKILL);
			int status = alive ? end_of(victim) : 0;
			unharmed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		} else {
			end_of(victim);
		}
		part();
	}
	printf("%u had the same place; %u requests went directly\n", at_its_place, direct);
	equal("IBA 9.9.2", rounds, told, "initiators that ran out of retries");
	equal("design D7", rounds, some, "rounds with a request that succeeded before");
	holds("design D7", !directly == !direct, "some went directly");
	if (becomes_another)
		equal("design D7", rounds, unharmed,
		      "new programs that lived until they were killed");
}

/* Has a buffer of its GPU written and read until the other end has ended. */
static void gpu_target(void)
{
	char byte;
	new_gpu_memory(0);
	meet(pd, EVERYTHING, mr);
	if (recv(other, &byte, 1, 0) < 0)
		fail("wait for the end");
}

static void do_one(const struct end *peer, int read, unsigned number)
{
	struct ibv_wc wc;
	post_one(peer, read, number);
	if (!wait_for(cq, &wc, PATIENCE) || wc.status != IBV_WC_SUCCESS)
		fail("a request amid moves");
}

/* A WRITE and a READ of it; whether it shows what was written. */
static int goes_and_comes(const struct end *peer)
{
	static unsigned number;
	number += 2;
	do_one(peer, 0, number);
	do_one(peer, 1, number + 1);
	return !memcmp(source_of(number), source_of(number + 1), BUFFER);
}

/* Mappings of GPU memory: this end has none of its own. */
static unsigned views(void) { return views_of("/memfd:peerdma-vram:"); }

/* What is used often is mapped, and not much longer than that. */
static void has_it_mapped(const struct end *peer, int may)
{
	unsigned right = 0, rest = 1;
	for (int i = 0; i < 20; i++)
		right += goes_and_comes(peer);
	equal("IBA 9.4", 20, right, "WRITEs and READs of memory that is mapped");
	equal("design D7", directly && may, views(), "views of a buffer in use");
	for (double end = seconds() + PATIENCE; rest && seconds() < end; usleep(10000))
		rest = views();
	equal("design D7", 0, rest, "views of one that is not used any more");
	holds("IBA 9.4", goes_and_comes(peer), "a WRITE and a READ afterwards are right");
}

static void moved(int rounds)
{
	unsigned done = 0, right = 0, wrong = 0, again = 0;
	pid_t child = start("gpu-target");
	new_sources();
	struct end peer = meet(pd, EVERYTHING, NULL);
	for (int round = 0; round < rounds; round++) {
		int status = -1;
		pid_t mover = start_on_gpu("move", round % 2 ? "vram" : "host");
		while (!waitpid(mover, &status, WNOHANG))
			wrong += !goes_and_comes(&peer);
		done += !status;
		/* The owner of the memory hears of the move by a packet, then it is known. */
		right += goes_and_comes(&peer);
		unsigned long before = counter("direct_requests");
		right += goes_and_comes(&peer);
		again += counter("direct_requests") - before;
	}
	equal("design D7", rounds, done, "moves amid WRITEs and READs");
	equal("IBA 9.4", 0, wrong, "READs that do not show what was written");
	equal("IBA 9.4", 2 * rounds, right, "WRITEs and READs after a move that are right");
	equal("design D7", directly ? 2 * rounds : 0, again, "of them that went directly");
	if (!plays_here)
		has_it_mapped(&peer, may_take_descriptors(child));
	part();
	tell_number(0);
	end_of(child);
}

/* Waits until somebody writes the memory again. */
static int is_written(void)
{
	/* Each WRITE covers all of it, and may be amid its way. */
	for (int i = 0; i < 2; i++) {
		volatile char *last = memory + BUFFER - 1;
		double end = seconds() + PATIENCE;
		memset(memory, 0, BUFFER);
		while (!*last)
			if (seconds() > end)
				return 0;
	}
	return 1;
}

static void forked(int rounds)
{
	unsigned ended = 0, alive = 0, own = 0;
	struct report report;
	pid_t child = start("pounder");
	have_it_pounded(0, IBV_WC_REM_ACCESS_ERR);
	for (int round = 0; round < rounds; round++) {
		fork_us();
		ended += is_written();
		char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				    -1, 0);
		pid_t sibling = fork();
		if (sibling == 0) {
			/* Its memory is its own, whoever writes the parent's. */
			memset(memory, SENTINEL, BUFFER);
			shared[0] = 1;
			while (shared[0] == 1)
				usleep(1000);
			_exit(has_sentinel(memory) &&
			      !memcmp(memory, memory + 1, BUFFER - 1) ? 0 : 1);
		}
		while (!((volatile char *)shared)[0])
			;
		alive += is_written();
		int status;
		((volatile char *)shared)[0] = 2;
		own += waitpid(sibling, &status, 0) == sibling && status == 0;
		munmap(shared, 4096);
	}
	take_back(0);
	int right = stays_as_it_is();
	hear(&report, sizeof(report));
	printf("%u requests succeeded, %u went directly\n", report.successes, report.direct);
	equal("man fork", rounds, ended, "forks after whose child WRITEs arrive");
	equal("man fork", rounds, alive, "forks beside whose child WRITEs arrive");
	equal("man fork", rounds, own, "children whose memory nobody wrote");
	holds("design D7", right, "after deregistration nobody wrote");
	equal("design D7", directly ? report.successes : 0, report.direct,
	      "requests that went directly");
	forget_it();
	end_pounder(child);
}

static void play(const char *role)
{
	if (!strcmp(role, "pounder"))
		pounder();
	else if (!strcmp(role, "gpu-target"))
		gpu_target();
	else
		target(!strcmp(role, "becoming"));
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	const char *story = argv[1];
	if (!strcmp(story, "watch"))
		return watch(argv[2]);
	int is_other = !strcmp(story, "as");
	directly = !strcmp(argv[2], "direct");
	int rounds = argc > 3 ? atoi(argv[3]) : 1;
	seed = argc > 4 ? strtoull(argv[4], NULL, 0) : 1;
	open_device();
	plays_here = getenv("ONE_PROCESS") ? play : NULL;
	if (is_other) {
		play(argv[2]);
		return 0;
	}
	fprintf(stderr, "%s, seed %lu\n", story, seed);
	second = ibv_alloc_pd(context);
	for (unsigned way = 0; way < WAYS; way++)
		if (!strcmp(story, ways[way].name))
			taken_back(way, rounds);
	if (!strcmp(story, "killed-initiator"))
		killed_initiator(rounds);
	on_gpu = !strcmp(story, "gpu-stopped");
	on_file = !strcmp(story, "file-stopped");
	if (on_gpu || on_file || !strcmp(story, "stopped"))
		stopped(rounds);
	if (!strcmp(story, "killed-target"))
		lost_target(0, rounds);
	if (!strcmp(story, "exec"))
		lost_target(1, rounds);
	if (!strcmp(story, "fork"))
		forked(rounds);
	if (!strcmp(story, "gpu-move"))
		moved(rounds);
	return finish();
}
