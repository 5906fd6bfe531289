/** Copies of one row, unrolled for common sizes. */

/**
 * Copies one row whose length is a multiple of 4 bytes; `bytes` is a constant where this is inlined
 * for a common size.
 */
// @ts-ignore: decorator
@inline
export function copyRow(target: usize, source: usize, bytes: usize): void {
  switch (<u32>bytes) {
    case 8:
      store<u64>(target, load<u64>(source));
      return;
    case 16:
      v128.store(target, v128.load(source));
      return;
    case 20:
      v128.store(target, v128.load(source));
      store<u32>(target, load<u32>(source, 16), 16);
      return;
    case 24:
      v128.store(target, v128.load(source));
      store<u64>(target, load<u64>(source, 16), 16);
      return;
    case 32:
      copy32(target, source);
      return;
    case 40:
      copy32(target, source);
      store<u64>(target, load<u64>(source, 32), 32);
      return;
    case 64:
      copy32(target, source);
      copy32(target + 32, source + 32);
      return;
    case 128:
      copy32(target, source);
      copy32(target + 32, source + 32);
      copy32(target + 64, source + 64);
      copy32(target + 96, source + 96);
      return;
    default:
      copyAny(target, source, bytes);
  }
}

// @ts-ignore: decorator
@inline
function copy32(target: usize, source: usize): void {
  v128.store(target, v128.load(source));
  v128.store(target, v128.load(source, 16), 16);
}

// @ts-ignore: decorator
@inline
export function copyAny(target: usize, source: usize, bytes: usize): void {
  const end = target + bytes;
  while (target + 16 <= end) {
    v128.store(target, v128.load(source));
    target += 16;
    source += 16;
  }
  if (target + 8 <= end) {
    store<u64>(target, load<u64>(source));
    target += 8;
    source += 8;
  }
  if (target < end) store<u32>(target, load<u32>(source));
}
