/* Every way of reaching a file, on paths of ours and on others. argv[1]: a scratch directory. */
#include "check.h"
#include <dirent.h>
#include <glob.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define CLASS "/sys/class/infiniband"
#define DEVICE CLASS "/peerdma0"
#define STATE DEVICE "/ports/1/state"
#define GID DEVICE "/ports/1/gids/0"
#define FUNCTION "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
#define UVERBS "/dev/infiniband/uverbs0"

static void reads(int fd, const char *text)
{
	char buffer[128] = { 0 };
	CHECK(fd >= 0);
	CHECK(read(fd, buffer, sizeof buffer - 1) == (ssize_t)strlen(text));
	CHECK(strcmp(buffer, text) == 0);
	CHECK(close(fd) == 0);
}

static void freads(FILE *file, const char *text)
{
	char buffer[128] = { 0 };
	CHECK(file != NULL);
	CHECK(fgets(buffer, sizeof buffer, file) != NULL);
	CHECK(strcmp(buffer, text) == 0);
	CHECK(fclose(file) == 0);
}

static void opening(void)
{
	const char *gid = getenv("PEERDMA_TEST_GID");
	gid = gid ? gid : "fe80:0000:0000:0000:0000:0000:0000:0001\n";
	reads(open(STATE, O_RDONLY), "4: ACTIVE\n");
	reads(open64(STATE, O_RDONLY | O_CLOEXEC), "4: ACTIVE\n");
	reads(openat(AT_FDCWD, STATE, O_RDONLY), "4: ACTIVE\n");
	reads(openat64(7, STATE, O_RDONLY), "4: ACTIVE\n");
	int flags = O_RDONLY; /* not constant: _FORTIFY_SOURCE then calls __open_2 */
	if (getpid() == 0)
		flags = O_RDWR;
	reads(open(STATE, flags), "4: ACTIVE\n");
	reads(open("/sys//class/./infiniband/peerdma0/ports/1/state", O_RDONLY), "4: ACTIVE\n");
	reads(open(FUNCTION "/infiniband/peerdma0/ports/1/state", O_RDONLY), "4: ACTIVE\n");
	reads(open("/sys/bus/pci/devices/0000:3b:00.0/vendor", O_RDONLY), "0x1af4\n");
	reads(open(GID, O_RDONLY), gid);
	reads(open(FUNCTION "/infiniband/peerdma0/ports/1/gids/0", O_RDONLY), gid);
	reads(open("/sys/class/infiniband_verbs/uverbs0/device/infiniband/peerdma0/ports/1/gids/0",
		   O_RDONLY),
	      gid);
	freads(fopen(GID, "r"), gid);
	freads(fopen64(GID, "re"), gid);
	freads(freopen(STATE, "r", fopen("/dev/null", "r")), "4: ACTIVE\n");

	int directory = open(DEVICE "/ports/1", O_RDONLY | O_DIRECTORY);
	CHECK(directory >= 0);
	reads(openat(directory, "state", O_RDONLY), "4: ACTIVE\n");
	reads(openat(directory, "gids/0", O_RDONLY), gid);
	CHECK(close(directory) == 0);

	/* The close-on-exec flag is as asked, also for an anonymous file. */
	int fd = open(GID, O_RDONLY);
	CHECK(fcntl(fd, F_GETFD) == 0);
	close(fd);
	fd = open(GID, O_RDONLY | O_CLOEXEC);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	close(fd);
}

static void refusing(void)
{
	FAILS(open(STATE, O_WRONLY), EACCES);
	FAILS(open(GID, O_RDWR), EACCES);
	FAILS(open(STATE, O_RDONLY | O_TRUNC), EACCES);
	FAILS(creat(STATE, 0644), EACCES);
	FAILS(open(CLASS "/none", O_RDONLY), ENOENT);
	FAILS(open(STATE "/x", O_RDONLY), ENOTDIR);
	FAILS(open(UVERBS, O_RDWR), ENXIO);
	FAILS(open("/dev/infiniband/uverbs1", O_RDWR), ENOENT);
	FAILS(open("/dev/infiniband/umad0", O_RDWR | O_CLOEXEC), ENOENT);
	FAILS(open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC), ENXIO);
	CHECK(access("/dev/infiniband/rdma_cm", R_OK | W_OK) == 0);
	CHECK(fopen(STATE, "r+") == NULL && errno == EACCES);
	CHECK(fopen(STATE, "z") == NULL && errno == EINVAL);
	CHECK(fopen(CLASS "/none", "r") == NULL && errno == ENOENT);
	CHECK(opendir(STATE) == NULL && errno == ENOTDIR);
	int path = open(UVERBS, O_PATH);
	CHECK(path >= 0 && close(path) == 0);
	reads(open(STATE, O_RDONLY), "4: ACTIVE\n");
}

