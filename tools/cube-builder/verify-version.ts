/**
 * The verification from raw rows, before a version is published: expected scores (--expect, and
 * golden rows with a field `score`) must be what its files give: hashing, scaling, lookups in the
 * layers, graph.
 */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { GOLDEN_FILE } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { computeShard } from '../../lib/core/keys.ts';
import {
  getDefaultRow,
  type LookupGroup,
  OUTCOME_HIT,
  OUTCOME_UNSEEN,
} from '../../lib/core/lookup-group.ts';
import { getTable, type Manifest, type TableRef } from '../../lib/core/manifest.ts';
import { decodeRows } from '../../lib/core/row-codec.ts';
import { readSlotSpec } from '../../lib/core/slots.ts';
import {
  compareScores,
  type ExpectedScores,
  readExpectedScores,
  readScoredLines,
  type ScoreComparison,
} from '../../lib/features/expected-scores.ts';
import { addImpliedFeatures } from '../../lib/features/implied-features.ts';
import { RowScorer } from '../../lib/features/row-scorer.ts';
import { fileExists } from '../../lib/platform/files.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { ChainSearch, getFoundRow } from '../../lib/store/chain-search.ts';
import { listExternalFiles } from '../../proto/onnx-external.ts';
import type { BuildTarget } from './build-target.ts';

/** Open chains of a table; each open file takes 1 MiB of memory. */
const CHAINS_OPEN_MAX = 64;

/** The options --expect and --expect-tolerance. */
export interface ExpectedScoresRequest {
  readonly scores: string | undefined;
  readonly tolerance: number;
}

export interface UnpublishedVersion {
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<string, Uint8Array>;
}

/**
 * @returns undefined when nothing says which scores are expected
 * @throws CubeError INVALID_ARGUMENT when a score differs by more than the tolerance
 */
export async function verifyVersion(
  { repository, work }: Pick<BuildTarget, 'repository' | 'work'>,
  { manifest, files }: UnpublishedVersion,
  { scores, tolerance }: ExpectedScoresRequest,
): Promise<ScoreComparison | undefined> {
  const slots = files.get('slots.json');
  const model = files.get('model.onnx');
  if (slots === undefined || model === undefined) {
    if (scores === undefined) return undefined;
    throw new CubeError(
      'INVALID_ARGUMENT',
      '--expect: the version has no graph to score rows with',
    );
  }
  const spec = readSlotSpec(JsonReader.parse(new TextDecoder().decode(slots), 'slots.json'));
  const expected = readExpected(
    files.get(GOLDEN_FILE),
    scores,
    () => addImpliedFeatures(spec, `${manifest.bundle} ${manifest.version}`).features,
  );
  if (expected.length === 0) return undefined;
  if (work !== repository) await fetchLayers(repository, work, manifest);
  const tables = new LayerTables(work, manifest);
  const scorer = await RowScorer.load({
    spec,
    manifest,
    graph: { model, data: selectData(model, files) },
    fillRows: (group) => tables.fill(group),
  });
  try {
    const results: ScoreComparison[] = [];
    for (const one of expected) results.push(await compareScores(scorer, one, tolerance));
    return {
      rows: results.reduce((sum, { rows }) => sum + rows, 0),
      maxAbsDifference: Math.max(...results.map(({ maxAbsDifference }) => maxAbsDifference)),
    };
  } finally {
    tables.close();
    await scorer.release();
  }
}

function selectData(
  model: Uint8Array,
  files: ReadonlyMap<string, Uint8Array>,
): ReadonlyMap<string, Uint8Array> {
  const names = listExternalFiles(model, 'model.onnx');
  return new Map([...files].filter(([name]) => names.includes(name)));
}

function readExpected(
  golden: Uint8Array | undefined,
  scores: string | undefined,
  readFeatures: () => ExpectedFeatures,
): ExpectedScores[] {
  const text = golden === undefined ? '' : new TextDecoder().decode(golden);
  const expected: ExpectedScores[] = [];
  if (text.includes('"score"')) {
    const rows = readScoredLines(text, GOLDEN_FILE, readFeatures());
    if (rows.rows.length > 0) expected.push(rows);
  }
  if (scores !== undefined) expected.push(readExpectedScores(scores, readFeatures()));
  return expected;
}

type ExpectedFeatures = Parameters<typeof readScoredLines>[2];

/** Copies the layers of earlier versions to this machine's disk; the new ones are there. */
async function fetchLayers(from: Repository, to: Repository, manifest: Manifest): Promise<void> {
  const { bundle, tables } = manifest;
  for (const { name, shards } of tables) {
    for (const layer of shards.flat()) {
      const path = to.layerWritePath(bundle, name, layer.contentId);
      if (!fileExists(path)) await from.fetchLayer(bundle, name, layer, path);
    }
  }
}

/** Looks rows up in the layer files of a version in a repository on this machine's disk. */
class LayerTables {
  readonly #repository: Repository;
  readonly #manifest: Manifest;
  /** Open chains by table and shard. */
  readonly #chains = new Map<string, ChainSearch>();

  constructor(repository: Repository, manifest: Manifest) {
    this.#repository = repository;
    this.#manifest = manifest;
  }

  fill({ table: name, keys, count, rows, outcomes }: LookupGroup): void {
    const table = getTable(this.#manifest, name);
    const indexesByShard = new Map<number, number[]>();
    for (let i = 0; i < count; i++) {
      const shard = computeShard(keys[2 * i]!, keys[2 * i + 1]!, table.shardNum);
      const indexes = indexesByShard.get(shard) ?? [];
      indexesByShard.set(shard, indexes);
      indexes.push(i);
    }
    for (const [shard, indexes] of indexesByShard) {
      this.#fillShard(table, shard, { indexes, keys, rows, outcomes });
    }
  }

  #fillShard(
    table: TableRef,
    shard: number,
    target: Pick<LookupGroup, 'keys' | 'rows' | 'outcomes'> & { readonly indexes: number[] },
  ): void {
    const { name, dim, dtype } = table;
    if (dtype === 'bytes') {
      throw new CubeError('UNSUPPORTED', `table ${name} has values of any length, not embeddings`);
    }
    const { indexes, keys, rows, outcomes } = target;
    const picked = Uint32Array.from(indexes.flatMap((i) => [keys[2 * i]!, keys[2 * i + 1]!]));
    const chain = this.#openChain(table, shard);
    const found = chain.read(chain.find(picked));
    indexes.forEach((i, at) => {
      const stored = getFoundRow(found, at);
      const isHit = stored.length > 0;
      outcomes[i] = isHit ? OUTCOME_HIT : OUTCOME_UNSEEN;
      rows.set(isHit ? decodeRows(dtype, stored, dim, 1) : getDefaultRow(table), i * dim);
    });
  }

  #openChain({ name, shards }: TableRef, shard: number): ChainSearch {
    const id = `${name} ${shard}`;
    const opened = this.#chains.get(id);
    if (opened !== undefined) return opened;
    if (this.#chains.size === CHAINS_OPEN_MAX) this.close();
    const { bundle } = this.#manifest;
    const layers = requireDefined(shards[shard], `shard ${shard} of table ${name}`);
    const chain = new ChainSearch(
      layers.map(({ contentId }) => this.#repository.layerWritePath(bundle, name, contentId)),
    );
    this.#chains.set(id, chain);
    return chain;
  }

  close(): void {
    for (const chain of this.#chains.values()) chain.close();
    this.#chains.clear();
  }
}
