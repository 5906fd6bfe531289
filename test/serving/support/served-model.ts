/** Prunes, builds and loads a model in this process, with tables in memory, to check its scores. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { FeatureRows, KeyedRows } from '../../../lib/core/feature-rows.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { LoadedBundle } from '../../../serving/engine/loaded-bundle.ts';
import type { Prediction } from '../../../serving/engine/prediction.ts';
import { Predictor } from '../../../serving/engine/predictor.ts';
import type { EmbeddingStore } from '../../../serving/stores/embedding-store.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { pruneModel } from '../../../tools/prune-model/prune.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';

const logger = createLogger('test', { level: 'silent' });
export const BUNDLE = 'ctr';

/** The thread that looks up rows: the model worker, or the main thread for it. */
const LOOKUP_THREADS = ['worker', 'main'] as const;

/**
 * @param features features.json; undefined for requests of keys @returns the repository of version
 *   1
 */
export async function publishModel(
  t: TestContext,
  model: Uint8Array,
  features?: object,
  builderFlags: readonly string[] = [],
): Promise<string> {
  const folder = temporaryFolder(t);
  const path = (name: string): string => join(folder, name);
  writeFileSync(path('model.onnx'), model);
  if (features !== undefined) writeFileSync(path('features.json'), JSON.stringify(features));
  await pruneModel({
    model: path('model.onnx'),
    output: path('out'),
    samples: 0,
    force: false,
    dryRun: false,
    features: features === undefined ? undefined : path('features.json'),
    inProcess: true,
  });
  const target = ['--output-path', path('repo'), '--shard-num', '2', '--cur-version', '1'];
  const input = ['--input', path('out'), '--dict-name', BUNDLE];
  const flags = [...input, ...target, ...builderFlags];
  const { code, stderr } = await runCommand('tools/cube-builder/main.js', ...flags);
  assert.equal(code, 0, stderr);
  return path('repo');
}

/** One loaded bundle per lookup thread. */
export class ServedModel {
  readonly bundles: readonly LoadedBundle[];
  readonly #predictor = new Predictor();

  private constructor(bundles: readonly LoadedBundle[]) {
    this.bundles = bundles;
  }

  /** @param features features.json; undefined for requests of keys */
  static async load(
    t: TestContext,
    model: Uint8Array,
    features?: object,
    builderFlags: readonly string[] = [],
  ): Promise<ServedModel> {
    const repository = openRepository(await publishModel(t, model, features, builderFlags));
    const bundles: LoadedBundle[] = [];
    for (const looksUp of LOOKUP_THREADS) {
      const memory = new MemoryStore({ repository, budgetBytes: 64 << 20 });
      const store = looksUp === 'worker' ? memory : withoutShare(memory);
      const source = { repository, bundle: BUNDLE, store, instances: 1, logger };
      const bundle = await LoadedBundle.load(source, '1');
      t.after(async () => {
        await bundle.close();
        await store.close();
      });
      bundles.push(bundle);
    }
    return new ServedModel(bundles);
  }

  predict(bundle: LoadedBundle, rows: FeatureRows | KeyedRows): Promise<Prediction> {
    return this.#predictor.predict(bundle, rows, { deadlineMs: performance.now() + 30_000 });
  }

  /** Checks the scores of every bundle. */
  async check(rows: FeatureRows | KeyedRows, scores: ArrayLike<number>): Promise<void> {
    for (const [i, bundle] of this.bundles.entries()) {
      const { clickOutput } = await this.predict(bundle, rows);
      assertClose(clickOutput, scores, LOOKUP_THREADS[i]!);
    }
  }
}

export function assertClose(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  what: string,
): void {
  assert.equal(actual.length, expected.length, what);
  for (let i = 0; i < actual.length; i++) {
    const difference = Math.abs(actual[i]! - expected[i]!);
    assert.ok(
      difference <= 1e-5 * Math.max(1, Math.abs(expected[i]!)),
      `${what}, value ${i}: ${actual[i]}, not ${expected[i]}`,
    );
  }
}

/** The same store without shared memories, so that the main thread looks up. */
function withoutShare(store: MemoryStore): EmbeddingStore {
  return {
    kind: 'local',
    prepare: (manifest) => store.prepare(manifest),
    lookup: (manifest, groups, timeoutMs) => store.lookup(manifest, groups, timeoutMs),
    retire: (manifest) => store.retire(manifest),
    close: () => store.close(),
  };
}
