/*
 * What NVML tells of the platform's GPUs, as NCCL, UCX and nvidia-smi ask for it.
 */
#include "rows.h"

#include <dlfcn.h>

#define NVML "NVML API"

enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, UNSUPPORTED = 3, GONE = 6, TOO_SHORT = 7 };

typedef void *device;

struct pci {
	char short_id[16];
	unsigned domain, bus, device, ids, subsystem;
	char bus_id[32];
};
struct memory {
	unsigned long long total, free, used;
};

#define FUNCTIONS(F) \
	F(nvmlInit_v2, (void)) \
	F(nvmlShutdown, (void)) \
	F(nvmlSystemGetDriverVersion, (char *, unsigned)) \
	F(nvmlDeviceGetCount_v2, (unsigned *)) \
	F(nvmlDeviceGetHandleByIndex_v2, (unsigned, device *)) \
	F(nvmlDeviceGetHandleByPciBusId_v2, (const char *, device *)) \
	F(nvmlDeviceGetHandleByUUID, (const char *, device *)) \
	F(nvmlDeviceGetIndex, (device, unsigned *)) \
	F(nvmlDeviceGetName, (device, char *, unsigned)) \
	F(nvmlDeviceGetUUID, (device, char *, unsigned)) \
	F(nvmlDeviceGetPciInfo_v3, (device, struct pci *)) \
	F(nvmlDeviceGetMemoryInfo, (device, struct memory *)) \
	F(nvmlDeviceGetBAR1MemoryInfo, (device, struct memory *)) \
	F(nvmlDeviceGetTopologyCommonAncestor, (device, device, unsigned *)) \
	F(nvmlDeviceGetNvLinkState, (device, unsigned, unsigned *)) \
	F(nvmlDeviceGetP2PStatus, (device, device, unsigned, unsigned *)) \
	F(nvmlDeviceGetCudaComputeCapability, (device, int *, int *)) \
	F(nvmlDeviceGetMaxPcieLinkGeneration, (device, unsigned *)) \
	F(nvmlDeviceGetMaxPcieLinkWidth, (device, unsigned *)) \
	F(nvmlDeviceGetComputeRunningProcesses, (device, unsigned *, void *)) \
	F(nvmlDeviceGetComputeRunningProcesses_v3, (device, unsigned *, void *)) \
	F(nvmlDeviceGetTemperature, (device, unsigned, unsigned *))

#define DECLARE(name, arguments) static int (*name) arguments;
FUNCTIONS(DECLARE)

static void result(int want, int got, const char *what)
{
	equal(NVML, want, got, "%s", what);
}

int main(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library) {
		printf("NOT libnvidia-ml.so.1: %s\n", dlerror());
		return 1;
	}
