/**
 * The parts that all lookups of a version share, computed once: its tables as the servers will
 * answer them, and the constant bytes of request payloads. Encoding a request then only copies
 * bytes; no message object is built.
 */

import {
  appendRequestGroup,
  encodeLookupRequest,
  encodeRequestGroupHead,
  LOOKUP_METHOD,
  LOOKUP_SERVICE,
  ROWS_F32,
} from '../../proto/lookup.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import type { CubeError } from '../core/errors.ts';
import { getDefaultRow } from '../core/lookup-group.ts';
import { getShardNum, getTable, getTablesDigest, type Manifest } from '../core/manifest.ts';
import { versionKey } from '../core/names.ts';
import { computeRowBytes } from '../core/row-codec.ts';
import type { CallTarget } from './replica-probe.ts';
import type { RequestPart } from './scatter-gather.ts';
import { checkResponse, type PlannedTable } from './shard-response.ts';

/** ROWS_F32 or ROWS_STORED of proto/lookup.ts. */
export type RowFormat = 0 | 1;

/** The payload of one request, which is sent before the next one is encoded. */
const payloadBuffer = new OutputBuffer(4096);
/** Index = RowFormat. */
const plans: Readonly<Record<RowFormat, WeakMap<Manifest, LookupPlan>>> = [
  new WeakMap(),
  new WeakMap(),
];

export function getLookupPlan(manifest: Manifest, rowFormat: RowFormat): LookupPlan {
  const cache = plans[rowFormat];
  let plan = cache.get(manifest);
  if (plan === undefined) {
    plan = new LookupPlan(manifest, rowFormat);
    cache.set(manifest, plan);
  }
  return plan;
}

export class LookupPlan implements CallTarget {
  readonly service: string = LOOKUP_SERVICE;
  readonly method: string = LOOKUP_METHOD;
  readonly manifest: Manifest;
  readonly rowFormat: RowFormat;
  readonly versionKey: string;
  readonly shardNum: number;
  readonly #tables = new Map<string, PlannedTable>();
  /** Payloads without groups; index = shard. */
  readonly #probePayloads: Uint8Array[] = [];

  constructor(manifest: Manifest, rowFormat: RowFormat) {
    this.manifest = manifest;
    this.rowFormat = rowFormat;
    this.versionKey = versionKey(manifest);
    this.shardNum = getShardNum(manifest);
  }

  /** @throws CubeError NOT_FOUND naming the existing tables */
  table(name: string): PlannedTable {
    let table = this.#tables.get(name);
    if (table === undefined) {
      table = this.#planTable(name);
      this.#tables.set(name, table);
    }
    return table;
  }

  /** Returns a lookup without groups, which only asks whether the version is loaded. */
  probePayload(shard: number): Uint8Array {
    let payload = this.#probePayloads[shard];
    if (payload === undefined) {
      const { bundle, version } = this.manifest;
      payload = encodeLookupRequest({
        bundle,
        version,
        shardIndex: shard,
        shardNum: this.shardNum,
        groups: [],
        tablesDigest: getTablesDigest(this.manifest),
        rowsAs: this.rowFormat,
      }).slice();
      this.#probePayloads[shard] = payload;
    }
    return payload;
  }

  /**
   * Returns the payload of a request, valid until the next one is encoded. @param tables index =
   * group
   */
  requestPayload(
    shard: number,
    parts: readonly RequestPart[],
    tables: readonly PlannedTable[],
  ): Uint8Array {
    payloadBuffer.truncate(0);
    payloadBuffer.append(this.probePayload(shard));
    for (const { group, count } of parts) {
      const { groupHead } = tables[group]!;
      appendRequestGroup(payloadBuffer, groupHead, count);
    }
    return payloadBuffer.writtenBytes();
  }

  checkProbeResponse(payload: Uint8Array, attachment: Uint8Array): void {
    const { version } = this.manifest;
    checkResponse({ version, parts: [], tables: [] }, payload, attachment);
  }

  /** The versions that a VERSION_ABSENT error reports as loaded; empty when it does not say. */
  getLoadedVersions({ details }: CubeError): readonly string[] {
    const versions = details.loadedVersions ?? [];
    return versions.map((version) => versionKey({ bundle: this.manifest.bundle, version }));
  }

  #planTable(name: string): PlannedTable {
    const table = getTable(this.manifest, name);
    const { dim } = table;
    const isF32 = this.rowFormat === ROWS_F32 && table.dtype !== 'bytes';
    const dtype = isF32 ? 'f32' : table.dtype;
    const rowBytes = computeRowBytes(dtype, dim);
    return {
      name,
      dim,
      dtype,
      rowBytes,
      fillRow: isF32 ? getDefaultRow(table) : new Uint32Array(rowBytes / 4),
      groupHead: encodeRequestGroupHead(name),
    };
  }
}
