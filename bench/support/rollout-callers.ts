/**
 * Callers of a fleet during rollouts: lookups by CubeClient in the version that they are told to
 * use, and predictions by serving. Every answer is compared with the version that it names: all
 * rows, all scores.
 */

import { join } from 'node:path';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { FleetFile } from '../../lib/client/fleet-file.ts';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import {
  DIM,
  ExpectedScores,
  listRowVersions,
  rowsMatchVersion,
  TABLE,
  writeTableKey,
} from './rollout-versions.ts';

const KEYS = 260;
const ROWS_PER_PREDICTION = 16;
/** Different requests; the expected scores of each are computed for every version. */
const PREDICTIONS = 16;
const TIMEOUT_MS = 5_000;
const DRAWN = 1 << 18;

export interface AnswerCounts {
  requests: number;
  failed: number;
  /** Answers that consist of another version than the one they name. */
  wrong: number;
  /** Answers with rows of several versions, or with scores that no single version gives. */
  mixed: number;
  /** The first failed, wrong or mixed answer. */
  firstProblem: string | undefined;
  /** Versions that answered, in the order of their first answers. */
  versions: string[];
}

/** Makes calls of one kind. */
export interface Caller {
  readonly counts: AnswerCounts;
  /** Never rejects: problems are counted. */
  call(): Promise<void>;
  close(): void;
}

export function makeCounts(): AnswerCounts {
  return { requests: 0, failed: 0, wrong: 0, mixed: 0, firstProblem: undefined, versions: [] };
}

function recordProblem(
  counts: AnswerCounts,
  kind: 'failed' | 'wrong' | 'mixed',
  why: string,
): void {
  counts[kind]++;
  counts.firstProblem ??= `${kind}: ${why}`;
}

function recordVersion(counts: AnswerCounts, version: string): void {
  if (!counts.versions.includes(version)) counts.versions.push(version);
}

/** Lookups of uniformly drawn keys of a table with `tableRows` rows. */
export class LookupCaller implements Caller {
  counts: AnswerCounts = makeCounts();
  readonly #client: CubeClient;
  readonly #chooseVersion: () => Manifest;
  readonly #drawn = new Uint32Array(2 * DRAWN);
  readonly #buffers: { rows: Float32Array; outcomes: Uint8Array }[] = [];
  #at = 0;

  /** @param chooseVersion asked at each call */
  constructor(folder: string, tableRows: number, chooseVersion: () => Manifest) {
    this.#chooseVersion = chooseVersion;
    const fleet = new FleetFile(join(folder, 'fleet.json'), { onInvalid: () => undefined });
    this.#client = new CubeClient({ fleet: () => fleet.current() });
    for (let i = 0; i < DRAWN; i++) {
      writeTableKey(this.#drawn, 2 * i, Math.floor(Math.random() * tableRows));
    }
  }

  async call(): Promise<void> {
    const manifest = this.#chooseVersion();
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
      recordVersion(counts, version);
      if (unseen + unavailable > 0) {
        recordProblem(counts, 'failed', `${unseen} unseen, ${unavailable} unavailable: ${reason}`);
      } else if (version !== manifest.version) {
        recordProblem(counts, 'wrong', `version ${version} instead of ${manifest.version}`);
      } else if (!rowsMatchVersion(buffers.rows, keys, Number(version))) {
        const found = listRowVersions(buffers.rows);
        const kind = found.length > 1 ? 'mixed' : 'wrong';
        recordProblem(counts, kind, `rows of ${found.join(', ')} instead of version ${version}`);
      }
    } catch (error) {
      recordProblem(counts, 'failed', CubeError.from(error).message);
    }
    this.#buffers.push(buffers);
  }

  close(): void {
    this.#client.close();
  }
}

/** Predictions of rows of the demo. */
export class PredictionCaller implements Caller {
  counts: AnswerCounts = makeCounts();
  readonly #client: CtrClient;
  readonly #scores: ExpectedScores;
  #next = 0;

  private constructor(url: string, scores: ExpectedScores) {
    this.#client = new CtrClient({ url, retryMax: 0, timeoutMs: TIMEOUT_MS });
    this.#scores = scores;
  }

  static async open(folder: string, url: string): Promise<PredictionCaller> {
    return new PredictionCaller(
      url,
      await ExpectedScores.open(folder, ROWS_PER_PREDICTION, PREDICTIONS),
    );
  }

  async call(): Promise<void> {
    const { counts } = this;
    const i = this.#next++ % this.#scores.requests.length;
    counts.requests++;
    try {
      const answer = await this.#client.predict(
        requireDefined(this.#scores.requests[i], 'a request').lines,
      );
      const { version, tablesVersion, probabilities, unavailable, unseen } = answer;
      recordVersion(counts, version);
      const expected = this.#scores.compute(i, version);
      if (unavailable + unseen > 0) {
        recordProblem(counts, 'failed', `${unseen} unseen, ${unavailable} unavailable`);
      } else if (version !== tablesVersion || !scoresMatch(probabilities, await expected)) {
        recordProblem(counts, 'mixed', `scores that are not of version ${version}`);
      }
    } catch (error) {
      recordProblem(counts, 'failed', CubeError.from(error).message);
    }
  }

  /** Computes the versions' expected scores now, not during the measurement. */
  async prepare(versions: readonly number[]): Promise<void> {
    for (const version of versions) {
      for (let i = 0; i < PREDICTIONS; i++) await this.#scores.compute(i, String(version));
    }
  }

  close(): void {
    this.#client.close();
  }
}

const TOLERANCE = 1e-5;

function scoresMatch(scores: Float32Array, expected: Float32Array): boolean {
  return (
    scores.length === expected.length &&
    scores.every((score, i) => Math.abs(score - (expected[i] ?? Number.NaN)) <= TOLERANCE)
  );
}
