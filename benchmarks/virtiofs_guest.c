/* The guest of virtiofs.py: /init of a machine that loads its modules, mounts each directory and does the same work in
 * each, in turns. The kernel's command line has TAGS (separated by commas) and TURNS. Each row is two lines on the
 * console: "begin TAG ROW", "end TAG ROW MILLISECONDS". */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 200, MEGABYTES = 32 };
static char buffer[1 << 20];
static char *known[1 << 16];
static int count;
static const char *tag;
static double begun;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void fail(const char *what)
{
	printf("fail %s: %s\n", what, strerror(errno));
	reboot(RB_AUTOBOOT);
}

static void begin(const char *row)
{
	printf("begin %s %s\n", tag, row);
	begun = now();
}

static void end(const char *row)
{
	double taken = now() - begun;
	printf("end %s %s %.2f\n", tag, row, taken);
}

static void drop_caches(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
	if (fd < 0 || write(fd, "3", 1) != 1)
		fail("drop_caches");
	close(fd);
	usleep(200000); /* what is forgotten by that is told now */
}

static void read_file(const char *path)
{
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		fail(path);
	while (read(fd, buffer, sizeof buffer) > 0)
		;
	close(fd);
}

static void walk(const char *path, int reads)
{
	char inner[512];
	struct stat found;
	struct dirent *entry;
	DIR *directory = opendir(path);
	if (!directory)
		fail(path);
	while ((entry = readdir(directory))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
		if (lstat(inner, &found))
			fail(inner);
		if (!reads && count < 1 << 16)
			known[count++] = strdup(inner);
		if (S_ISDIR(found.st_mode))
			walk(inner, reads);
		else if (reads)
			read_file(inner);
	}
	closedir(directory);
}

static void work(void)
{
	char path[64], other[64];
	struct stat found;
	int fd;

	drop_caches();
	count = 0;
	begin("walk");
	walk("tree", 0);
	end("walk");
	usleep(1200000); /* what is remembered for a second is out of date */
	begin("stat");
	for (int i = 0; i < count; i++)
		if (lstat(known[i], &found))
			fail(known[i]);
	end("stat");
	while (count)
		free(known[--count]);
	drop_caches();
	begin("read-all");
	walk("tree", 1);
	end("read-all");
	mkdir("made", 0755);
	begin("create");
	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "made/f%d", i);
		fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
		if (fd < 0 || write(fd, buffer, 3000) != 3000 || close(fd))
			fail(path);
	}
	end("create");
	begin("rename");
	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "made/f%d", i);
		snprintf(other, sizeof other, "made/g%d", i);
		if (rename(path, other))
			fail(path);
	}
	end("rename");
	begin("unlink");
	for (int i = 0; i < FILES; i++) {
		snprintf(other, sizeof other, "made/g%d", i);
		if (unlink(other))
			fail(other);
	}
	end("unlink");
	begin("write");
	fd = open("large", O_CREAT | O_TRUNC | O_WRONLY, 0644);
	for (int i = 0; i < MEGABYTES; i++)
		if (write(fd, buffer, sizeof buffer) != sizeof buffer)
			fail("write");
	if (fsync(fd) || close(fd))
		fail("fsync");
	end("write");
	drop_caches();
	begin("read");
	read_file("large");
	end("read");
	unlink("large");
	rmdir("made");
}

static void load_modules(void)
{
	char path[64];
	for (int i = 0;; i++) {
		snprintf(path, sizeof path, "/mod/%d.ko", i);
		int fd = open(path, O_RDONLY);
		if (fd < 0)
			return;
		if (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)
			fail(path);
		close(fd);
	}
}

int main(void)
{
	char *tags[8];
	int mounted = 0, turns = atoi(getenv("TURNS"));

	mkdir("/proc", 0755);
	mount("p", "/proc", "proc", 0, "");
	load_modules();
	setvbuf(stdout, NULL, _IONBF, 0);
	for (char *each = strtok(getenv("TAGS"), ","); each; each = strtok(NULL, ",")) {
		tags[mounted] = each;
		if (chdir("/") || mkdir(each, 0755) || mount(each, each, "virtiofs", 0, ""))
			fail(each);
		mounted++;
	}
	for (int turn = 0; turn < turns; turn++)
		for (int i = 0; i < mounted; i++) {
			tag = tags[(i + turn) % mounted];
			if (chdir("/") || chdir(tag))
				fail(tag);
			work();
		}
	printf("done\n");
	reboot(RB_AUTOBOOT);
}
