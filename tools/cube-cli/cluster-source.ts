/** Rows out of running servers: pinned to a version by CubeClient, or by Cube's own seek. */
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeDictClient } from '../../lib/client/dict-client.ts';
import type { RouteOptions } from '../../lib/client/fleet-routes.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, type Values } from '../../lib/client/lookup-group.ts';
import { shardOf } from '../../lib/core/keys.ts';
import { type Manifest, shardNumOf, type TableDtype } from '../../lib/core/manifest.ts';
import { rowBytesOf } from '../../lib/core/row-codec.ts';
import type { FoundKey, FoundKeys, Outcome, RowSource, SourceTable } from './row-source.ts';

function outcomeOf(outcome: number): Outcome {
  if (outcome === OUTCOME_HIT) return 'hit';
  return outcome === OUTCOME_UNAVAILABLE ? 'unavailable' : 'unseen';
}

function foundKeys(
  keys: Uint32Array,
  shardNum: number,
  outcomes: Uint8Array,
  rowOf: (i: number) => Uint8Array,
): FoundKey[] {
  return Array.from(outcomes, (byte, i) => {
    const shard = shardOf(keys[2 * i]!, keys[2 * i + 1]!, shardNum);
    const outcome = outcomeOf(byte);
    return outcome === 'hit' ? { outcome, shard, row: rowOf(i) } : { outcome, shard };
  });
}

const valueAt =
  ({ values, ends }: Values) =>
  (i: number): Uint8Array =>
    values.subarray(i === 0 ? 0 : ends[i - 1], ends[i]);

/** A version that servers hold. */
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
      return this.#found(keys, outcomes, 'bytes', summary, valueAt(summary.values[0]!));
    }
    const rowsAs: TableDtype = asStored ? dtype : 'f32';
    const rowBytes = rowBytesOf(rowsAs, dim);
    const rows = new Uint8Array(count * rowBytes);
    const rowOf = (i: number): Uint8Array => rows.subarray(i * rowBytes, (i + 1) * rowBytes);
    const summary = asStored
      ? await this.#client.lookupStored(this.manifest, [{ ...group, rows }], this.#timeoutMs)
      : await this.#client.lookup(
          this.manifest,
          [{ ...group, rows: new Float32Array(rows.buffer) }],
          this.#timeoutMs,
        );
    return this.#found(keys, outcomes, rowsAs, summary, rowOf);
  }

  close(): void {
    this.#client.close();
  }

  #found(
    keys: Uint32Array,
    outcomes: Uint8Array,
    rowsAs: TableDtype,
    { version, reason }: { readonly version: string; readonly reason?: string },
    rowOf: (i: number) => Uint8Array,
  ): FoundKeys {
    const found = foundKeys(keys, shardNumOf(this.manifest), outcomes, rowOf);
    return { keys: found, rowsAs, version, trouble: reason };
  }
}

/** A dict of servers that speak Cube's seek, at whichever version each has active. */
export class DictSource implements RowSource {
  readonly manifest = undefined;
  readonly tables: readonly SourceTable[];
  readonly #client: CubeDictClient;
  readonly #timeoutMs: number;

  constructor(dict: string, shardNum: number, routes: RouteOptions, timeoutMs: number) {
    this.tables = [{ name: dict, dim: undefined, dtype: undefined, shardNum }];
    this.#client = new CubeDictClient(routes);
    this.#timeoutMs = timeoutMs;
  }

  async lookup({ name, shardNum }: SourceTable, keys: Uint32Array): Promise<FoundKeys> {
    const answer = await this.#client.seek(name, keys, { timeoutMs: this.#timeoutMs, shardNum });
    const { outcomes, versions, mixed, reason } = answer;
    const trouble = mixed ? `answers are of several versions: ${versions.join(', ')}` : reason;
    const found = foundKeys(keys, shardNum, outcomes, valueAt(answer));
    return { keys: found, rowsAs: 'bytes', version: versions.join(','), trouble };
  }

  close(): void {
    this.#client.close();
  }
}
