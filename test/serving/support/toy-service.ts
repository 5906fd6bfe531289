/** A repository of toy bundles, a serving process, and a load whose responses are checked. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { type Answer, ServingProcess } from './serving-process.ts';
import { BUNDLE, type ToyBundle, toTsv, toyRows } from './toy-bundle.ts';

const TOLERANCE = 1e-6;
/** Pause between requests, so that the load does not starve the tested processes. */
const PAUSE_MS = 25;

export class ToyRepository {
  readonly folder: string;
  readonly location: string;
  readonly repository: Repository;

  constructor(t: TestContext) {
    this.folder = temporaryFolder(t);
    this.location = join(this.folder, 'repo');
    this.repository = openRepository(this.location, { create: true });
  }

  async publish(
    toy: ToyBundle,
    files: Readonly<Record<string, Uint8Array>> = {},
    bundle: string = BUNDLE,
  ): Promise<void> {
    const publication = toy.publication(join(this.folder, 'layers'), files);
    const manifest = { ...publication.manifest, bundle };
    await this.repository.publish({ ...publication, manifest });
  }

  async activate(version: string, channel = 'stable', bundle: string = BUNDLE): Promise<void> {
    await this.repository.activate(bundle, channel, { version, by: 'test', reason: 'test' });
  }

  async rollback(): Promise<void> {
    await this.repository.rollback(BUNDLE, 'stable', 'test', 'test');
  }

  /** Starts serving with the local store. @param isProcess in a process of its own */
  startLocal(
    t: TestContext,
    flags: readonly string[] = [],
    isProcess = false,
  ): Promise<ServingProcess> {
    const dataDir = join(this.folder, 'data');
    return this.#start(t, { store: 'local', dataDir, instances: 1 }, flags, isProcess);
  }

  /** Starts a process with the shard servers that `fleet` lists; it keeps time under any load. */
  startRemote(
    t: TestContext,
    fleet: string,
    instances: number,
    flags: readonly string[] = [],
  ): Promise<ServingProcess> {
    return this.#start(t, { store: 'remote', fleet, instances }, flags, true);
  }

  #start(
    t: TestContext,
    options: Readonly<Record<string, string | number>>,
    flags: readonly string[],
    isProcess = false,
  ): Promise<ServingProcess> {
    const all = { repository: this.location, bundle: BUNDLE, timeoutMs: 10_000, ...options };
    return ServingProcess.start(t, [...toArguments(all), ...flags], { isProcess });
  }
}

/** Publishes all versions, activates the first, and waits until it is served. */
export async function startLocal(
  t: TestContext,
  toys: readonly ToyBundle[],
  flags: readonly string[] = [],
  isProcess = false,
): Promise<{ toys: ToyRepository; serving: ServingProcess }> {
  const repository = new ToyRepository(t);
  for (const toy of toys) await repository.publish(toy);
  await repository.activate(toys[0]!.options.version);
  const serving = await repository.startLocal(t, flags, isProcess);
  await serving.waitUntilReady();
  return { toys: repository, serving };
}

/** Sends requests from several concurrent workers until stopped, and checks the responses. */
export class LoadRunner {
  readonly #serving: ServingProcess;
  readonly #bundles: readonly ToyBundle[];
  readonly #model: string | undefined;
  readonly #lanes: Promise<void>[];
  /** Responses with a status other than 200, in order. */
  readonly refused: Answer[] = [];
  /** Number of responses by version. */
  readonly answered: Map<string, number> = new Map();
  degraded: number = 0;
  #stopped = false;

  /** @param model default: the only model */
  constructor(serving: ServingProcess, bundles: readonly ToyBundle[], lanes = 6, model?: string) {
    this.#serving = serving;
    this.#bundles = bundles;
    this.#model = model;
    this.#lanes = Array.from({ length: lanes }, (_, lane) => this.#runLane(lane));
  }

  /** @throws the first failed check of a worker */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#lanes);
  }

  /** Waits for `count` more responses of this version. */
  async waitForAnswers(version: string, count = 50): Promise<void> {
    const target = (this.answered.get(version) ?? 0) + count;
    while ((this.answered.get(version) ?? 0) < target && !this.#stopped) {
      await Promise.race([...this.#lanes, new Promise((resolve) => setTimeout(resolve, 5))]);
    }
  }

  async #runLane(lane: number): Promise<void> {
    for (let i = 0; !this.#stopped; i++) {
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      const rows = toyRows(1 + ((i * 7 + lane) % 90), i * 64 + lane + 1);
      const answer = await this.#serving.postTsv(toTsv(rows), this.#model);
      if (answer.status !== 200) {
        this.refused.push(answer);
        continue;
      }
      const { version, tables_version, probabilities, degraded } = answer.body;
      assert.equal(version, tables_version);
      this.answered.set(version, (this.answered.get(version) ?? 0) + 1);
      if (degraded) {
        this.degraded++;
        continue;
      }
      const toy = this.#bundles.find(({ options }) => options.version === version)!;
      rows.forEach((row, r) => {
        const difference = Math.abs(probabilities[r] - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `version ${version}, row ${r}: off by ${difference}`);
      });
    }
  }
}
