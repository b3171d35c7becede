/* A stand-in for libnvidia-ml.so.1: acts out what a text file says, read anew at each call.
 *
 * The file is named by GRN_STANDIN_NVML; one fact per line, unknown lines are ignored:
 *
 *   gpu UUID [total=N] [base=N] [reserve=N] [util=N|none] [temp=N] [power=N] [clock=N] [mode=N] [mig=on]
 *            [health=ok|lost|unknown] [name=...]
 *   mig PARENT PLACE UUID [total=N] [base=N] [reserve=N] [name=...]
 *   process UUID PID BYTES|unknown compute|graphics|mps [sticky]
 *   hang FUNCTION|* [UUID]         the call does not return while the line is there
 *   fail FUNCTION|* CODE [UUID]
 *   crash FUNCTION|* [UUID]        the process dies inside the call
 *   null FUNCTION [UUID]           the call succeeds with a handle that points nowhere
 *   accounting on|off|denied|unsupported
 *   peak UUID PID BYTES
 *   busy UUID PID PERCENT STAMP    the load of a process, as measured at that time
 *   link UUID UUID LANES|switched LEVEL|none   how two GPUs are joined; LEVEL is of NVML's topology
 *   burst N                        the first N readings of a process list find it has grown
 *
 * `name=` takes the rest of its line; \xNN in it is a raw byte. Order of `gpu` lines is NVML order.
 * Processes that are gone drop out, unless sticky. Live allocations are added from the folder
 * "$GRN_STANDIN_NVML.d": one file per process, called UUID.PID, with "BYTES [START_TICKS]" in it.
 *
 * Variants: -DNO_V3 (old driver), -DLONG_V3 (early R535: 32-byte elements), -DSHORT_V3 (16-byte
 * elements), -DNO_MEMORY_V2.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef unsigned int u32;
typedef struct { char uuid[96]; } Handle;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       TOO_SMALL = 7, NOT_LOADED = 9, LOST = 15, UNKNOWN = 999 };
enum { COMPUTE, GRAPHICS, MPS };
#define ALL_ONES (~0ULL)
#define MOST_GPUS 64
#define MOST_PROCESSES 4096
#define MOST_RULES 64

struct gpu {
    char uuid[96], parent[96], name[96];
    u64 total, base, reserve;
    u32 util, temp, power, clock;
    int place, mode, health, has_util, has_mig;
};
struct process { char uuid[96]; u32 pid; u64 bytes; int kind; };
struct rule { char verb[8], function[64], uuid[96]; int code; };
struct peak { char uuid[96]; u32 pid; u64 bytes; };
struct busy { char uuid[96]; u32 pid, percent; u64 stamp; };
struct join { char one[96], other[96]; int lanes, is_switched, level; };

static struct gpu gpus[MOST_GPUS];
static struct process processes[MOST_PROCESSES];
static struct rule rules[MOST_RULES];
static struct peak peaks[MOST_RULES];
static struct join joins[MOST_GPUS];
static struct busy busy[MOST_RULES];
static int gpu_count, process_count, rule_count, peak_count, join_count, busy_count, bursts, accounting;
static int is_open, bursts_done, was_switched_on;
static Handle handles[MOST_GPUS];

/* --- the state file --------------------------------------------------------------------- */

/* Whether that very process runs; a zombie has given its memory back. */
static int is_alive(u32 pid, u64 started) {
    char path[64], text[1024], state = 'Z';
    u64 ticks = 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *rest = strrchr(text, ')');
    if (!rest) return 0;
    sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
           &state, &ticks);
    return state != 'Z' && state != 'X' && (!started || started == ticks);
}

static void read_name(char *to, size_t size, const char *from) {
    size_t used = 0;
    while (*from && *from != '\n' && used + 1 < size) {
        u32 byte;
        if (from[0] == '\\' && from[1] == 'x' && sscanf(from + 2, "%2x", &byte) == 1) {
            to[used++] = (char)byte;
            from += 4;
        } else {
            to[used++] = *from++;
        }
    }
    to[used] = 0;
}

