/**
 * Continuous pinned lookups by fleet file, always at the newest version of the channel that every
 * shard has loaded.
 */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { CubeClient } from '../../../lib/client/cube-client.ts';
import { FleetFile } from '../../../lib/client/fleet-file.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import type { Repository } from '../../../lib/repository/repository.ts';
import { onTestEnd } from '../../repository/support/fixtures.ts';
import { packKeys } from '../../store/support/layers.ts';
import { computeRows } from './delta-source.ts';

const WORKERS = 4;
const CHANNEL_POLL_MS = 25;
/** Pause between lookups, which leaves processor time to the servers. */
const PAUSE_MS = 30;

export class FleetTraffic {
  /** Number of correct lookups by version. */
  readonly answered: Map<string, number> = new Map();
  readonly #client: CubeClient;
  readonly #keys: readonly bigint[];
  readonly #repository: Repository;
  readonly #pauseMs: number;
  readonly #ended: Promise<unknown>;
  #failure: unknown;
  #manifest: Manifest | undefined;
  #stopped = false;

  constructor(
    t: TestContext,
    fleet: string,
    repository: Repository,
    keys: readonly bigint[],
    pauseMs: number = PAUSE_MS,
  ) {
    const onInvalid = (error: Error): void => assert.fail(error);
    const file = new FleetFile(fleet, { onInvalid });
    this.#client = new CubeClient({ fleet: () => file.current() });
    this.#keys = keys;
    this.#repository = repository;
    this.#pauseMs = pauseMs;
    onTestEnd(t, () => {
      this.#stopped = true;
      this.#client.close();
    });
    this.#ended = Promise.all([
      this.#follow(),
      ...Array.from({ length: WORKERS }, () => this.#run()),
    ]);
    this.#ended.catch((error: unknown) => {
      this.#failure = error;
    });
  }

  /** @throws the error of the first failed lookup, which ended the traffic */
  count(version: string): number {
    if (this.#failure !== undefined) throw this.#failure;
    return this.answered.get(version) ?? 0;
  }

  /** @throws the error of the first failed lookup */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#ended;
  }

  async #follow(): Promise<void> {
    while (!this.#stopped) {
      const { pointer } = await this.#repository.readChannel('ctr', 'stable');
      if (pointer !== undefined && pointer.version !== this.#manifest?.version) {
        const manifest = await this.#repository.readManifest('ctr', pointer.version);
        const { loaded } = await this.#client.checkLoaded(manifest, 1_000);
        if (loaded) this.#manifest = manifest;
      }
      await new Promise((resolve) => setTimeout(resolve, CHANNEL_POLL_MS));
    }
  }

  async #run(): Promise<void> {
    const keys = packKeys(this.#keys);
    const count = this.#keys.length;
    while (!this.#stopped) {
      const manifest = this.#manifest;
      if (manifest === undefined) {
        await new Promise((resolve) => setTimeout(resolve, CHANNEL_POLL_MS));
        continue;
      }
      const rows = new Float32Array(count * 4);
      const group = { table: 't', keys, count, rows, outcomes: new Uint8Array(count) };
      const summary = await this.#client.lookup(manifest, [group], 10_000);
      assert.equal(summary.unavailable, 0, summary.reason);
      assert.deepEqual(rows, computeRows(Number(manifest.version), this.#keys));
      this.answered.set(manifest.version, this.count(manifest.version) + 1);
      await new Promise((resolve) => setTimeout(resolve, this.#pauseMs));
    }
  }
}
