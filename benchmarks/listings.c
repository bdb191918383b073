/* Folders that cannot be listed: opendir fails with EIO where $CHAOS_REFUSE holds a file once-NAME (taken away by the
 * first that meets it) or always-NAME, NAME being the folder's last name. Loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int refused(const char *path) {
  const char *orders = getenv("CHAOS_REFUSE");
  char name[PATH_MAX], order[2 * PATH_MAX];
  if (!orders || !path || strlen(path) >= sizeof name) return 0;
  strcpy(name, path);
  const char *last = basename(name);
  snprintf(order, sizeof order, "%s/once-%s", orders, last);
  if (!unlink(order)) return 1;
  snprintf(order, sizeof order, "%s/always-%s", orders, last);
  return !access(order, F_OK);
}

DIR *opendir(const char *path) {
  static DIR *(*real)(const char *);
  int before = errno;
  if (refused(path)) {
    errno = EIO;
    return NULL;
  }
  errno = before;
  if (!real) real = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
  return real(path);
}
