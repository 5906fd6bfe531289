/** Toy bundles in a repository of their own, a serving process before it, and traffic whose every answer is checked. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/fixtures.ts';
import { type Answer, ServingProcess } from './serving-process.ts';
import { BUNDLE, type ToyBundle, toTsv, toyRows } from './toy-bundle.ts';

const TOLERANCE = 1e-6;
/** Callers that never pause take the processor from what they watch. */
const PAUSE_MS = 10;

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

  /** A serving process with the LOCAL store. */
  startLocal(t: TestContext, flags: readonly string[] = []): Promise<ServingProcess> {
    return ServingProcess.start(t, [
      ...['--repository', this.location, '--bundle', BUNDLE, '--store', 'local'],
      ...['--data-dir', join(this.folder, 'data'), '--instances', '2', '--timeout-ms', '10000'],
      ...flags,
    ]);
  }
}

/** Publishes all, activates the first, and waits until it is served. */
export async function startLocal(
  t: TestContext,
  toys: readonly ToyBundle[],
  flags: readonly string[] = [],
): Promise<{ toys: ToyRepository; serving: ServingProcess }> {
  const repository = new ToyRepository(t);
  for (const toy of toys) await repository.publish(toy);
  await repository.activate(toys[0]!.wish.version);
  const serving = await repository.startLocal(t, flags);
  await serving.untilReady();
  return { toys: repository, serving };
}

/** Sends checked requests over several lanes until told to stop. */
export class Traffic {
  readonly #serving: ServingProcess;
  readonly #bundles: readonly ToyBundle[];
  readonly #model: string | undefined;
  readonly #lanes: Promise<void>[];
  /** Answers that were no 200, in order. */
  readonly refused: Answer[] = [];
  /** Answers by version. */
  readonly answered: Map<string, number> = new Map();
  degraded: number = 0;
  #stopped = false;

  /** @param model absent: the only one */
  constructor(serving: ServingProcess, bundles: readonly ToyBundle[], lanes = 6, model?: string) {
    this.#serving = serving;
    this.#bundles = bundles;
    this.#model = model;
    this.#lanes = Array.from({ length: lanes }, (_, lane) => this.#runLane(lane));
  }

  /** @throws what a lane found wrong */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#lanes);
  }

  /** Waits until `count` more answers of this version have come. */
  async untilAnswered(version: string, count = 50): Promise<void> {
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
      const toy = this.#bundles.find(({ wish }) => wish.version === version)!;
      rows.forEach((row, r) => {
        const difference = Math.abs(probabilities[r] - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `version ${version}, row ${r}: off by ${difference}`);
      });
    }
  }
}
