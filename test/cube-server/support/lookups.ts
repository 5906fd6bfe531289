/** Makes packed lookups and returns plain lists for comparison. */
import type { Channel } from '../../../lib/rpc/channel.ts';
import {
  bitmapBytes,
  decodeLookupResponse,
  encodeLookupRequest,
  fixedRowsResponseBytes,
  LOOKUP_METHOD,
  LOOKUP_SERVICE,
} from '../../../proto/lookup.ts';

export interface LookupCall {
  readonly bundle: string;
  readonly version?: string;
  readonly shardIndex?: number;
  readonly shardNum?: number;
  readonly tablesDigest?: string;
  readonly groups: readonly { readonly table: string; readonly keys: readonly bigint[] }[];
}

export interface LookupAnswer {
  readonly version: string;
  readonly groups: readonly {
    readonly hits: number;
    readonly found: readonly boolean[];
    readonly rows: readonly (readonly number[])[];
  }[];
}

/** @param inline puts the keys into the message, as over HTTP */
export function encodeLookupCall(
  call: LookupCall,
  inline: boolean,
): { head: Uint8Array; keys: Uint8Array } {
  const { bundle, version = '', shardIndex = 0, shardNum = 1, tablesDigest = '', groups } = call;
  const words = BigUint64Array.from(groups.flatMap((group) => group.keys));
  const keys = new Uint8Array(words.buffer);
  const counts = groups.map(({ table, keys: own }) => ({ table, count: own.length }));
  const head = { bundle, version, shardIndex, shardNum, tablesDigest, groups: counts };
  return { head: encodeLookupRequest(head, inline ? keys : undefined), keys };
}

export function decodeLookupAnswer(payload: Uint8Array, attachment?: Uint8Array): LookupAnswer {
  const { version, groups, rows } = decodeLookupResponse(payload);
  const bytes = Uint8Array.from(attachment ?? rows ?? []);
  let at = 0;
  const decoded = groups.map(({ rowBytes, count, hits }) => {
    const start = at;
    const rowsAt = start + bitmapBytes(count);
    at += fixedRowsResponseBytes(count, rowBytes);
    const floats = new Float32Array(bytes.slice(rowsAt, rowsAt + count * rowBytes).buffer);
    const dim = rowBytes / 4;
    const isFound = (i: number): boolean => ((bytes[start + (i >> 3)]! >> (i & 7)) & 1) === 1;
    return {
      hits,
      found: Array.from({ length: count }, (_, i) => isFound(i)),
      rows: Array.from({ length: count }, (_, i) => [...floats.subarray(i * dim, (i + 1) * dim)]),
    };
  });
  if (at !== bytes.length) throw new Error(`${bytes.length} bytes of rows, ${at} expected`);
  return { version, groups: decoded };
}

export async function lookup(channel: Channel, call: LookupCall): Promise<LookupAnswer> {
  const { head, keys } = encodeLookupCall(call, false);
  const result = await channel.call(LOOKUP_SERVICE, LOOKUP_METHOD, head, keys, 5000);
  return decodeLookupAnswer(result.payload, result.attachment);
}
