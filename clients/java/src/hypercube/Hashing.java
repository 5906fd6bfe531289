package hypercube;

import java.nio.charset.StandardCharsets;

/** Keys of features, equal to those that the server computes: unsigned 64-bit integers in a long. */
public final class Hashing {
  private static final long PRIME1 = 0x9E3779B185EBCA87L;
  private static final long PRIME2 = 0xC2B2AE3D27D4EB4FL;
  private static final long PRIME3 = 0x165667B19E3779F9L;
  private static final long PRIME4 = 0x85EBCA77C2B2AE63L;
  private static final long PRIME5 = 0x27D4EB2F165667C5L;

  private Hashing() {}

  /**
   * The key of a feature in a slot.
   *
   * @param scheme xxh64-concat, xxh64-tagged or raw
   * @param modulo 0 for none
   */
  public static long hashKey(long slot, String feature, String scheme, long seed, long modulo) {
    final long key;
    switch (scheme) {
      case "xxh64-concat":
        key = xxh64((slot + feature).getBytes(StandardCharsets.UTF_8), seed);
        break;
      case "xxh64-tagged":
        key = xxh64((slot + "\0" + feature).getBytes(StandardCharsets.UTF_8), seed);
        break;
      case "raw":
        key = Long.parseUnsignedLong(feature);
        break;
      default:
        throw new IllegalArgumentException(
            "unknown hash scheme " + scheme + ": use xxh64-concat, xxh64-tagged or raw");
    }
    return modulo == 0 ? key : Long.remainderUnsigned(key, modulo);
  }

  public static long xxh64(byte[] data, long seed) {
    int at = 0;
    long hash;
    if (data.length >= 32) {
      long[] lanes = {seed + PRIME1 + PRIME2, seed + PRIME2, seed, seed - PRIME1};
      for (; at + 32 <= data.length; at += 32) {
        for (int i = 0; i < 4; i++) lanes[i] = round(lanes[i], read(data, at + 8 * i, 8));
      }
      hash =
          Long.rotateLeft(lanes[0], 1)
              + Long.rotateLeft(lanes[1], 7)
              + Long.rotateLeft(lanes[2], 12)
              + Long.rotateLeft(lanes[3], 18);
      for (long lane : lanes) hash = (hash ^ round(0, lane)) * PRIME1 + PRIME4;
    } else {
      hash = seed + PRIME5;
    }
    hash += data.length;
    for (; at + 8 <= data.length; at += 8) {
      hash = Long.rotateLeft(hash ^ round(0, read(data, at, 8)), 27) * PRIME1 + PRIME4;
    }
    if (at + 4 <= data.length) {
      hash = Long.rotateLeft(hash ^ read(data, at, 4) * PRIME1, 23) * PRIME2 + PRIME3;
      at += 4;
    }
    for (; at < data.length; at++) {
      hash = Long.rotateLeft(hash ^ (data[at] & 0xFF) * PRIME5, 11) * PRIME1;
    }
    hash = (hash ^ hash >>> 33) * PRIME2;
    hash = (hash ^ hash >>> 29) * PRIME3;
    return hash ^ hash >>> 32;
  }

  private static long round(long accumulator, long lane) {
    return Long.rotateLeft(accumulator + lane * PRIME2, 31) * PRIME1;
  }

  private static long read(byte[] data, int at, int count) {
    long value = 0;
    for (int i = count - 1; i >= 0; i--) value = value << 8 | data[at + i] & 0xFF;
    return value;
  }
}