static void read_facts(struct gpu *gpu, char *text) {
    char *name = strstr(text, " name=");
    strcpy(gpu->name, "Stand-in GPU");
    if (name) {
        read_name(gpu->name, sizeof gpu->name, name + 6);
        *name = 0;
    }
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "total")) gpu->total = strtoull(value, NULL, 10);
        if (!strcmp(word, "base")) gpu->base = strtoull(value, NULL, 10);
        if (!strcmp(word, "reserve")) gpu->reserve = strtoull(value, NULL, 10);
        if (!strcmp(word, "mode")) gpu->mode = atoi(value);
        if (!strcmp(word, "mig")) gpu->has_mig = !strcmp(value, "on");
        if (!strcmp(word, "temp")) gpu->temp = (u32)strtoul(value, NULL, 10);
        if (!strcmp(word, "power")) gpu->power = (u32)strtoul(value, NULL, 10);
        if (!strcmp(word, "clock")) gpu->clock = (u32)strtoul(value, NULL, 10);
        if (!strcmp(word, "util")) {
            gpu->has_util = strcmp(value, "none") != 0;
            gpu->util = (u32)strtoul(value, NULL, 10);
        }
        if (!strcmp(word, "health"))
            gpu->health = !strcmp(value, "lost") ? LOST : !strcmp(value, "unknown") ? UNKNOWN : OK;
    }
}

static void read_gpu(char *line) {
    struct gpu *gpu = &gpus[gpu_count];
    int used = 0;
    if (gpu_count == MOST_GPUS) return;
    memset(gpu, 0, sizeof *gpu);
    gpu->has_util = 1;
    if (sscanf(line, "gpu %95s%n", gpu->uuid, &used) == 1 ||
        sscanf(line, "mig %95s %d %95s%n", gpu->parent, &gpu->place, gpu->uuid, &used) == 3) {
        read_facts(gpu, line + used);
        gpu_count++;
    }
}

static void add_process(const char *uuid, u32 pid, u64 bytes, int kind) {
    if (process_count == MOST_PROCESSES) return;
    struct process *process = &processes[process_count++];
    snprintf(process->uuid, sizeof process->uuid, "%s", uuid);
    process->pid = pid;
    process->bytes = bytes;
    process->kind = kind;
}

static void read_process(const char *line) {
    char uuid[96], bytes[32], kind[16], sticky[16] = "";
    u32 pid;
    if (sscanf(line, "process %95s %u %31s %15s %15s", uuid, &pid, bytes, kind, sticky) < 4) return;
    if (strcmp(sticky, "sticky") && !is_alive(pid, 0)) return;
    add_process(uuid, pid, strcmp(bytes, "unknown") ? strtoull(bytes, NULL, 10) : ALL_ONES,
                kind[0] == 'g' ? GRAPHICS : kind[0] == 'm' ? MPS : COMPUTE);
}

static void read_rule(const char *line) {
    struct rule *rule = &rules[rule_count];
    if (rule_count == MOST_RULES) return;
    memset(rule, 0, sizeof *rule);
    if (sscanf(line, "%7s %63s", rule->verb, rule->function) != 2) return;
    if (!strcmp(rule->verb, "fail")) {
        if (sscanf(line, "%*s %*s %d %95s", &rule->code, rule->uuid) < 1) return;
    } else {
        sscanf(line, "%*s %*s %95s", rule->uuid);
    }
    rule_count++;
}

static void read_join(const char *line) {
    struct join *join = &joins[join_count];
    char lanes[16], level[16];
    if (join_count == MOST_GPUS) return;
    if (sscanf(line, "link %95s %95s %15s %15s", join->one, join->other, lanes, level) != 4) return;
    join->is_switched = !strcmp(lanes, "switched");
    join->lanes = join->is_switched ? 0 : atoi(lanes);
    join->level = strcmp(level, "none") ? atoi(level) : -1;
    join_count++;
}

