/**
 * A loaded toy version with its predictor, whose predictions are compared with a plain computation.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { CubeError, type ErrorCode } from '../../../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../../../lib/core/feature-rows.ts';
import { parseTsvRows } from '../../../../lib/core/tsv-rows.ts';
import { createLogger } from '../../../../lib/platform/logs.ts';
import { openRepository } from '../../../../lib/repository/repository.ts';
import {
  type BatchingOptions,
  DEFAULT_BATCHING,
} from '../../../../serving/engine/engine-options.ts';
import { type BundleLoadOptions, LoadedBundle } from '../../../../serving/engine/loaded-bundle.ts';
import type { Prediction, PredictOptions } from '../../../../serving/engine/prediction.ts';
import { Predictor } from '../../../../serving/engine/predictor.ts';
import { MemoryStore } from '../../../../serving/stores/memory-store.ts';
import { temporaryFolder } from '../../../repository/support/fixtures.ts';
import { FakeStore } from '../../support/fake-store.ts';
import {
  BUNDLE,
  ToyBundle,
  type ToyBundleOptions,
  type ToyRow,
  toTsv,
} from '../../support/toy-bundle.ts';

const TOLERANCE = 1e-6;
const LONG_MS = 30_000;

type Options = Partial<
  Pick<
    BundleLoadOptions,
    'instances' | 'workerScript' | 'requestCacheBytes' | 'precision' | 'splitsUsers'
  >
> & {
  readonly batching?: Partial<BatchingOptions>;
  readonly toy?: Partial<ToyBundleOptions>;
  /** Replaces files of the version. */
  readonly files?: Readonly<Record<string, Uint8Array>>;
};

export class EngineFixture<S extends FakeStore | MemoryStore> {
  readonly toy: ToyBundle;
  readonly store: S;
  readonly bundle: LoadedBundle;
  readonly #predictor = new Predictor();

  private constructor(toy: ToyBundle, store: S, bundle: LoadedBundle) {
    this.toy = toy;
    this.store = store;
    this.bundle = bundle;
  }

  /** Looks rows up in a fake store, whose lookups a test can block. */
  static onFakeStore(t: TestContext, options: Options = {}): Promise<EngineFixture<FakeStore>> {
    return EngineFixture.#open(t, options, (_repository, toy) => new FakeStore([toy]));
  }

  /** Looks rows up in the memory store. */
  static inMemory(t: TestContext, options: Options = {}): Promise<EngineFixture<MemoryStore>> {
    return EngineFixture.#open(t, options, (repository) => {
      return new MemoryStore({ repository, budgetBytes: 2 ** 28, workers: 4 });
    });
  }

  static async #open<S extends FakeStore | MemoryStore>(
    t: TestContext,
    { batching, toy: toyOptions, files, instances = 1, ...rest }: Options,
    openStore: (repository: BundleLoadOptions['repository'], toy: ToyBundle) => S,
  ): Promise<EngineFixture<S>> {
    const toy = new ToyBundle({ version: '1', seed: 5, ...toyOptions });
    const folder = temporaryFolder(t);
    const repository = openRepository(join(folder, 'repo'), { create: true });
    await repository.publish(toy.publication(join(folder, 'layers'), files));
    const store = openStore(repository, toy);
    const logger = createLogger('test', { level: 'silent' });
    const bundle = await LoadedBundle.load(
      {
        repository,
        bundle: BUNDLE,
        store,
        instances,
        logger,
        ...rest,
        batching: { ...DEFAULT_BATCHING, ...batching },
      },
      '1',
    );
    t.after(async () => {
      await bundle.close();
      await store.close();
    });
    return new EngineFixture(toy, store, bundle);
  }

  predict(rows: readonly ToyRow[], call: Partial<PredictOptions> = {}): Promise<Prediction> {
    return this.send(parseTsvRows(toTsv(rows), this.bundle.features, 100_000), call);
  }

  send(rows: FeatureRows | KeyedRows, call: Partial<PredictOptions> = {}): Promise<Prediction> {
    const deadlineMs = performance.now() + LONG_MS;
    return this.#predictor.predict(this.bundle, rows, { deadlineMs, ...call });
  }

  assertScores(rows: readonly ToyRow[], { clickOutput, unseen }: Prediction): void {
    assert.equal(clickOutput.length, 2 * rows.length);
    let expectedUnseen = 0;
    rows.forEach((row, i) => {
      const difference = Math.abs(clickOutput[2 * i + 1]! - this.toy.score(row)[1]);
      assert.ok(difference < TOLERANCE, `row ${i} is off by ${difference}`);
      expectedUnseen += this.toy.unseen(row);
    });
    assert.equal(unseen, expectedUnseen);
  }
}

/** Makes the store's lookups wait until `open` is called. */
export function blockLookups(store: FakeStore): { open(): void } {
  let open = (): void => undefined;
  store.lookupGate = new Promise((resolve) => {
    open = resolve;
  });
  return { open: () => open() };
}

export function assertRejected(
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

/** Waits for the next turn of the event loop. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