#define FIND(name, arguments) \
	name = dlsym(library, #name); \
	if (!name) \
		fail(#name);
	FUNCTIONS(FIND)

	unsigned count = 0, number = 9, level = 0, generation = 0, width = 0;
	device one, two, other;
	struct pci pci;
	struct memory memory;
	char text[100], uuid[100];
	int major = 0, minor = 0;
	result(UNINITIALIZED, nvmlDeviceGetCount_v2(&count), "before it is initialised");
	result(UNINITIALIZED, nvmlShutdown(), "nor can it be shut down");
	result(UNINITIALIZED, nvmlDeviceGetTemperature(NULL, 0, &number), "not even for what is missing");
	result(0, nvmlInit_v2(), "initialise it");
	result(0, nvmlInit_v2(), "twice");
	result(0, nvmlShutdown(), "shut it down once");
	result(0, nvmlSystemGetDriverVersion(text, sizeof(text)), "the driver's version");
	result(TOO_SHORT, nvmlSystemGetDriverVersion(text, 2), "no room for it");
	result(0, nvmlDeviceGetCount_v2(&count), "count");
	equal("the default platform", 2, count, "GPUs");
	result(INVALID_ARGUMENT, nvmlDeviceGetCount_v2(NULL), "no place for it");
	result(INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(2, &one), "one too many");
	if (nvmlDeviceGetHandleByIndex_v2(0, &one) || nvmlDeviceGetHandleByIndex_v2(1, &two))
		fail("handles");
	result(INVALID_ARGUMENT, nvmlDeviceGetIndex((device)0x77, &number), "garbage is no device");
	result(INVALID_ARGUMENT, nvmlDeviceGetIndex(NULL, &number), "nor is null");
	result(0, nvmlDeviceGetIndex(two, &number), "index");
	equal(NVML, 1, number, "of the second");
	result(0, nvmlDeviceGetName(one, text, sizeof(text)), "name");
	result(0, nvmlDeviceGetUUID(one, uuid, sizeof(uuid)), "UUID");
	equal(NVML, 40, strlen(uuid), "its length");
	result(0, nvmlDeviceGetHandleByUUID(uuid, &other), "found by it");
	holds(NVML, other == one, "the same");
	result(0, nvmlDeviceGetPciInfo_v3(one, &pci), "its place");
	holds("the default platform",
	      !strcmp(pci.bus_id, "00000000:1A:00.0") && pci.bus == 0x1a && !pci.domain && !pci.device,
	      "is the one on the platform");
	equal("the default platform", 0x0100f0f0, pci.ids, "its ids");
	result(0, nvmlDeviceGetHandleByPciBusId_v2("00000000:98:00.0", &other), "found by place");
	holds(NVML, other == two, "the second");
	result(GONE, nvmlDeviceGetHandleByPciBusId_v2("0000:18:00.0", &other), "the HCA is no GPU");
	result(INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2("here", &other), "no place");
	result(0, nvmlDeviceGetMemoryInfo(one, &memory), "memory");
	equal("the default platform", 1ul << 32, memory.total, "bytes of it");
	result(0, nvmlDeviceGetBAR1MemoryInfo(one, &memory), "BAR1");
	equal("the default platform", 1ul << 32, memory.total, "bytes of it");
	result(0, nvmlDeviceGetTopologyCommonAncestor(one, two, &level), "what both are below");
	equal("NVML_TOPOLOGY_SYSTEM", 50, level, "other sockets");
	result(0, nvmlDeviceGetTopologyCommonAncestor(one, one, &level), "with itself");
	equal("NVML_TOPOLOGY_INTERNAL", 0, level, "the same board");
	result(UNSUPPORTED, nvmlDeviceGetNvLinkState(one, 0, &number), "no NVLink");
	result(0, nvmlDeviceGetP2PStatus(one, two, 0, &number), "peers read each other");
	equal("NVML_P2P_STATUS_OK", 0, number, "by PCIe");
	result(0, nvmlDeviceGetCudaComputeCapability(one, &major, &minor), "capability");
	equal(NVML, 9, major, "of Hopper's limits");
	result(0, nvmlDeviceGetMaxPcieLinkGeneration(one, &generation), "link");
	result(0, nvmlDeviceGetMaxPcieLinkWidth(one, &width), "link");
	holds("the default platform", generation == 5 && width == 16, "generation 5, 16 lanes");
	number = 8;
	result(0, nvmlDeviceGetComputeRunningProcesses(one, &number, NULL), "who computes");
	equal(NVML, 0, number, "is not known");
	result(0, nvmlDeviceGetComputeRunningProcesses_v3(one, &number, NULL), "by CUDA 12's");
	result(INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses(one, NULL, NULL),
	       "no place for the number");
	result(INVALID_ARGUMENT, nvmlDeviceGetComputeRunningProcesses(NULL, &number, NULL),
	       "nor is null a device");
	result(UNSUPPORTED, nvmlDeviceGetTemperature(one, 0, &number), "no sensors");
	result(0, nvmlShutdown(), "shut it down");
	result(UNINITIALIZED, nvmlDeviceGetCount_v2(&count), "it is");
	return finish();
}