static void read_line(char *line) {
    char word[16] = "", value[16] = "";
    if (sscanf(line, "%15s %15s", word, value) < 2) return;
    if (!strcmp(word, "gpu") || !strcmp(word, "mig")) read_gpu(line);
    if (!strcmp(word, "process")) read_process(line);
    if (!strcmp(word, "hang") || !strcmp(word, "fail") || !strcmp(word, "crash") ||
        !strcmp(word, "null"))
        read_rule(line);
    if (!strcmp(word, "link")) read_join(line);
    if (!strcmp(word, "busy") && busy_count < MOST_RULES) {
        struct busy *one = &busy[busy_count];
        busy_count += sscanf(line, "busy %95s %u %u %llu", one->uuid, &one->pid, &one->percent, &one->stamp) == 4;
    }
    if (!strcmp(word, "burst")) bursts = atoi(value);
    if (!strcmp(word, "accounting"))
        accounting = !strcmp(value, "on") ? 1 : !strcmp(value, "off") ? 0 : !strcmp(value, "denied") ? 2 : 3;
    if (!strcmp(word, "peak") && peak_count < MOST_RULES) {
        struct peak *peak = &peaks[peak_count];
        peak_count += sscanf(line, "peak %95s %u %llu", peak->uuid, &peak->pid, &peak->bytes) == 3;
    }
}

static void read_allocations(const char *state) {
    char path[4096], uuid[96];
    struct dirent *entry;
    snprintf(path, sizeof path, "%s.d", state);
    DIR *folder = opendir(path);
    if (!folder) return;
    while ((entry = readdir(folder))) {
        u32 pid;
        u64 bytes = 0, started = 0;
        if (entry->d_name[0] == '.' || sscanf(entry->d_name, "%95[^.].%u", uuid, &pid) != 2) continue;
        snprintf(path, sizeof path, "%s.d/%s", state, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%llu %llu", &bytes, &started) >= 1 && is_alive(pid, started))
            add_process(uuid, pid, bytes, COMPUTE);
        fclose(file);
    }
    closedir(folder);
}

static int read_state(void) {
    const char *path = getenv("GRN_STANDIN_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    if (!file) return 0;
    gpu_count = process_count = rule_count = peak_count = join_count = busy_count = bursts = accounting = 0;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    read_allocations(path);
    return 1;
}

/* --- what every call goes through ------------------------------------------------------- */

static struct gpu *find(const char *uuid) {
    for (int i = 0; i < gpu_count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) return &gpus[i];
    return NULL;
}

static struct rule *rule_for(const char *verb, const char *function, const char *uuid) {
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->verb, verb)) continue;
        if (strcmp(rule->function, "*") && strcmp(rule->function, function)) continue;
        if (!rule->uuid[0] || (uuid && !strcmp(rule->uuid, uuid))) return rule;
    }
    return NULL;
}

static int enter(const char *function, const char *uuid) {
    struct rule *rule;
    while (1) {
        if (!read_state()) return NOT_LOADED;
        if (!rule_for("hang", function, uuid)) break;
        usleep(20000);
    }
    if (rule_for("crash", function, uuid)) abort();
    if ((rule = rule_for("fail", function, uuid))) return rule->code;
    return is_open || !strncmp(function, "nvmlInit", 8) ? OK : UNINITIALIZED;
}

/* As `enter`, for calls on one GPU. A null handle crashes, as with the real library. */
static int touch(const char *function, Handle *handle, struct gpu **gpu) {
    int code = enter(function, handle->uuid);
    if (code) return code;
    *gpu = find(handle->uuid);
    if (!*gpu) return LOST;
    if ((*gpu)->health) return (*gpu)->health;
    struct gpu *parent = (*gpu)->parent[0] ? find((*gpu)->parent) : *gpu;
    return parent ? parent->health : LOST;
}

#define TOUCH struct gpu *gpu; int code = touch(__func__, handle, &gpu); if (code) return code

