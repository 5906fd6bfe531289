/**
 * Versions whose rows identify them: every element of every row is a function of the version and
 * the key, so one row of another version in an answer is detected. They have the demo's graph, so
 * that predictions detect it too.
 */

import { join } from 'node:path';
import { requireDefined } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { encodeRows } from '../../lib/core/row-codec.ts';
import { readFile } from '../../lib/platform/files.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { writeKey } from './cube-server-process.ts';
import { BUNDLE, createRequestRows, publishModel, type RequestRows } from './demo-model.ts';

export const TABLE = 'embedding.weight';
export const DIM = 10;
/** The keys of the demo's graph are 0 … 100,000. */
const MODEL_KEYS = 100_001;
const SLOTS = 26;
const DENSE = 13;

/** Writes key i of the table. */
export function writeTableKey(words: Uint32Array, at: number, i: number): void {
  if (i >= MODEL_KEYS) {
    writeKey(words, at, i);
    return;
  }
  words[at] = i;
  words[at + 1] = 0;
}

/**
 * The first element is the version, exactly; the others are spread over ±0.125, and also exact as
 * f32.
 */
function computeElement(low: number, high: number, column: number, version: number): number {
  if (column === 0) return version / 65_536;
  let mixed = Math.imul(low ^ 0x9e37_79b9, 0x85eb_ca6b) ^ Math.imul(high + column, 0xc2b2_ae35);
  mixed = Math.imul(mixed ^ Math.imul(version, 0x27d4_eb2f), 0x2c1b_3c6d);
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x297a_2d39);
  return (((mixed ^ (mixed >>> 12)) >>> 8) - 0x80_0000) / 2 ** 26;
}

function fillRows(rows: Float32Array, keys: Uint32Array, version: number): void {
  for (let i = 0, at = 0; at < rows.length; i += 2) {
    for (let column = 0; column < DIM; column++) {
      rows[at++] = computeElement(keys[i]!, keys[i + 1]!, column, version);
    }
  }
}

/** Whether every element is that of the version. */
export function rowsMatchVersion(rows: Float32Array, keys: Uint32Array, version: number): boolean {
  for (let i = 0, at = 0; at < rows.length; i += 2) {
    for (let column = 0; column < DIM; column++) {
      if (rows[at++] !== computeElement(keys[i]!, keys[i + 1]!, column, version)) return false;
    }
  }
  return true;
}

/** The distinct versions that the first elements of the rows name. */
export function listRowVersions(rows: Float32Array): number[] {
  const versions = new Set<number>();
  for (let at = 0; at < rows.length; at += DIM) versions.add(rows[at]! * 65_536);
  return [...versions];
}

/** A shard that has the rows of another version. */
export interface MixedShard {
  readonly shard: number;
  readonly from: number;
}

export class VersionPublisher {
  readonly repository: Repository;
  readonly #folder: string;
  readonly #rows: number;
  readonly #shardNum: number;
  readonly #template: Manifest;
  readonly #table: TableRef;

  private constructor(folder: string, rows: number, template: Manifest) {
    this.repository = openRepository(join(folder, 'repository'), { create: true });
    this.#folder = folder;
    this.#rows = rows;
    this.#template = template;
    this.#table = requireDefined(template.tables[0], 'the table of the model');
    this.#shardNum = this.#table.shardNum;
  }

  /** Publishes to `<folder>/repository`; the pruned model is in `<folder>/pruned`. */
  static async create(folder: string, rows: number, shardNum: number): Promise<VersionPublisher> {
    await publishModel(folder, shardNum);
    const template = await openRepository(join(folder, 'repo')).readManifest(BUNDLE, '1');
    return new VersionPublisher(folder, Math.max(rows, MODEL_KEYS), template);
  }

  /** @param mix a shard with rows of another version, which callers must detect */
  async publish(version: number, mix?: MixedShard): Promise<void> {
    const shards = Array.from({ length: this.#shardNum }, (_, shard) => [
      this.#writeShard(shard, shard === mix?.shard ? mix.from : version),
    ]);
    const { files } = this.#template;
    const table = { ...this.#table, rows: this.#rows, shards };
    const manifest = { ...this.#template, version: String(version), tables: [table] };
    const contents = files.map(({ path }): [string, Uint8Array] => [
      path,
      readFile(join(this.#folder, 'pruned', path)),
    ]);
    const layers = shards.flat().map(({ contentId }) => {
      return { table: TABLE, contentId, path: this.#layerPath(contentId) };
    });
    await this.repository.publish({ manifest, files: new Map(contents), layers });
  }

  #layerPath(contentId: string): string {
    return join(this.#folder, 'repository', layerPath(BUNDLE, TABLE, contentId));
  }

  #writeShard(shardIndex: number, version: number): LayerRef {
    const shardNum = this.#shardNum;
    const all = new Uint32Array(2 * this.#rows);
    let length = 0;
    for (let i = 0; i < this.#rows; i++) {
      writeTableKey(all, length, i);
      const high = all[length + 1]! % shardNum;
      if ((high * (2 ** 32 % shardNum) + (all[length]! % shardNum)) % shardNum === shardIndex) {
        length += 2;
      }
    }
    const keys = all.slice(0, length);
    const values = new Float32Array((length / 2) * DIM);
    fillRows(values, keys, version);
    const { rows } = encodeRows('f32', values, DIM);
    const layer = {
      table: TABLE,
      dtype: 'f32' as const,
      dim: DIM,
      shardIndex,
      shardNum,
      keys,
      rows,
    };
    const { contentId, bytes, sha256 } = writeLayer(layer, (id) => this.#layerPath(id));
    return { contentId, kind: 'base', bytes, sha256, rows: length / 2 };
  }
}

/** Requests of the demo's rows, and the scores that each version must give. */
export class ExpectedScores {
  readonly requests: readonly RequestRows[];
  readonly #model: OnnxModel;
  readonly #scores = new Map<string, Float32Array>();

  private constructor(requests: readonly RequestRows[], model: OnnxModel) {
    this.requests = requests;
    this.#model = model;
  }

  static async open(folder: string, rowCount: number, count: number): Promise<ExpectedScores> {
    const model = await OnnxModel.load(readFile(join(folder, 'pruned', 'model.onnx')));
    return new ExpectedScores(createRequestRows(folder, rowCount, count), model);
  }

  /** The scores of request i, computed by the graph alone at the first call. */
  async compute(i: number, version: string): Promise<Float32Array> {
    const name = `${i} ${version}`;
    let scores = this.#scores.get(name);
    if (scores === undefined) {
      scores = await this.#run(this.requests[i]!, Number(version));
      this.#scores.set(name, scores);
    }
    return scores;
  }

  async #run({ keys, scaled }: RequestRows, version: number): Promise<Float32Array> {
    const rowCount = scaled.length / DENSE;
    const rows = new Float32Array((keys.length / 2) * DIM);
    fillRows(rows, keys, version);
    const [dense, embedded] = [
      { dtype: 'float32' as const, data: scaled, dims: [rowCount, DENSE] },
      { dtype: 'float32' as const, data: rows, dims: [rowCount, SLOTS, DIM] },
    ];
    const feeds = this.#model.inputs.map(({ name }) => [name, name === 'dense' ? dense : embedded]);
    const { prob } = await this.#model.run(Object.fromEntries(feeds));
    const data = requireDefined(prob, 'the output prob').data as Float32Array;
    return Float32Array.from({ length: rowCount }, (_, row) => data[2 * row + 1]!);
  }
}
