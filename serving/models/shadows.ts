/**
 * Answers copies of requests by another version and compares the scores. Copies have the lowest
 * priority, are dropped when more than a few wait or the engine is busy, and are never repeated.
 */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import type { Shadow } from '../../lib/core/shadow.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { Predictor } from '../engine/predictor.ts';
import { type Models, requireBundle } from './model-registry.ts';
import type { Traffic } from './traffic.ts';

/** Copies that wait or run at a time; each keeps the rows of its request in memory. */
const PENDING_MAX = 16;
const LOWEST_PRIORITY = 2;
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
  /** Scores and times of the request and of its copy; absent unless the copy was answered. */
  readonly answers?: {
    readonly primary: ReadonlyScores;
    readonly shadow: ReadonlyScores;
  };
}

interface ReadonlyScores {
  readonly durationMs: number;
  readonly scores: Float32Array;
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
  #pending = 0;

  constructor(options: ShadowsOptions) {
    this.#options = options;
  }

  /** Copies a request to the shadows of its model; returns at once and never throws. */
  offer(request: ShadowedRequest): void {
    for (const shadow of this.#options.traffic.current().shadows) {
      if (shadow.model !== request.model || Math.random() >= shadow.share) continue;
      if (this.#pending >= PENDING_MAX) {
        this.#report(shadow, 'dropped');
        continue;
      }
      this.#pending++;
      // After the answer of the request is written.
      setImmediate(() => void this.#run(shadow, request));
    }
  }

  async #run(shadow: Shadow, request: ShadowedRequest): Promise<void> {
    try {
      const target = this.#findTarget(shadow);
      if (target.batcher.estimateWaitMs(LOWEST_PRIORITY) > WAIT_SHARE_MAX * shadow.timeoutMs) {
        this.#report(shadow, 'dropped');
        return;
      }
      await this.#predict(shadow, target, request);
    } catch (error) {
      this.#report(shadow, CubeError.from(error).code);
    } finally {
      this.#pending--;
    }
  }

  async #predict(shadow: Shadow, target: LoadedBundle, request: ShadowedRequest): Promise<void> {
    const { clock, predictor, toScores, onResult } = this.#options;
    const { bundle, rows, prediction, durationMs } = request;
    requireSameFeatures(bundle, target);
    const startMs = clock.nowMs();
    const deadlineMs = startMs + shadow.timeoutMs;
    const second = await predictor.predict(target, rows, { deadlineMs, priority: LOWEST_PRIORITY });
    onResult({
      shadow: shadow.name,
      outcome: 'OK',
      answers: {
        primary: { durationMs, scores: toScores(prediction, bundle) },
        shadow: { durationMs: clock.nowMs() - startMs, scores: toScores(second, target) },
      },
    });
  }

  #findTarget({ model, target: { channel, version, ...other } }: Shadow): LoadedBundle {
    const found = this.#options.models.find(other.model ?? model, {
      ...(channel !== undefined && { label: channel }),
      ...(version !== undefined && { version }),
    });
    return requireBundle(found);
  }

  #report({ name }: Shadow, outcome: ShadowOutcome): void {
    this.#options.onResult({ shadow: name, outcome });
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