static Handle *handle_of(const char *uuid) {
    for (int i = 0; i < MOST_GPUS; i++) {
        if (!handles[i].uuid[0]) strcpy(handles[i].uuid, uuid);
        if (!strcmp(handles[i].uuid, uuid)) return &handles[i];
    }
    return NULL;
}

static struct gpu *card(u32 index) {
    for (int i = 0; i < gpu_count; i++)
        if (!gpus[i].parent[0] && index-- == 0) return &gpus[i];
    return NULL;
}

static u64 used_bytes(const struct gpu *gpu) {
    u64 sum = gpu->base;
    for (int i = 0; i < process_count; i++) {
        struct process *process = &processes[i];
        int is_repeated = 0; /* the same process in another list */
        if (strcmp(process->uuid, gpu->uuid) || process->bytes == ALL_ONES) continue;
        for (int k = 0; k < i; k++)
            is_repeated |= processes[k].pid == process->pid && processes[k].bytes != ALL_ONES &&
                           !strcmp(processes[k].uuid, gpu->uuid);
        if (!is_repeated) sum += process->bytes;
    }
    return sum;
}

static u64 free_bytes(const struct gpu *gpu) {
    u64 taken = gpu->reserve + used_bytes(gpu);
    return taken < gpu->total ? gpu->total - taken : 0;
}

/* --- the library ------------------------------------------------------------------------ */

/* Each session asked for leaves a dot in "$GRN_STANDIN_NVML.sessions". */
static void count_session(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s.sessions", getenv("GRN_STANDIN_NVML"));
    FILE *file = fopen(path, "a");
    if (!file) return;
    fputc('.', file);
    fclose(file);
}

int nvmlInitWithFlags(u32 flags) {
    count_session();
    int code = enter(__func__, NULL);
    (void)flags;
    if (!code) is_open++;
    return code;
}

int nvmlShutdown(void) {
    if (is_open) is_open--;
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "Stand-in Error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, u32 length) {
    int code = enter(__func__, NULL);
    if (!code) snprintf(version, length, "999.0");
    return code;
}

int nvmlDeviceGetCount_v2(u32 *count) {
    int code = enter(__func__, NULL);
    *count = 0;
    if (!code)
        while (card(*count)) ++*count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle **handle) {
    int code = enter(__func__, NULL);
    if (code) return code;
    struct gpu *gpu = card(index);
    if (!gpu) return INVALID;
    code = touch(__func__, handle_of(gpu->uuid), &gpu);
    if (!code) *handle = rule_for("null", __func__, gpu->uuid) ? NULL : handle_of(gpu->uuid);
    return code;
}

