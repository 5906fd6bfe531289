/** A loaded toy version, its predictor, and answers that are compared with the plain computation. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { CubeError, type ErrorCode } from '../../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../../lib/core/features.ts';
import { parseTsvRows } from '../../../lib/core/features.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { type BatchingOptions, DEFAULT_BATCHING } from '../../../serving/engine/batching.ts';
import { type PredictCall, type Prediction, Predictor } from '../../../serving/engine/predictor.ts';
import { type BundleSource, LoadedBundle } from '../../../serving/models/bundle.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { MemoryStore as MapStore } from '../memory-store.ts';
import { BUNDLE, ToyBundle, type ToyRow, type ToyWish, toTsv } from '../toy-bundle.ts';

const TOLERANCE = 1e-6;
const LONG_MS = 30_000;

type Options = Partial<Pick<BundleSource, 'instances' | 'workerScript' | 'requestCacheBytes'>> & {
  readonly batching?: Partial<BatchingOptions>;
  readonly wish?: Partial<ToyWish>;
  /** Instead of the version's own. */
  readonly files?: Readonly<Record<string, Uint8Array>>;
};

export class EngineBench<S extends MapStore | MemoryStore> {
  readonly toy: ToyBundle;
  readonly store: S;
  readonly bundle: LoadedBundle;
  readonly #predictor = new Predictor();

  private constructor(toy: ToyBundle, store: S, bundle: LoadedBundle) {
    this.toy = toy;
    this.store = store;
    this.bundle = bundle;
  }

  /** On a store of Maps, which lookups can be made to wait for. */
  static onMaps(t: TestContext, options: Options = {}): Promise<EngineBench<MapStore>> {
    return EngineBench.#open(t, options, (_repository, toy) => new MapStore([toy]));
  }

  /** On tables in memory. */
  static inMemory(t: TestContext, options: Options = {}): Promise<EngineBench<MemoryStore>> {
    return EngineBench.#open(t, options, (repository) => {
      return new MemoryStore({ repository, budgetBytes: 2 ** 28, workers: 4 });
    });
  }

  static async #open<S extends MapStore | MemoryStore>(
    t: TestContext,
    { batching, wish, files, instances = 1, ...rest }: Options,
    openStore: (repository: BundleSource['repository'], toy: ToyBundle) => S,
  ): Promise<EngineBench<S>> {
    const toy = new ToyBundle({ version: '1', seed: 5, ...wish });
    const folder = temporaryFolder(t);
    const repository = openRepository(join(folder, 'repo'), { create: true });
    await repository.publish(toy.publication(join(folder, 'layers'), files));
    const store = openStore(repository, toy);
    const logger = createLogger('test', 'silent');
    const bundle = await LoadedBundle.load(
      {
        ...{ repository, bundle: BUNDLE, store, instances, logger, ...rest },
        batching: { ...DEFAULT_BATCHING, ...batching },
      },
      '1',
    );
    t.after(async () => {
      await bundle.close();
      await store.close();
    });
    return new EngineBench(toy, store, bundle);
  }

  predict(rows: readonly ToyRow[], call: Partial<PredictCall> = {}): Promise<Prediction> {
    return this.send(parseTsvRows(toTsv(rows), this.bundle.features, 100_000), call);
  }

  send(rows: FeatureRows | KeyedRows, call: Partial<PredictCall> = {}): Promise<Prediction> {
    const deadlineMs = performance.now() + LONG_MS;
    return this.#predictor.predict(this.bundle, rows, { deadlineMs, ...call });
  }

  assertScores(rows: readonly ToyRow[], { output, unseen }: Prediction): void {
    assert.equal(output.length, 2 * rows.length);
    let expectedUnseen = 0;
    rows.forEach((row, i) => {
      const difference = Math.abs(output[2 * i + 1]! - this.toy.score(row)[1]);
      assert.ok(difference < TOLERANCE, `row ${i} is off by ${difference}`);
      expectedUnseen += this.toy.unseen(row);
    });
    assert.equal(unseen, expectedUnseen);
  }
}

/** A store whose lookups wait until `open` is called. */
export function closeGate(store: MapStore): { open(): void } {
  let open = (): void => undefined;
  store.gate = new Promise((resolve) => {
    open = resolve;
  });
  return { open: () => open() };
}

export function refused(
  promise: Promise<unknown>,
  code: ErrorCode,
  message: RegExp,
): Promise<void> {
  return assert.rejects(promise, (error: CubeError) => {
    assert.ok(error instanceof CubeError);
    assert.match(error.message, message);
    assert.equal(error.code, code);
    return true;
  });
}

/** The event loop's next turn. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
