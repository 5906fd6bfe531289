/**
 * Answers copies of requests by another version, here or in another process, and compares the
 * scores. Copies have the lowest priority, are dropped when more than a few wait or the engine is
 * busy, and are never repeated.
 */
import { CtrHttp } from '../../lib/client/ctr-http.ts';
import type { CtrRow } from '../../lib/client/ctr-rows.ts';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import type { AnsweredCopy, Shadow } from '../../lib/core/shadow.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { Predictor } from '../engine/predictor.ts';
import { type Models, requireBundle } from './model-registry.ts';
import { formatRow } from './recorded-rows.ts';
import type { Traffic } from './traffic.ts';

/** Copies that wait or run at a time; each keeps the rows of its request in memory. */
const PENDING_MAX = 16;
const LOWEST_PRIORITY = 2;
/** Larger copies are not sent to other processes: encoding them would delay other requests. */
const REMOTE_ROWS_MAX = 512;
const NOTHING_REDACTED: ReadonlySet<string> = new Set();
/** A copy that would wait for a larger share of its timeout is dropped. */
const WAIT_SHARE_MAX = 0.5;

/** An answered request. */
export interface ShadowedRequest {
  /** The model that the request named. */
  readonly model: string;
  readonly bundle: LoadedBundle;
  readonly rows: FeatureRows | KeyedRows;
  readonly prediction: Prediction;
  readonly durationMs: number;
}

/** What became of a copy. */
export type ShadowOutcome = 'OK' | 'dropped' | ErrorCode;

export interface ShadowResult {
  readonly shadow: string;
  readonly outcome: ShadowOutcome;
  /** The model that the request named, and its bundle and version. */
  readonly model: string;
  readonly bundle: string;
  readonly against: string;
  /** The version that answered the copy; undefined: not known. */
  readonly version: string | undefined;
  /** Scores and times of the request and of its copy; absent unless the copy was answered. */
  readonly answers?: AnsweredCopy;
}

export interface ShadowsOptions {
  readonly traffic: { current(): Traffic };
  readonly models: Models;
  readonly predictor: Pick<Predictor, 'predict'>;
  readonly clock: Clock;
  /** The click probability of each row. */
  readonly toScores: (prediction: Prediction, bundle: LoadedBundle) => Float32Array;
  readonly onResult: (result: ShadowResult) => void;
}

export class Shadows {
  readonly #options: ShadowsOptions;
  /** Connections by endpoint. */
  readonly #remotes = new Map<string, CtrHttp>();
  #pending = 0;

  constructor(options: ShadowsOptions) {
    this.#options = options;
  }

  /** Copies a request to the shadows of its model; returns at once and never throws. */
  offer(request: ShadowedRequest): void {
    for (const shadow of this.#options.traffic.current().shadows) {
      if (shadow.model !== request.model || Math.random() >= shadow.share) continue;
      if (this.#pending >= PENDING_MAX) {
        this.#report(shadow, request, 'dropped');
        continue;
      }
      this.#pending++;
      // After the answer of the request is written.
      setImmediate(() => void this.#run(shadow, request));
    }
  }

  /** Ends the calls to other processes. */
  close(): void {
    for (const remote of this.#remotes.values()) remote.close();
  }

  async #run(shadow: Shadow, request: ShadowedRequest): Promise<void> {
    const { endpoint } = shadow.target;
    let version: string | undefined;
    try {
      if (endpoint !== undefined) {
        await this.#call(shadow, endpoint, request);
        return;
      }
      const target = this.#findTarget(shadow);
      ({ version } = target);
      if (target.batcher.estimateWaitMs(LOWEST_PRIORITY) > WAIT_SHARE_MAX * shadow.timeoutMs) {
        this.#report(shadow, request, 'dropped', version);
        return;
      }
      await this.#predict(shadow, target, request);
    } catch (error) {
      this.#report(shadow, request, CubeError.from(error).code, version);
    } finally {
      this.#pending--;
    }
  }

  async #predict(shadow: Shadow, target: LoadedBundle, request: ShadowedRequest): Promise<void> {
    const { clock, predictor, toScores } = this.#options;
    const { bundle, rows } = request;
    requireSameFeatures(bundle, target);
    const startMs = clock.nowMs();
    const deadlineMs = startMs + shadow.timeoutMs;
    const second = await predictor.predict(target, rows, { deadlineMs, priority: LOWEST_PRIORITY });
    const scores = toScores(second, target);
    this.#reportAnswer(shadow, request, target.version, startMs, scores);
  }

