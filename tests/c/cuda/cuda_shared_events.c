/*
 * Events that processes share, by NVIDIA's driver library on the software GPU: a stream of one
 * waits for work of the other's.
 *
 * Without an argument the rows of the first process; with handles of memory and of an event the
 * part of another, and with a third argument of one that ends before its work is done,
 * becomes another program, or whose work fails.
 */
#include "driver.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>

enum { LENGTH = 4096, SHARED = 6 };
/* Words of the shared memory: what each waits for, and what each leaves for the other. */
enum { GO = 0, FIRST = 8, SECOND = 16, NEVER = 24 };

enum { WORDS = 504 };

static gpu_address memory;

static unsigned word(size_t at)
{
	unsigned value = 0;
	must(cuMemcpyDtoH_v2(&value, memory + at, 4), "copy");
	return value;
}

static void what_is_none(void)
{
	handle plain, event, opened;
	struct ipc_handle shared;
	int offered = 0;
	must(cuDeviceGetAttribute(&offered, 125, 0), "attribute");
	equal(GUIDE, 1, offered, "events of several processes are offered");
	code(INVALID_VALUE, cuEventCreate(&event, 4), "an event of several that takes the time");
	must(cuEventCreate(&plain, 2) || cuEventCreate(&event, SHARED), "events");
	code(INVALID_HANDLE, cuIpcGetEventHandle(&shared, plain), "an event of this process alone");
	code(INVALID_HANDLE, cuIpcGetEventHandle(&shared, (handle)0x5555), "no event");
	code(INVALID_VALUE, cuIpcGetEventHandle(NULL, event), "no place for the handle");
	code(CUDA_OK, cuIpcGetEventHandle(&shared, event), "a handle");
	code(INVALID_CONTEXT, cuIpcOpenEventHandle(&opened, shared), "of this process itself");
	shared.bytes[40] ^= 1;
	code(INVALID_HANDLE, cuIpcOpenEventHandle(&opened, shared), "a handle that is none");
	must(cuEventDestroy_v2(plain) || cuEventDestroy_v2(event), "destroy");
}

static void alone(handle stream)
{
	handle event, other;
	float ms;
	must(cuEventCreate(&event, SHARED) || cuStreamCreate(&other, 1), "event");
	must(cuMemsetD8_v2(memory, 0, LENGTH), "clear");
	code(CUDA_OK, cuEventQuery(event), "an event that was never recorded is reached");
	must(cuStreamWaitValue32_v2(stream, memory + GO, 1, 1), "wait");
	code(CUDA_OK, cuEventRecord(event, stream), "record behind a wait");
	code(NOT_READY, cuEventQuery(event), "it is not reached");
	must(cuStreamWaitEvent(other, event, 0), "let another stream wait for it");
	must(cuStreamWriteValue32_v2(other, memory + FIRST, 5, 0), "write");
	code(NOT_READY, cuStreamQuery(other), "which it does");
	must(cuStreamWriteValue32_v2(NULL, memory + GO, 1, 0), "go on");
	code(CUDA_OK, cuEventSynchronize(event), "it is reached");
	code(CUDA_OK, cuStreamSynchronize(other), "and the other goes on");
	equal(GUIDE, 5, word(FIRST), "and has written");
	code(INVALID_HANDLE, cuEventElapsedTime(&ms, event, event), "it takes no time");
	must(cuStreamWaitValue32_v2(stream, memory + GO, 2, 1), "wait");
	int records = 0, got = 0;
	while (records < 10000 && !(got = cuEventRecord(event, stream)))
		records++;
	code(OUT_OF_MEMORY, got, "record it for ever");
	holds(GUIDE, records >= 256, "works often");
	must(cuStreamWriteValue32_v2(NULL, memory + GO, 2, 0) || cuStreamSynchronize(stream), "go on");
	code(CUDA_OK, cuEventRecord(event, stream), "then it works again");
	must(cuEventDestroy_v2(event) || cuStreamDestroy_v2(other), "destroy");
}

/* Another process with these handles, and a part for it. */
static pid_t begin_to_run(const char *program, struct ipc_handle *memory_handle,
			  struct ipc_handle *event, char *part)
{
	extern char **environ;
	char of_memory[129], of_event[129];
	char *arguments[] = { (char *)program, of_memory, of_event, part, NULL };
	pid_t child;
	to_text(memory_handle, of_memory);
	to_text(event, of_event);
	if (posix_spawn(&child, program, NULL, NULL, arguments, environ))
		fail("another process");
	return child;
}

/* How it ended. */
static int run(const char *program, struct ipc_handle *memory_handle, struct ipc_handle *event,
	       char *part)
{
	int status = -1;
	waitpid(begin_to_run(program, memory_handle, event, part), &status, 0);
	return status;
}

