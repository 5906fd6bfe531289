/** Pinned lookups, again and again, by the fleet file, always at the version that the channel points to and every shard holds. */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { atEnd } from '../repository/fixtures.ts';
import { packKeys } from '../store/layers.ts';
import { rowsOf } from './deltas.ts';

const WORKERS = 4;
const FOLLOW_EVERY_MS = 25;
/** Callers that never pause take the processor from what they watch. */
const PAUSE_MS = 5;

export class FleetTraffic {
  /** Lookups by version; each was answered whole and right. */
  readonly answered: Map<string, number> = new Map();
  readonly #client: CubeClient;
  readonly #keys: readonly bigint[];
  readonly #repository: Repository;
  readonly #pauseMs: number;
  readonly #ended: Promise<unknown>;
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
    atEnd(t, () => {
      this.#stopped = true;
      this.#client.close();
    });
    this.#ended = Promise.all([
      this.#follow(),
      ...Array.from({ length: WORKERS }, () => this.#run()),
    ]);
    this.#ended.catch(() => undefined);
  }

  count(version: string): number {
    return this.answered.get(version) ?? 0;
  }

  /** @throws what the first lookup that was not answered whole says */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#ended;
  }

  async #follow(): Promise<void> {
    while (!this.#stopped) {
      const { pointer } = await this.#repository.channel('ctr', 'stable');
      if (pointer !== undefined && pointer.version !== this.#manifest?.version) {
        const manifest = await this.#repository.manifest('ctr', pointer.version);
        const { held } = await this.#client.holds(manifest, 1_000);
        if (held) this.#manifest = manifest;
      }
      await new Promise((resolve) => setTimeout(resolve, FOLLOW_EVERY_MS));
    }
  }

  async #run(): Promise<void> {
    const keys = packKeys(this.#keys);
    const count = this.#keys.length;
    while (!this.#stopped) {
      const manifest = this.#manifest;
      if (manifest === undefined) {
        await new Promise((resolve) => setTimeout(resolve, FOLLOW_EVERY_MS));
        continue;
      }
      const rows = new Float32Array(count * 4);
      const group = { table: 't', keys, count, rows, outcomes: new Uint8Array(count) };
      const summary = await this.#client.lookup(manifest, [group], 10_000);
      assert.equal(summary.unavailable, 0, summary.reason);
      assert.deepEqual(rows, rowsOf(Number(manifest.version), this.#keys));
      this.answered.set(manifest.version, this.count(manifest.version) + 1);
      await new Promise((resolve) => setTimeout(resolve, this.#pauseMs));
    }
  }
}