  /** Sends the rows to another process, which hashes and scales them itself. */
  async #call(shadow: Shadow, endpoint: string, request: ShadowedRequest): Promise<void> {
    const { rows, bundle } = request;
    if (rows.rowCount > REMOTE_ROWS_MAX) {
      this.#report(shadow, request, 'dropped');
      return;
    }
    let remote = this.#remotes.get(endpoint);
    if (remote === undefined) {
      remote = new CtrHttp(new URL(endpoint), PENDING_MAX, NO_CREDENTIALS);
      this.#remotes.set(endpoint, remote);
    }
    const { model, channel: label, version } = shadow.target;
    const options = {
      priority: LOWEST_PRIORITY,
      ...(model !== undefined && { model }),
      ...(label !== undefined && { label }),
      ...(version !== undefined && { version }),
    };
    const encoded = Array.from(
      { length: rows.rowCount },
      (_, row) => formatRow(rows, row, bundle.features, NOTHING_REDACTED) as CtrRow,
    );
    const startMs = this.#options.clock.nowMs();
    const answer = await remote.predict(encoded, options, shadow.timeoutMs);
    this.#reportAnswer(shadow, request, answer.version, startMs, answer.probabilities);
  }

  #reportAnswer(
    shadow: Shadow,
    request: ShadowedRequest,
    version: string,
    startMs: number,
    scores: ArrayLike<number>,
  ): void {
    const { clock, toScores } = this.#options;
    const { prediction, bundle, durationMs } = request;
    this.#report(shadow, request, 'OK', version, {
      primary: { durationMs, scores: toScores(prediction, bundle) },
      shadow: { durationMs: clock.nowMs() - startMs, scores },
    });
  }

  #findTarget({ model, target: { channel, version, ...other } }: Shadow): LoadedBundle {
    const found = this.#options.models.find(other.model ?? model, {
      ...(channel !== undefined && { label: channel }),
      ...(version !== undefined && { version }),
    });
    return requireBundle(found);
  }

  #report(
    { name: shadow }: Shadow,
    { model, bundle }: ShadowedRequest,
    outcome: ShadowOutcome,
    version?: string,
    answers?: AnsweredCopy,
  ): void {
    this.#options.onResult({
      shadow,
      outcome,
      model,
      bundle: bundle.name,
      against: bundle.version,
      version,
      ...(answers !== undefined && { answers }),
    });
  }
}

const comparedFeatures = new WeakMap<LoadedBundle, WeakMap<LoadedBundle, boolean>>();

/**
 * Parsed rows fit only versions that hash and scale alike. @throws CubeError UNSUPPORTED
 */
function requireSameFeatures(primary: LoadedBundle, shadow: LoadedBundle): void {
  const known = comparedFeatures.get(primary) ?? new WeakMap<LoadedBundle, boolean>();
  comparedFeatures.set(primary, known);
  let isSame = known.get(shadow);
  if (isSame === undefined) {
    isSame = toText(primary) === toText(shadow);
    known.set(shadow, isSame);
  }
  if (isSame) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${primary.name} and ${shadow.name} hash or scale features differently`,
  );
}

function toText({ features: { hash, slots, dense } }: LoadedBundle): string {
  return JSON.stringify([hash, slots, dense], (_key, value) =>
    typeof value === 'bigint' ? `${value}` : value,
  );
}
