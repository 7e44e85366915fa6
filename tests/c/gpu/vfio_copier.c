// A driver in user space for the copier of tests/guests/vfio_user.rs: maps memory for it through
// VFIO, has it copy and add, and checks bytes, interrupts, and that it cannot reach what is not
// mapped. Argument: the group of the device, and its address.
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SOURCE = 8, TARGET = 16, LENGTH = 24, GO = 32, STATUS = 40, VECTOR = 48 };
enum { COPY = 1, ADD = 2 };
enum { DONE = 1, FAULT = 2 };
enum { PAGES = 4, PAGE = 4096 };
static const uint64_t HERE = 0x100000, THERE = 0x800000, NOWHERE = 0x4000000;

static int container, device;
static uint64_t bar0;
static int events[2];

static int must(int result, const char *what)
{
	if (result < 0) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
	return result;
}

static void expect(int condition, const char *what)
{
	if (!condition) {
		printf("wrong: %s\n", what);
		exit(1);
	}
}

static void map(void *memory, uint64_t at, uint64_t size)
{
	struct vfio_iommu_type1_dma_map map = { .argsz = sizeof map, .flags = 3 };

	map.vaddr = (uintptr_t)memory;
	map.iova = at;
	map.size = size;
	must(ioctl(container, VFIO_IOMMU_MAP_DMA, &map), "map");
}

static void unmap(uint64_t at, uint64_t size)
{
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof unmap };

	unmap.iova = at;
	unmap.size = size;
	must(ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap), "unmap");
}

static void set(int reg, uint64_t value)
{
	must(pwrite(device, &value, 8, bar0 + reg), "register");
}

static uint64_t get(int reg)
{
	uint64_t value;

	must(pread(device, &value, 8, bar0 + reg), "register");
	return value;
}

// One command, and its interrupt on a vector that changes.
static int go(int what, uint64_t source, uint64_t target, uint64_t length)
{
	static int turn;
	int vector = turn++ % 2;
	struct pollfd waits = { .fd = events[vector], .events = POLLIN };
	uint64_t count;

	set(SOURCE, source);
	set(TARGET, target);
	set(LENGTH, length);
	set(VECTOR, vector);
	set(GO, what);
	expect(poll(&waits, 1, 20000) == 1, "no interrupt");
	must(read(events[vector], &count, 8), "event");
	expect(count == 1, "one interrupt");
	return get(STATUS);
}

static void open_device(const char *group_number, const char *address)
{
	struct vfio_region_info config = { .argsz = sizeof config,
					   .index = VFIO_PCI_CONFIG_REGION_INDEX };
	struct vfio_region_info bar = { .argsz = sizeof bar, .index = 0 };
	char path[64];
	uint16_t command;
	int group;

	snprintf(path, sizeof path, "/dev/vfio/%s", group_number);
	container = must(open("/dev/vfio/vfio", O_RDWR), "container");
	group = must(open(path, O_RDWR), path);
	must(ioctl(group, VFIO_GROUP_SET_CONTAINER, &container), "set container");
	must(ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU), "set iommu");
	device = must(ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address), "device");
	must(ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &config), "config space");
	must(ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &bar), "BAR 0");
	bar0 = bar.offset;
	must(pread(device, &command, 2, config.offset + 4), "command register");
	command |= 6;
	must(pwrite(device, &command, 2, config.offset + 4), "bus master");
}

static void take_interrupts(void)
{
	char room[sizeof(struct vfio_irq_set) + sizeof events];
	struct vfio_irq_set *set = (void *)room;

	events[0] = must(eventfd(0, 0), "event");
	events[1] = must(eventfd(0, 0), "event");
	set->argsz = sizeof room;
	set->flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
	set->index = VFIO_PCI_MSIX_IRQ_INDEX;
	set->start = 0;
	set->count = 2;
	memcpy(set->data, events, sizeof events);
	must(ioctl(device, VFIO_DEVICE_SET_IRQS, set), "interrupts");
}

int main(int argc, char **argv)
{
	int shared = argc > 3 && !strcmp(argv[3], "shared");
	unsigned char *memory;
	uint64_t *word;
	int i;

	expect(argc > 2, "arguments: GROUP ADDRESS [shared]");
	open_device(argv[1], argv[2]);
	take_interrupts();
	memory = mmap(NULL, 2 * PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	expect(memory != MAP_FAILED, "memory");
	for (i = 0; i < PAGES * PAGE; i++)
		memory[i] = i * 7 + i / PAGE;
	// Page by page, so that the copies cross borders of mappings.
	for (i = 0; i < PAGES; i++) {
		map(memory + i * PAGE, HERE + i * PAGE, PAGE);
		map(memory + (PAGES + i) * PAGE, THERE + i * PAGE, PAGE);
	}
	expect(get(0) == 0x7065657264616d61, "what it is");
	expect(go(COPY, HERE + 5, THERE + 100, 3 * PAGE) == DONE, "a copy");
	expect(!memcmp(memory + 5, memory + PAGES * PAGE + 100, 3 * PAGE), "the bytes");
	expect(memory[PAGES * PAGE + 99] == 0 && memory[PAGES * PAGE + 100 + 3 * PAGE] == 0,
	       "those around");

	word = (uint64_t *)(memory + PAGES * PAGE);
	word[0] = 40;
	expect(go(ADD, 2, THERE, 8) == (shared ? DONE : FAULT), "an atomic operation");
	expect(word[0] == (shared ? 42 : 40), "its result");

	expect(go(COPY, NOWHERE, THERE, 64) == FAULT, "a read outside of the map");
	expect(go(COPY, HERE, NOWHERE, 64) == FAULT, "a write outside of the map");
	expect(go(COPY, HERE + PAGES * PAGE - 32, THERE, 64) == FAULT,
	       "a read that leaves the map");
	unmap(THERE, PAGE);
	memset(memory + PAGES * PAGE, 0, PAGE);
	expect(go(COPY, HERE, THERE, 64) == FAULT, "a write after the unmap");
	expect(memory[PAGES * PAGE] == 0, "nothing written after the unmap");
	expect(go(COPY, HERE, THERE + PAGE, 64) == DONE, "the page beside it");
	printf("all right\n");
	return 0;
}
