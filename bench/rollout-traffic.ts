/**
 * Callers of a fleet during rollouts: lookups by CubeClient in the version that the channel points to, as soon as every shard has
 * it, and predictions by serving. Every answer is held against the version that it names: all rows, all scores.
 */
import { join } from 'node:path';
import { CtrClient } from '../lib/client/ctr-client.ts';
import { CubeClient } from '../lib/client/cube-client.ts';
import { FleetFile } from '../lib/client/fleet-file.ts';
import { CubeError } from '../lib/core/errors.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { openRepository } from '../lib/repository/repository.ts';
import { areRowsOf, DIM, KnownScores, TABLE, writeTableKey } from './rollout-versions.ts';
import { BUNDLE } from './serving-model.ts';

const KEYS = 260;
const ROWS_PER_PREDICTION = 16;
/** Each is scored anew in every version. */
const PREDICTIONS = 16;
const TIMEOUT_MS = 5_000;
const FOLLOW_MS = 50;
const DRAWN = 1 << 18;

export interface Counts {
  requests: number;
  failed: number;
  /** Answers with rows or scores that are not those of the version they name. */
  mixed: number;
  /** Of what failed or was mixed first. */
  first: string | undefined;
  /** Versions that answered, in the order of their first answers. */
  versions: string[];
}

/** One way of asking. */
export interface Caller {
  readonly counts: Counts;
  /** Never fails: what went wrong is counted. */
  call(): Promise<void>;
  close(): void;
}

export function newCounts(): Counts {
  return { requests: 0, failed: 0, mixed: 0, first: undefined, versions: [] };
}

function note(counts: Counts, what: 'failed' | 'mixed', why: string): void {
  counts[what]++;
  counts.first ??= `${what}: ${why}`;
}

function answered(counts: Counts, version: string): void {
  if (!counts.versions.includes(version)) counts.versions.push(version);
}

/** The version that callers are to ask for: the channel's, from when it is held whole. */
class Followed {
  #manifest: Manifest | undefined;
  readonly #client: CubeClient;
  readonly #timer: NodeJS.Timeout;
  #looking = false;

  constructor(folder: string, client: CubeClient) {
    this.#client = client;
    const repository = openRepository(join(folder, 'repository'));
    const look = async (): Promise<void> => {
      const { pointer } = await repository.channel(BUNDLE, 'stable');
      if (pointer === undefined || pointer.version === this.#manifest?.version) return;
      const manifest = await repository.manifest(BUNDLE, pointer.version);
      if ((await this.#client.holds(manifest, TIMEOUT_MS)).held) this.#manifest = manifest;
    };
    this.#timer = setInterval(() => {
      if (this.#looking) return;
      this.#looking = true;
      void look().finally(() => {
        this.#looking = false;
      });
    }, FOLLOW_MS);
  }

  async manifest(): Promise<Manifest> {
    while (this.#manifest === undefined) await new Promise((resolve) => setTimeout(resolve, 10));
    return this.#manifest;
  }

  close(): void {
    clearInterval(this.#timer);
  }
}

/** Lookups of uniformly drawn keys of a table of so many rows. */
export class Lookups implements Caller {
  counts: Counts = newCounts();
  readonly #client: CubeClient;
  readonly #followed: Followed;
  readonly #drawn = new Uint32Array(2 * DRAWN);
  readonly #buffers: { rows: Float32Array; outcomes: Uint8Array }[] = [];
  #at = 0;

  constructor(folder: string, tableRows: number) {
    const fleet = new FleetFile(join(folder, 'fleet.json'), { onInvalid: () => undefined });
    this.#client = new CubeClient({ fleet: () => fleet.current() });
    this.#followed = new Followed(folder, this.#client);
    for (let i = 0; i < DRAWN; i++) {
      writeTableKey(this.#drawn, 2 * i, Math.floor(Math.random() * tableRows));
    }
  }

  async call(): Promise<void> {
    const manifest = await this.#followed.manifest();
    const { counts } = this;
    this.#at = this.#at + 4 * KEYS > this.#drawn.length ? 0 : this.#at + 2 * KEYS;
    const keys = this.#drawn.subarray(this.#at, this.#at + 2 * KEYS);
    const buffers = this.#buffers.pop() ?? {
      rows: new Float32Array(KEYS * DIM),
      outcomes: new Uint8Array(KEYS),
    };
    counts.requests++;
    try {
      const group = { table: TABLE, keys, count: KEYS, ...buffers };
      const summary = await this.#client.lookup(manifest, [group], TIMEOUT_MS);
      const { version, unseen, unavailable, reason = '' } = summary;
      answered(counts, version);
      if (unseen + unavailable > 0) {
        note(counts, 'failed', `${unseen} unseen, ${unavailable} unavailable: ${reason}`);
      } else if (version !== manifest.version || !areRowsOf(buffers.rows, keys, Number(version))) {
        note(counts, 'mixed', `rows that are not of version ${version}`);
      }
    } catch (error) {
      note(counts, 'failed', CubeError.from(error).message);
    }
    this.#buffers.push(buffers);
  }

  close(): void {
    this.#followed.close();
    this.#client.close();
  }
}

/** Predictions of some of the demo's rows. */
export class Predictions implements Caller {
  counts: Counts = newCounts();
  readonly #client: CtrClient;
  readonly #scores: KnownScores;
  #next = 0;

  private constructor(url: string, scores: KnownScores) {
    this.#client = new CtrClient({ url, retryMax: 0, timeoutMs: TIMEOUT_MS });
    this.#scores = scores;
  }

  static async open(folder: string, url: string): Promise<Predictions> {
    return new Predictions(url, await KnownScores.open(folder, ROWS_PER_PREDICTION, PREDICTIONS));
  }

  async call(): Promise<void> {
    const { counts } = this;
    const i = this.#next++ % this.#scores.requests.length;
    counts.requests++;
    try {
      const answer = await this.#client.predict(this.#scores.requests[i]!.lines);
      const { version, tablesVersion, probabilities, unavailable, unseen } = answer;
      answered(counts, version);
      const expected = this.#scores.scoresOf(i, version);
      if (unavailable + unseen > 0) {
        note(counts, 'failed', `${unseen} unseen, ${unavailable} unavailable`);
      } else if (version !== tablesVersion || !agree(probabilities, await expected)) {
        note(counts, 'mixed', `scores that are not of version ${version}`);
      }
    } catch (error) {
      note(counts, 'failed', CubeError.from(error).message);
    }
  }

  /** Works the versions' scores out now, not beside what is measured. */
  async prepare(versions: readonly number[]): Promise<void> {
    for (const version of versions) {
      for (let i = 0; i < PREDICTIONS; i++) await this.#scores.scoresOf(i, String(version));
    }
  }

  close(): void {
    this.#client.close();
  }
}

const TOLERANCE = 1e-5;

function agree(scores: Float32Array, expected: Float32Array): boolean {
  return (
    scores.length === expected.length &&
    scores.every((score, i) => Math.abs(score - expected[i]!) <= TOLERANCE)
  );
}
