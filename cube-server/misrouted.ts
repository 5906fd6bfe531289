/** The error for a missing key of another shard: answering "missing" would turn a routing fault into wrong predictions. */
import { CubeError } from '../lib/core/errors.ts';
import type { HeldVersions } from './held-versions.ts';

/** @param index of the key among the u64 at keys[keysAt..] */
export function misrouted(
  held: HeldVersions,
  keys: Uint8Array,
  keysAt: number,
  index: number,
  table: string,
): CubeError {
  const view = new DataView(keys.buffer, keys.byteOffset);
  const key = view.getBigUint64(keysAt + index * 8, true);
  return new CubeError(
    'WRONG_SHARD',
    `key ${key} (number ${index} for table ${table}) belongs to shard ${key % BigInt(held.shardNum)}; this replica serves shard ${held.shardIndex} of ${held.shardNum}`,
  );
}
