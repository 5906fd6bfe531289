/*
 * The lookup of a layer file in C, as a yardstick: the same slots, the same mix, prefetch of 32 keys ahead.
 * Usage: lookup LAYER KEYS BATCH...   LAYER: inline, rows of 40 bytes; KEYS: u64 little-endian.
 * Prints "batch ns-per-key found" lines, the best of five passes over all keys.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW = 40, STRIDE = ROW + 8, AHEAD = 32, PASSES = 5, BATCH_MAX = 1 << 16, SEGMENTS_MAX = 112 };

typedef struct {
  uint64_t empty, home_slots;
  uint32_t segment_count;
  const uint8_t *segments[SEGMENTS_MAX];
} table;

static uint64_t field(const uint8_t *header, int at) {
  uint64_t value;
  memcpy(&value, header + at, 8);
  return value;
}

static uint8_t *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(1);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  uint8_t *bytes = aligned_alloc(4096, (*size + 4095) / 4096 * 4096);
  if (!bytes || fread(bytes, 1, *size, file) != *size) exit(1);
  fclose(file);
  return bytes;
}

static table open_table(const uint8_t *layer) {
  table t = {.empty = field(layer, 104), .home_slots = field(layer, 128)};
  memcpy(&t.segment_count, layer + 148, 4);
  if (t.segment_count > SEGMENTS_MAX) exit(1);
  for (uint32_t i = 0; i < t.segment_count; i++) t.segments[i] = layer + field(layer, 512 + 32 * (int)i);
  return t;
}

static inline const uint8_t *home_of(const table *t, uint64_t key) {
  uint64_t x = key ^ (key >> 32);
  x *= 0x9E3779B97F4A7C15u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  uint64_t segment = ((x & 0xFFFFFFFFu) * t->segment_count) >> 32;
  return t->segments[segment] + (((x >> 32) * t->home_slots) >> 32) * STRIDE;
}

static uint64_t lookup(const table *t, const uint64_t *keys, size_t count, uint8_t *rows) {
  const uint8_t *home[AHEAD];
  uint64_t hits = 0;
  for (size_t start = 0; start < count; start += AHEAD) {
    size_t length = count - start < AHEAD ? count - start : AHEAD;
    for (size_t i = 0; i < length; i++) {
      home[i] = home_of(t, keys[start + i]);
      __builtin_prefetch(home[i]);
      __builtin_prefetch(home[i] + STRIDE - 1);
    }
    for (size_t i = 0; i < length; i++) {
      const uint8_t *slot = home[i];
      for (;;) {
        uint64_t key;
        memcpy(&key, slot, 8);
        if (key == t->empty) break;
        if (key == keys[start + i]) {
          memcpy(rows + (start + i) * ROW, slot + 8, ROW);
          hits++;
          break;
        }
        slot += STRIDE;
      }
    }
  }
  return hits;
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  size_t layer_bytes, key_bytes;
  uint8_t *layer = read_file(argv[1], &layer_bytes);
  uint64_t *keys = (uint64_t *)read_file(argv[2], &key_bytes);
  size_t count = key_bytes / 8;
  table t = open_table(layer);
  uint8_t *rows = malloc((size_t)BATCH_MAX * ROW);
  for (int arg = 3; arg < argc; arg++) {
    size_t batch = (size_t)atol(argv[arg]);
    if (batch < 1 || batch > BATCH_MAX) return 2;
    double best = 0;
    uint64_t hits = 0;
    for (int pass = 0; pass < PASSES; pass++) {
      double start = now_ns();
      size_t done = 0;
      hits = 0;
      for (; done + batch <= count; done += batch)
        hits += lookup(&t, keys + done, batch, rows);
      double ns = (now_ns() - start) / (double)done;
      if (pass == 0 || ns < best) best = ns;
    }
    printf("%zu %.2f %llu\n", batch, best, (unsigned long long)hits);
  }
  return 0;
}
