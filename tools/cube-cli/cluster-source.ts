/** Reads rows from servers: of one version by CubeClient, or of active versions by Cube's seek. */
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeDictClient } from '../../lib/client/dict-client.ts';
import type { RouteOptions } from '../../lib/client/fleet-routes.ts';
import { computeShard } from '../../lib/core/keys.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, type Values } from '../../lib/core/lookup-group.ts';
import { getShardNum, type Manifest, type TableDtype } from '../../lib/core/manifest.ts';
import { computeRowBytes } from '../../lib/core/row-codec.ts';
import type { FoundKey, FoundKeys, Outcome, RowSource, SourceTable } from './row-source.ts';

function toOutcome(outcome: number): Outcome {
  if (outcome === OUTCOME_HIT) return 'hit';
  return outcome === OUTCOME_UNAVAILABLE ? 'unavailable' : 'unseen';
}

function toFoundKeys(
  keys: Uint32Array,
  shardNum: number,
  outcomes: Uint8Array,
  readRow: (i: number) => Uint8Array,
): FoundKey[] {
  return Array.from(outcomes, (byte, i) => {
    const shard = computeShard(keys[2 * i]!, keys[2 * i + 1]!, shardNum);
    const outcome = toOutcome(byte);
    return outcome === 'hit' ? { outcome, shard, row: readRow(i) } : { outcome, shard };
  });
}

const createValueReader =
  ({ values, ends }: Values) =>
  (i: number): Uint8Array =>
    values.subarray(i === 0 ? 0 : ends[i - 1], ends[i]);

/** A version that servers have loaded. */
export class ClusterSource implements RowSource {
  readonly manifest: Manifest;
  readonly tables: readonly SourceTable[];
  readonly #client: CubeClient;
  readonly #timeoutMs: number;

  constructor(manifest: Manifest, routes: RouteOptions, timeoutMs: number) {
    this.manifest = manifest;
    this.tables = manifest.tables;
    this.#client = new CubeClient(routes);
    this.#timeoutMs = timeoutMs;
  }

  async lookup(table: SourceTable, keys: Uint32Array, asStored: boolean): Promise<FoundKeys> {
    const count = keys.length / 2;
    const outcomes = new Uint8Array(count);
    const group = { table: table.name, keys, count, outcomes };
    const { dim = 0, dtype = 'f32' } = table;
    if (dtype === 'bytes') {
      const summary = await this.#client.lookupValues(this.manifest, [group], this.#timeoutMs);
      return this.#found(keys, outcomes, 'bytes', summary, createValueReader(summary.values[0]!));
    }
    const rowsAs: TableDtype = asStored ? dtype : 'f32';
    const rowBytes = computeRowBytes(rowsAs, dim);
    const rows = new Uint8Array(count * rowBytes);
    const readRow = (i: number): Uint8Array => rows.subarray(i * rowBytes, (i + 1) * rowBytes);
    const summary = asStored
      ? await this.#client.lookupStored(this.manifest, [{ ...group, rows }], this.#timeoutMs)
      : await this.#client.lookup(
          this.manifest,
          [{ ...group, rows: new Float32Array(rows.buffer) }],
          this.#timeoutMs,
        );
    return this.#found(keys, outcomes, rowsAs, summary, readRow);
  }

  close(): void {
    this.#client.close();
  }

  #found(
    keys: Uint32Array,
    outcomes: Uint8Array,
    rowsAs: TableDtype,
    { version, reason }: { readonly version: string; readonly reason?: string },
    readRow: (i: number) => Uint8Array,
  ): FoundKeys {
    const found = toFoundKeys(keys, getShardNum(this.manifest), outcomes, readRow);
    return { keys: found, rowDtype: rowsAs, version, warning: reason };
  }
}

/** A dict on servers that answer Cube's seek. Each server answers from its active version. */
export class DictSource implements RowSource {
  readonly manifest = undefined;
  readonly tables: readonly SourceTable[];
  readonly #client: CubeDictClient;
  readonly #timeoutMs: number;
  readonly #warning: string | undefined;

  /** @param warning what is uncertain about every answer */
  constructor(
    dict: string,
    shardNum: number,
    routes: RouteOptions,
    { timeoutMs, warning }: { timeoutMs: number; warning?: string | undefined },
  ) {
    this.#warning = warning;
    this.tables = [{ name: dict, dim: undefined, dtype: undefined, shardNum }];
    this.#client = new CubeDictClient(routes);
    this.#timeoutMs = timeoutMs;
  }

  async lookup({ name, shardNum }: SourceTable, keys: Uint32Array): Promise<FoundKeys> {
    const response = await this.#client.seek(name, keys, { timeoutMs: this.#timeoutMs, shardNum });
    const { outcomes, versions, mixed, reason } = response;
    const trouble = mixed
      ? `servers answered from different versions: ${versions.join(', ')}`
      : (reason ?? this.#warning);
    const found = toFoundKeys(keys, shardNum, outcomes, createValueReader(response));
    return { keys: found, rowDtype: 'bytes', version: versions.join(','), warning: trouble };
  }

  close(): void {
    this.#client.close();
  }
}
