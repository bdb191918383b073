/* NVML as its bindings (pynvml) call it, over devices that a file describes: lines "count 2", "0.power 412000", "1.lost 1".

   FAKE_NVML names the file; every call reads it again, so that a test can change a device while processes look at it. A device
   supports what the file says of it. An error of a device ("0.xid 79") is told once in each process. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };

static int text(const char *key, char *value, unsigned size) {
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  char name[64], found[128];
  int seen = 0;
  if (!file) return 0;
  while (!seen && fscanf(file, " %63s %127[^\n]", name, found) == 2) seen = !strcmp(name, key);
  fclose(file);
  if (seen) snprintf(value, size, "%s", found);
  return seen;
}

static int number(const char *key, long long *value) {
  char found[128];
  if (!text(key, found, sizeof found)) return 0;
  *value = atoll(found);
  return 1;
}

static int of_device(void *device, const char *what, long long *value) {
  char key[64];
  snprintf(key, sizeof key, "%ld.%s", (long)device - 1, what);
  return number(key, value);
}

static int ask(void *device, const char *what, long long *value) {
  long long lost;
  if (of_device(device, "lost", &lost) && lost) return LOST;
  return of_device(device, what, value) ? OK : NOT_SUPPORTED;
}

static int ask_unsigned(void *device, const char *what, unsigned *value) {
  long long found = 0;
  int answer = ask(device, what, &found);
  *value = (unsigned)found;
  return answer;
}

static unsigned char watched[16], told[16];

int nvmlInitWithFlags(unsigned flags) {
  long long n;
  (void)flags;
  return number("count", &n) ? OK : DRIVER_NOT_LOADED;
}

int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == DRIVER_NOT_LOADED ? "Driver Not Loaded" : error == LOST ? "GPU is lost" : "Not Found"; }
int nvmlSystemGetDriverVersion(char *value, unsigned size) { return text("driver", value, size) ? OK : NOT_FOUND; }
int nvmlSystemGetCudaDriverVersion(int *value) { long long n = 0; int ok = number("cuda", &n); *value = (int)n; return ok ? OK : NOT_FOUND; }
int nvmlDeviceGetCount_v2(unsigned *value) { long long n = 0; number("count", &n); *value = (unsigned)n; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  unsigned count;
  nvmlDeviceGetCount_v2(&count);
  *device = (void *)(long)(index + 1);
  return index < count ? OK : INVALID;
}

int nvmlDeviceGetUUID(void *device, char *value, unsigned size) {
  char key[64];
  long long lost;
  if (of_device(device, "lost", &lost) && lost) return LOST;
  snprintf(key, sizeof key, "%ld.uuid", (long)device - 1);
  return text(key, value, size) ? OK : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  char found[128];
  for (long i = 1; i <= 16; i++)
    if (nvmlDeviceGetUUID((void *)i, found, sizeof found) == OK && !strcmp(found, uuid)) { *device = (void *)i; return OK; }
  return NOT_FOUND;
}

int nvmlDeviceGetName(void *device, char *value, unsigned size) { (void)device; snprintf(value, size, "NVIDIA H200"); return OK; }

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
  long long used = 0, total = 0;
  int answer = ask(device, "used", &used);
  of_device(device, "total", &total);
  memory[0] = total, memory[1] = total - used, memory[2] = used;
  return answer;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
  char key[64];
  snprintf(key, sizeof key, "%ld.pci", (long)device - 1);
  return text(key, pci->bus_id, sizeof pci->bus_id) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) { rates[1] = 0; return ask_unsigned(device, "busy", &rates[0]); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *value) { return ask_unsigned(device, "power", value); }
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *value) { return ask_unsigned(device, "pages", value); }

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *value) {
  long long found = 0;
  int answer = ask(device, kind == 1 && since == 0 ? "ecc" : "other_ecc", &found);
  *value = found;
  return answer;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  *corrected = *uncorrected = *failed = 0;
  int answer = ask_unsigned(device, "rows_pending", pending);
  return answer ? answer : ask_unsigned(device, "rows_failed", failed);
}

int nvmlEventSetCreate(void **set) { *set = (void *)1; return OK; }

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) {
  char uuid[128];
  (void)set;
  if (nvmlDeviceGetUUID(device, uuid, sizeof uuid) == OK && !strncmp(uuid, "MIG-", 4)) return NOT_SUPPORTED;
  watched[(long)device & 15] = (kinds & 8) != 0;
  return OK;
}

struct event { void *device; unsigned long long kind, data; unsigned gpu, compute; };

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned wait_ms) {
  long long xid;
  (void)set, (void)wait_ms;
  for (long i = 1; i < 16; i++)
    if (watched[i] && !told[i] && of_device((void *)i, "xid", &xid)) {
      told[i] = 1, event->device = (void *)i, event->kind = 8, event->data = xid;
      return OK;
    }
  return TIMEOUT;
}