static void asking(void)
{
	struct stat status;
	struct statx extended;
	CHECK(stat(STATE, &status) == 0 && S_ISREG(status.st_mode) &&
	      (status.st_mode & 0777) == 0444);
	CHECK(lstat(DEVICE, &status) == 0 && S_ISLNK(status.st_mode));
	CHECK(stat(DEVICE, &status) == 0 && S_ISDIR(status.st_mode));
	CHECK(stat64(STATE, (struct stat64 *)&status) == 0 &&
	      lstat64(STATE, (struct stat64 *)&status) == 0);
	CHECK(fstatat(AT_FDCWD, DEVICE, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
	      S_ISLNK(status.st_mode));
	int (*xstat)(int, const char *, struct stat *) = find("__xstat");
	int (*fxstatat)(int, int, const char *, struct stat *, int) = find("__fxstatat");
	CHECK(xstat(1, STATE, &status) == 0 && S_ISREG(status.st_mode));
	CHECK(fxstatat(1, AT_FDCWD, UVERBS, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
	      S_ISCHR(status.st_mode));
	CHECK(stat(UVERBS, &status) == 0 && S_ISCHR(status.st_mode) &&
	      status.st_rdev == makedev(231, 192));
	CHECK(lstat(UVERBS, &status) == 0 && S_ISCHR(status.st_mode));
	CHECK(statx(AT_FDCWD, UVERBS, 0, STATX_BASIC_STATS, &extended) == 0);
	CHECK(S_ISCHR(extended.stx_mode) && extended.stx_rdev_major == 231 &&
	      extended.stx_rdev_minor == 192);
	CHECK(access(UVERBS, R_OK | W_OK) == 0 && access(STATE, R_OK) == 0);
	CHECK(faccessat(AT_FDCWD, UVERBS, R_OK | W_OK, AT_EACCESS) == 0);
	CHECK(eaccess(STATE, R_OK) == 0 && euidaccess(STATE, R_OK) == 0);
	FAILS(access(CLASS "/none", F_OK), ENOENT);
	FAILS(stat("/dev/infiniband/uverbs1", &status), ENOENT);
	char value[8];
	CHECK(getxattr(STATE, "user.none", value, sizeof value) == -1 && errno != ENOENT);
	CHECK(listxattr(STATE, NULL, 0) >= 0 && llistxattr(DEVICE, NULL, 0) >= 0);
}

static void resolving(void)
{
	char buffer[4096];
	ssize_t length = readlink(DEVICE, buffer, sizeof buffer);
	CHECK(length > 0);
	buffer[length] = 0;
	CHECK(strcmp(buffer,
		     "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/peerdma0") ==
	      0);
	FAILS(readlink(UVERBS, buffer, sizeof buffer), EINVAL);
	CHECK(readlinkat(AT_FDCWD, DEVICE "/device", buffer, sizeof buffer) == 21);
	CHECK(strcmp(realpath(DEVICE "/device", buffer), FUNCTION) == 0);
	char *path = realpath(DEVICE "/device/infiniband", NULL);
	CHECK(path && strcmp(path, FUNCTION "/infiniband") == 0);
	free(path);
	path = canonicalize_file_name("/sys/bus/pci/devices/0000:3b:00.0");
	CHECK(path && strcmp(path, FUNCTION) == 0);
	CHECK(access(path, F_OK) == 0);
	free(path);
	CHECK(strcmp(realpath(UVERBS, buffer), UVERBS) == 0);
	CHECK(realpath(CLASS "/none", buffer) == NULL && errno == ENOENT);
	path = realpath(DEVICE "/device/net/lo", NULL); /* leads out of the tree */
	CHECK(path && strstr(path, "/net/lo") && access(path, F_OK) == 0);
	free(path);
}

static void listing(void)
{
	DIR *directory = opendir(CLASS);
	CHECK(directory != NULL);
	int found = 0;
	for (struct dirent *entry; (entry = readdir(directory));)
		found += strcmp(entry->d_name, "peerdma0") == 0;
	CHECK(found == 1 && closedir(directory) == 0);
	struct dirent **names;
	CHECK(scandir(DEVICE "/ports", &names, NULL, alphasort) == 3);
	CHECK(strcmp(names[2]->d_name, "1") == 0);
	glob_t paths;
	CHECK(glob(CLASS "/*/ports/*/sta[t]e", 0, NULL, &paths) == 0);
	CHECK(paths.gl_pathc == 1 && strcmp(paths.gl_pathv[0], STATE) == 0);
	CHECK(glob("/dev/infiniband/uverbs*", GLOB_APPEND, NULL, &paths) == 0);
	CHECK(paths.gl_pathc == 2 && strcmp(paths.gl_pathv[0], STATE) == 0 &&
	      strcmp(paths.gl_pathv[1], UVERBS) == 0);
	globfree(&paths);
	paths.gl_offs = 2;
	CHECK(glob("/sys/class/infiniband", GLOB_DOOFFS, NULL, &paths) == 0);
	CHECK(strcmp(paths.gl_pathv[2], CLASS) == 0);
	globfree(&paths);
	CHECK(chdir(DEVICE "/ports/1") == 0);
	reads(open("state", O_RDONLY), "4: ACTIVE\n");
	const char *gid = getenv("PEERDMA_TEST_GID");
	if (gid)
		reads(open("gids/0", O_RDONLY), gid);
}

/* What is not ours behaves as ever: modes, temporary files, errno. */
static void others(const char *scratch)
{
	struct stat status;
	CHECK(chdir(scratch) == 0);
	umask(0);
	int fd = open("created", O_CREAT | O_EXCL | O_RDWR, 0613);
	CHECK(fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0613);
	CHECK(close(fd) == 0);
	FAILS(open("created", O_CREAT | O_EXCL | O_RDWR, 0613), EEXIST);
	fd = openat(AT_FDCWD, "second", O_CREAT | O_RDWR, 0421);
	CHECK(fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0421);
	CHECK(close(fd) == 0);
	fd = creat("third", 0207);
	CHECK(fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0207);
	CHECK(close(fd) == 0);
	fd = open(".", O_TMPFILE | O_RDWR, 0521);
	CHECK(fd >= 0 ? fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0521
		      : errno == EOPNOTSUPP);
	CHECK(mkdir("folder", 0755) == 0);
	int directory = open("folder", O_RDONLY | O_DIRECTORY);
	CHECK(fstatat(directory, "../created", &status, 0) == 0);
	CHECK(faccessat(directory, "../created", F_OK, 0) == 0);
	FAILS(open("/sys/class/none", O_RDONLY), ENOENT);
	const char *volatile null = NULL;
	FAILS(open(null, O_RDONLY), EFAULT);
	FAILS(stat("", &status), ENOENT);
	CHECK(access("/sys/class/net/lo", F_OK) == 0 &&
	      access("/sys/devices/system/cpu", F_OK) == 0);
	CHECK(open("/sys/devices/pci9999:99/9999:99:99.9", O_RDONLY) == -1 && errno == ENOENT);
}

static void *waits_for_writer(void *path) { return (void *)(intptr_t)open(path, O_RDONLY); }

/* A thread that waits in open() can be cancelled, as without us. */
static void cancelling(void)
{
	pthread_t thread;
	void *result = NULL;
	CHECK(mkfifo("fifo", 0600) == 0);
	CHECK(pthread_create(&thread, NULL, waits_for_writer, "fifo") == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	opening();
	refusing();
	asking();
	resolving();
	listing();
	others(argv[1]);
	cancelling();
	puts("done");
	return 0;
}