static void two_processes(const char *program, handle stream)
{
	struct ipc_handle of_memory, of_event;
	handle event;
	must(cuEventCreate(&event, SHARED) || cuIpcGetEventHandle(&of_event, event), "event");
	must(cuIpcGetMemHandle(&of_memory, memory) || cuMemsetD8_v2(memory, 0, LENGTH), "memory");
	must(cuStreamWaitValue32_v2(stream, memory + GO, 1, 1), "wait for the other process");
	must(cuStreamWriteValue32_v2(stream, memory + FIRST, 42, 0), "then write");
	must(cuEventRecord(event, stream), "then record");
	equal(GUIDE, 0, run(program, &of_memory, &of_event, NULL), "another process goes on behind");
	code(CUDA_OK, cuEventSynchronize(event), "it has recorded the event itself");
	equal(GUIDE, 43, word(SECOND), "behind what it wrote");

	equal(GUIDE, 0, run(program, &of_memory, &of_event, "ends"), "one that ends at once");
	code(LAUNCH_FAILED, cuEventQuery(event), "its work will never be done");
	code(LAUNCH_FAILED, cuEventSynchronize(event), "and is not waited for");
	code(CUDA_OK, cuEventRecord(event, stream), "the event can be recorded");
	code(CUDA_OK, cuEventSynchronize(event), "and reached");
	/* More often than there are words: that of who ended comes to be another record's. */
	int records = 0, got = 0;
	while (records < 2 * WORDS && !got) {
		got = cuEventRecord(event, stream);
		got = got ? got : cuEventSynchronize(event);
		records += !got;
	}
	equal(GUIDE, 2 * WORDS, records, "again and again");

	pid_t child = begin_to_run(program, &of_memory, &of_event, "execs");
	while ((got = cuEventQuery(event)) != LAUNCH_FAILED && !waitpid(child, NULL, WNOHANG))
		usleep(1000);
	code(LAUNCH_FAILED, got, "one that becomes another program, which lives");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);

	equal(GUIDE, 0, run(program, &of_memory, &of_event, "fails"), "one whose work fails");
	code(LAUNCH_FAILED, cuEventQuery(event), "its work was not done");
	code(LAUNCH_FAILED, cuEventSynchronize(event), "which who waits is told");
	must(cuEventDestroy_v2(event), "destroy");
	equal(GUIDE, 256, run(program, &of_memory, &of_event, "late"), "an event that is gone");
}

static int visitor(char **argv)
{
	struct ipc_handle again;
	handle event, stream;
	begin();
	must(cuIpcOpenMemHandle_v2(&memory, from_text(argv[1]), 1) || cuStreamCreate(&stream, 1), "memory");
	int opened = cuIpcOpenEventHandle(&event, from_text(argv[2]));
	if (argv[3] && !strcmp(argv[3], "late"))
		return opened == INVALID_HANDLE;
	code(CUDA_OK, opened, "open an event");
	if (argv[3] && !strcmp(argv[3], "fails")) {
		void *own = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must(cuMemHostRegister_v2(own, LENGTH, 0), "register");
		must(cuStreamWaitValue32_v2(stream, (uintptr_t)own, 1, 1), "wait");
		must(cuEventRecord(event, stream), "record");
		munmap(own, LENGTH);
		code(ILLEGAL_ADDRESS, cuStreamSynchronize(stream), "the context dies");
		return finish();
	}
	if (argv[3]) {
		must(cuStreamWaitValue32_v2(stream, memory + NEVER, 1, 1), "wait for ever");
		must(cuEventRecord(event, stream), "record");
		if (!strcmp(argv[3], "execs"))
			execlp("sleep", "sleep", "60", NULL);
		return 0;
	}
	code(INVALID_HANDLE, cuIpcGetEventHandle(&again, event), "only its maker hands it on");
	code(NOT_READY, cuEventQuery(event), "it was recorded and is not reached");
	must(cuStreamWaitEvent(stream, event, 0), "let a stream wait for it");
	must(cuStreamWriteValue32_v2(stream, memory + SECOND, 43, 0), "write");
	code(NOT_READY, cuStreamQuery(stream), "which it does");
	equal(GUIDE, 0, word(FIRST), "nothing was written");
	must(cuStreamWriteValue32_v2(NULL, memory + GO, 1, 0), "let the other go on");
	code(CUDA_OK, cuEventSynchronize(event), "the event is reached");
	equal(GUIDE, 42, word(FIRST), "behind what the other wrote");
	code(CUDA_OK, cuEventRecord(event, stream), "record it here");
	code(CUDA_OK, cuStreamSynchronize(stream), "the stream goes on");
	return finish();
}

int main(int argc, char **argv)
{
	handle stream;
	if (argc > 2)
		return visitor(argv);
	begin();
	must(cuMemAlloc_v2(&memory, LENGTH) || cuStreamCreate(&stream, 1), "memory");
	what_is_none();
	alone(stream);
	two_processes(argv[0], stream);
	return finish();
}