int nvmlDeviceGetUUID(Handle *handle, char *uuid, u32 length) {
    TOUCH;
    snprintf(uuid, length, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetName(Handle *handle, char *name, u32 length) {
    TOUCH;
    snprintf(name, length, "%s", gpu->name);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Handle *handle, u64 memory[3]) {
    TOUCH;
    memory[0] = gpu->total;
    memory[1] = free_bytes(gpu);
    memory[2] = gpu->reserve + used_bytes(gpu);
    return OK;
}

#ifndef NO_MEMORY_V2
struct memory_v2 { u32 version; u64 total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(Handle *handle, struct memory_v2 *memory) {
    TOUCH;
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    memory->total = gpu->total;
    memory->reserved = gpu->reserve;
    memory->free = free_bytes(gpu);
    memory->used = used_bytes(gpu);
    return OK;
}
#endif

int nvmlDeviceGetUtilizationRates(Handle *handle, u32 rates[2]) {
    TOUCH;
    if (gpu->parent[0] || !gpu->has_util) return NOT_SUPPORTED;
    rates[0] = rates[1] = gpu->util;
    return OK;
}

struct sample { u32 pid; u64 stamp; u32 percent, memory, encoder, decoder; };

int nvmlDeviceGetProcessUtilization(Handle *handle, struct sample *out, u32 *room, u64 since) {
    TOUCH;
    u32 count = 0;
    for (int i = 0; i < busy_count; i++) {
        if (strcmp(busy[i].uuid, gpu->uuid) || busy[i].stamp <= since) continue;
        if (out && count < *room) {
            memset(&out[count], 0, sizeof *out);
            out[count].pid = busy[i].pid;
            out[count].stamp = busy[i].stamp;
            out[count].percent = busy[i].percent;
        }
        count++;
    }
    int is_full = count > *room;
    *room = count;
    return !count ? NOT_FOUND : is_full ? TOO_SMALL : OK;
}

int nvmlDeviceGetTemperature(Handle *handle, int sensor, u32 *degrees) {
    TOUCH;
    if (sensor || !gpu->temp) return NOT_SUPPORTED;
    *degrees = gpu->temp;
    return OK;
}

int nvmlDeviceGetPowerUsage(Handle *handle, u32 *milliwatts) {
    TOUCH;
    if (!gpu->power) return NOT_SUPPORTED;
    *milliwatts = gpu->power;
    return OK;
}

int nvmlDeviceGetClockInfo(Handle *handle, int kind, u32 *megahertz) {
    TOUCH;
    if (kind != 1 || !gpu->clock) return NOT_SUPPORTED;
    *megahertz = gpu->clock;
    return OK;
}

int nvmlDeviceGetComputeMode(Handle *handle, u32 *mode) {
    TOUCH;
    *mode = (u32)gpu->mode;
    return OK;
}

static int has_slices(const struct gpu *gpu) {
    for (int i = 0; i < gpu_count; i++)
        if (!strcmp(gpus[i].parent, gpu->uuid)) return 1;
    return 0;
}

int nvmlDeviceGetMigMode(Handle *handle, u32 *current, u32 *pending) {
    TOUCH;
    *current = *pending = gpu->has_mig || has_slices(gpu);
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle *handle, u32 *count) {
    TOUCH;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, u32 place, Handle **slice) {
    TOUCH;
    for (int i = 0; i < gpu_count; i++) {
        if (strcmp(gpus[i].parent, gpu->uuid) || gpus[i].place != (int)place) continue;
        *slice = handle_of(gpus[i].uuid);
        return OK;
    }
    return NOT_FOUND;
}

/* --- links ------------------------------------------------------------------------------ */

enum { SWITCHED_LANES = 18, SWITCH_BUS = 200 };
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };

static struct join *join_of(const char *one, const char *other) {
    for (int i = 0; i < join_count; i++)
        if ((!strcmp(joins[i].one, one) && !strcmp(joins[i].other, other)) ||
            (!strcmp(joins[i].one, other) && !strcmp(joins[i].other, one)))
            return &joins[i];
    return NULL;
}

/* The bus that a lane of a GPU leads to, 0 for none. */
static u32 far_bus(const char *uuid, u32 lane) {
    u32 first = 0;
    for (int i = 0; i < join_count; i++) {
        int is_one = !strcmp(joins[i].one, uuid);
        if (!is_one && strcmp(joins[i].other, uuid)) continue;
        if (joins[i].is_switched) return lane < SWITCHED_LANES ? SWITCH_BUS : 0;
        first += (u32)joins[i].lanes;
        if (lane < first) return (u32)(find(is_one ? joins[i].other : joins[i].one) - gpus) + 1;
    }
    return 0;
}

int nvmlDeviceGetPciInfo_v3(Handle *handle, struct pci *pci) {
    TOUCH;
    memset(pci, 0, sizeof *pci);
    pci->bus = (u32)(gpu - gpus) + 1;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}

int nvmlDeviceGetNvLinkState(Handle *handle, u32 lane, u32 *is_active) {
    TOUCH;
    if (!join_count) return NOT_SUPPORTED;
    if (lane >= SWITCHED_LANES) return INVALID;
    *is_active = far_bus(gpu->uuid, lane) != 0;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *handle, u32 lane, struct pci *pci) {
    TOUCH;
    memset(pci, 0, sizeof *pci);
    pci->bus = far_bus(gpu->uuid, lane);
    return pci->bus ? OK : INVALID;
}

int nvmlDeviceGetP2PStatus(Handle *handle, Handle *other, u32 kind, u32 *status) {
    TOUCH;
    struct join *join = join_of(gpu->uuid, other->uuid);
    if (!join_count) return NOT_SUPPORTED;
    *status = kind == 2 && join && (join->lanes || join->is_switched) ? 0 : 5;
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(Handle *handle, Handle *other, u32 *level) {
    TOUCH;
    struct join *join = join_of(gpu->uuid, other->uuid);
    if (!join_count || (join && join->level < 0)) return NOT_SUPPORTED;
    *level = join ? (u32)join->level : 50;
    return OK;
}

/* --- accounting ------------------------------------------------------------------------- */

int nvmlDeviceGetAccountingMode(Handle *handle, u32 *mode) {
    TOUCH;
    if (accounting == 3 || gpu->parent[0]) return NOT_SUPPORTED;
    *mode = accounting == 1 || (accounting == 0 && was_switched_on);
    return OK;
}

int nvmlDeviceSetAccountingMode(Handle *handle, u32 mode) {
    TOUCH;
    if (accounting >= 2) return accounting == 2 ? NO_PERMISSION : NOT_SUPPORTED;
    was_switched_on = mode == 1;
    return OK;
}

struct accounting_stats { u32 gpu, memory; u64 peak, time, started; u32 is_running, reserved[5]; };

int nvmlDeviceGetAccountingStats(Handle *handle, u32 pid, struct accounting_stats *stats) {
    TOUCH;
    if (accounting != 1 && !was_switched_on) return NOT_SUPPORTED;
    memset(stats, 0, sizeof *stats);
    for (int i = 0; i < peak_count; i++) {
        if (peaks[i].pid != pid || strcmp(peaks[i].uuid, gpu->uuid)) continue;
        stats->peak = peaks[i].bytes;
        return OK;
    }
    return NOT_FOUND;
}

/* --- process lists ---------------------------------------------------------------------- */

static void put(char *at, size_t size, const struct process *process) {
    u32 none = ~0u;
    memset(at, 0, size);
    memcpy(at, &process->pid, 4);
    memcpy(at + 8, &process->bytes, 8);
    if (size >= 24) {
        memcpy(at + 16, &none, 4);
        memcpy(at + 20, &none, 4);
    }
}

static int list(const char *function, Handle *handle, int kind, u32 *room, char *out, size_t size) {
    struct gpu *gpu;
    int code = touch(function, handle, &gpu);
    u32 count = 0;
    if (code) return code;
    for (int i = 0; i < process_count; i++) {
        if (processes[i].kind != kind || strcmp(processes[i].uuid, gpu->uuid)) continue;
        if (out && count < *room) put(out + count * size, size, &processes[i]);
        count++;
    }
    int is_full = count > *room || (out && bursts_done < bursts && ++bursts_done);
    *room = count;
    return is_full ? TOO_SMALL : OK;
}

#ifdef NO_LISTS /* nobody finds them by their names */
#define NO_V3
#define LISTED(name) absent_##name
#else
#define LISTED(name) name
#endif
#define LIST(name, kind, size)                                              \
    int LISTED(name)(Handle *handle, u32 *room, char *out) {                        \
        return list(#name, handle, kind, room, out, size);                  \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, 24)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, 24)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, 24)

#ifndef NO_V3
#if defined LONG_V3
#define V3_SIZE 32
#elif defined SHORT_V3
#define V3_SIZE 16
#else
#define V3_SIZE 24
#endif
LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, V3_SIZE)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, V3_SIZE)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, V3_SIZE)

int nvmlDeviceGetConfComputeMemSizeInfo(Handle *handle, void *info) {
    (void)handle, (void)info;
    return NOT_SUPPORTED;
}
#ifndef LONG_V3
int nvmlDeviceGetRunningProcessDetailList(Handle *handle, void *list) {
    (void)handle, (void)list;
    return NOT_SUPPORTED;
}
#endif
#endif
